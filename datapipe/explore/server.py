"""The HTTP server of the page, on loopback alone, below 128 random bits, so that other users and sites cannot ask it.

request ─▶ token ─▶ static file, or endpoint ─▶ JSON with strict headers
"""

import hmac
import json
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from functools import cached_property
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from datapipe.machine.http_server import HttpAnswer, HttpServer, RequestError

HOST = "127.0.0.1"

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


class Request(NamedTuple):
    """What an endpoint gets: the decoded path behind `api/`, each option once, and the parsed JSON of a POST, else None."""

    path: tuple[str, ...]
    query: Mapping[str, str] = MappingProxyType({})
    body: Any = None


Answer = Mapping[str, Any] | Generator[Mapping[str, Any]]
"""JSON, or the lines of a stream. A stream is closed when its client goes away."""

Endpoint = Callable[[Request], Answer]
"""It raises RequestError for what it refuses, and is safe for several threads."""


class PageServer(HttpServer):
    def __init__(self, port: int, endpoint: Endpoint) -> None:
        self.endpoint, self.token = endpoint, secrets.token_hex(16)
        super().__init__(HOST, port, f"--port {port}")

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/{self.token}/"

    @cached_property
    def static(self) -> dict[str, Traversable]:
        return {file.name: file for file in (files("datapipe.explore") / "page" / "static").iterdir()}

    def answer(self, target: str, body: bytes | None) -> HttpAnswer:
        path, _, options = target.partition("?")
        _, token, *names = [*map(unquote, path.split("/")), ""]
        if not path.startswith("/") or len(names) < 2 or not hmac.compare_digest(token.encode(), self.token.encode()):
            raise RequestError(
                HTTPStatus.FORBIDDEN, "This address has no valid token. Open the address that `datapipe browse` printed."
            )
        if names[0] != "api":
            return self._file("/".join(names[:-1]) or "index.html")
        try:
            content = None if body is None else json.loads(body)
        except (ValueError, RecursionError):
            raise RequestError(HTTPStatus.BAD_REQUEST, "Expected a JSON document as the body.") from None
        answer = self.endpoint(Request(path=tuple(names[1:-1]), query=dict(parse_qsl(options)), body=content))
        if isinstance(answer, Mapping):
            return _of_json(answer)
        return HttpAnswer(content=_lines(answer), kind="application/x-ndjson", headers=_HEADERS)

    def refusal(self, error: RequestError) -> HttpAnswer:
        return _of_json({"error": str(error)}, error.status)

    def _file(self, name: str) -> HttpAnswer:
        if name not in self.static:
            raise RequestError(HTTPStatus.NOT_FOUND, "There is no such page.")
        return HttpAnswer(content=self.static[name].read_bytes(), kind=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)


def _of_json(data: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> HttpAnswer:
    return HttpAnswer(content=_json(data), kind="application/json", status=status, headers=_HEADERS)


def _lines(lines: Generator[Mapping[str, Any]]) -> Iterator[bytes]:
    with closing(lines):
        for line in lines:
            yield _json(line) + b"\n"


def _json(data: Mapping[str, Any]) -> bytes:
    """JSON in ASCII: control characters and marks of direction are escapes."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
