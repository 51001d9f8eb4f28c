"""A web server on loopback that gives files by byte ranges, and fails as web servers do, as often as it is asked.

with web_server() as server:
    server.files["/a.txt"] = b"content"
    server.fail("cut", path="a.txt", after=3)
    url = server.url("/a.txt")
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.http_servers import Fault, Faulty, Handler, serving

MODIFIED = "Wed, 21 Oct 2026 07:28:00 GMT"


class Request(NamedTuple):
    """A request that has come."""

    path: str
    byte_range: str | None
    authorization: str | None


@dataclass
class WebServer(Faulty):
    """The files of a server by path, and how it gives them. It fails by status, cut, stall, refuse or other version.

    Attributes:
        redirects: paths and where they lead.
        password: "user:password" in base64 that every request needs; empty for none.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    gives_ranges: bool = True
    gives_size: bool = True
    etag: str | None = '"one"'
    modified: str | None = MODIFIED
    password: str = ""
    requests: list[Request] = field(default_factory=list)
    address: str = ""

    def url(self, path: str) -> str:
        return f"http://{self.address}{path}"

    def fault_of(self, request: Request) -> Fault | None:
        with self.lock:
            self.requests.append(request)
            return self.hit(request.path)


class _Handler(Handler):
    def answer(self) -> None:
        web: WebServer = self.server.rules
        request = Request(self.path, self.headers.get("Range"), self.headers.get("Authorization"))
        fault = web.fault_of(request)
        path = self.path.partition("?")[0]
        if fault is not None and fault.kind == "refuse":
            self.close_connection = True
        elif fault is not None and fault.kind == "status":
            self._answer(fault.status, dict(fault.headers), b"")
        elif web.password and request.authorization != f"Basic {web.password}":
            self._answer(401, {}, b"who are you?")
        elif path in web.redirects:
            self._answer(302, {"Location": web.redirects[path]}, b"elsewhere")
        elif path not in web.files:
            self._answer(404, {}, b"no such file")
        else:
            self._send_file(web.files[path], request.byte_range, fault)

    def _send_file(self, content: bytes, byte_range: str | None, fault: Fault | None) -> None:
        web: WebServer = self.server.rules
        facts = {"ETag": web.etag, "Last-Modified": web.modified}
        if fault is not None and fault.kind == "other version":
            facts["ETag"] = '"two"'
        headers = {name: value for name, value in facts.items() if value is not None}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", byte_range or "")
        if asked is None or not web.gives_ranges:
            self._answer(200, headers, content, fault)
            return
        start, stop = int(asked[1]), min(int(asked[2] or len(content)) + 1, len(content))
        if start >= len(content):
            self._answer(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
            return
        size = str(len(content)) if web.gives_size else "*"
        self._answer(206, headers | {"Content-Range": f"bytes {start}-{stop - 1}/{size}"}, content[start:stop], fault)

    def _answer(self, status: int, headers: dict[str, str], body: bytes, fault: Fault | None = None) -> None:
        is_sized = status != 200 or self.server.rules.gives_size
        sizes = {"Content-Length": str(len(body))} if is_sized else {"Connection": "close"}
        broken = fault if fault is not None and fault.kind != "other version" else None
        self.send(status, headers | sizes, body if broken is None else body[: broken.after])
        self.close_connection |= not is_sized or broken is not None
        if broken is not None and broken.kind == "stall":
            self.server.ended.wait(30)


@contextlib.contextmanager
def web_server() -> Iterator[WebServer]:
    """A server for the time of a `with`."""
    web = WebServer()
    with serving(web, _Handler) as server:
        web.address = f"127.0.0.1:{server.port}"
        yield web
