"""The HTTP server of the page, on loopback alone.

    request ─▶ Host ─▶ token ─▶ static file, or endpoint ─▶ JSON with strict headers

A page of another site cannot ask by its own name for 127.0.0.1 (DNS rebinding), since Host must be that of this server. Other
users and sites cannot guess 128 random bits in the path. Static files are found by their name in a list.
"""

from __future__ import annotations

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
from urllib.parse import parse_qsl, unquote, urlsplit

from datapipe.machine.http_server import HttpAnswer, HttpRequest, HttpServer, RequestError

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


class PageServer(HttpServer):
    """Serves the page and one endpoint function below a token.

    Args:
        port: 0 for a free one.
        endpoint: raises RequestError for what it refuses; it must be safe for several threads.
    """

    def __init__(self, port: int, endpoint: Endpoint) -> None:
        self.endpoint, self.token = endpoint, secrets.token_hex(16)
        super().__init__(HOST, port, f"--port {port}")

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/{self.token}/"

    @cached_property
    def static(self) -> dict[str, Traversable]:
        """The files of the page, by name."""
        return {file.name: file for file in (files("datapipe.explore") / "page" / "static").iterdir()}

    def answer(self, request: HttpRequest) -> HttpAnswer:
        path, query = self._checked(request)
        if path[:1] != ("api",):
            return self._file(path, request)
        answer = self.endpoint(Request(path=path[1:], query=query, body=_parsed(request.body)))
        if isinstance(answer, Mapping):
            return _of_json(answer)
        return HttpAnswer(content=_lines(answer), kind="application/x-ndjson", headers=_HEADERS)

    def refusal(self, error: RequestError) -> HttpAnswer:
        return _of_json({"error": str(error)}, error.status)

    def _checked(self, request: HttpRequest) -> tuple[tuple[str, ...], dict[str, str]]:
        """Path behind the token, and options. Raises RequestError."""
        if request.hosts not in ((f"{HOST}:{self.port}",), (f"localhost:{self.port}",)):
            raise RequestError(
                HTTPStatus.MISDIRECTED_REQUEST, f"Expected http://{HOST}:{self.port}, and another host was asked for."
            )
        try:
            split = urlsplit(request.target)
        except ValueError:
            raise RequestError(HTTPStatus.BAD_REQUEST, "Expected the path of a page.") from None
        _, token, *path = [unquote(part) for part in split.path.split("/")] if split.path.count("/") > 1 else ["", ""]
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise RequestError(
                HTTPStatus.FORBIDDEN, "This address has no valid token. Open the address that `datapipe browse` printed."
            )
        return tuple(path), dict(parse_qsl(split.query))

    def _file(self, path: tuple[str, ...], request: HttpRequest) -> HttpAnswer:
        if request.body is not None:
            raise RequestError(HTTPStatus.METHOD_NOT_ALLOWED, "Expected GET.")
        name = "/".join(path) or "index.html"
        file = self.static.get(name)
        if file is None:
            raise RequestError(HTTPStatus.NOT_FOUND, "There is no such page.")
        return HttpAnswer(content=file.read_bytes(), kind=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)


def _parsed(body: bytes | None) -> Any:
    try:
        return None if body is None else json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError(HTTPStatus.BAD_REQUEST, "Expected a JSON document as the body.") from None


def _of_json(data: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> HttpAnswer:
    return HttpAnswer(content=_json(data), kind="application/json", status=status, headers=_HEADERS)


def _lines(lines: Generator[Mapping[str, Any]]) -> Iterator[bytes]:
    with closing(lines):
        for line in lines:
            yield _json(line) + b"\n"


def _json(data: Mapping[str, Any]) -> bytes:
    """JSON in ASCII: control characters and marks of direction are escapes."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
