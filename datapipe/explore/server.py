"""The HTTP server of the page: loopback alone, one thread a connection, nothing from outside the standard library.

    socket ─▶ deadline for the whole request ─▶ Host ─▶ token ─▶ static file, or endpoint ─▶ JSON with strict headers

It is `http.server` because that starts in 50 ms and needs no dependency, and because a request here is a look into a file.
What a hostile client may do, and what stops it:

| a page of another site asks by its own name for 127.0.0.1 (DNS rebinding) | Host must be 127.0.0.1:PORT or localhost:PORT |
| another user of the machine, or another site, guesses URLs | 128 random bits in the path, compared in constant time |
| connections that send nothing, or read nothing | seconds for a request and for an answer; a bounded number of threads |
| long lines, many headers, large bodies | limits, then 4xx and the connection is closed |
| paths with .. or links | static files are listed once, and found by their name in that list |
"""

from __future__ import annotations

import hmac
import io
import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from importlib.resources.abc import Traversable
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

HOST = "127.0.0.1"
REQUEST_S = 10.0
"""For the whole of a request, from its first byte; a kept connection may be silent for as long."""

ANSWER_S = 60.0
"""For sending one answer, or one line of a stream."""

MOST_CONNECTIONS = 64
MOST_QUERY_CHARS = 8_192
MOST_BODY_BYTES = 1 << 20
_MOST_OPTIONS = 50
_MOST_DIGITS = 15

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "json": "application/json",
}


class RequestError(Exception):
    """A request that is refused: its status, and one sentence."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What an endpoint gets.

    Attributes:
        path: behind `api/`, decoded: ("document", "3ff…").
        query: each option once.
        body: of a POST, parsed JSON; None otherwise.
    """

    path: tuple[str, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None


Answer = Mapping[str, Any] | Iterator[Mapping[str, Any]]
"""JSON, or the lines of a stream. A stream is closed when its client goes away."""

Endpoint = Callable[[Request], Answer]


class PageServer(ThreadingHTTPServer):
    """Serves the page and one endpoint function below a token.

    Args:
        port: 0 for a free one.
        endpoint: raises RequestError for what it refuses; it must be safe for several threads.
        most_connections: others are closed at once.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, port: int, endpoint: Endpoint, most_connections: int = MOST_CONNECTIONS) -> None:
        self.endpoint, self.token = endpoint, secrets.token_hex(16)
        self.is_interrupted = False
        self._room = threading.BoundedSemaphore(most_connections)
        super().__init__((HOST, port), _Handler)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @cached_property
    def static(self) -> dict[str, Traversable]:
        """The files of the page, by name."""
        folder = files("datapipe.explore") / "page" / "static"
        return {file.name: file for file in folder.iterdir() if file.is_file()} if folder.is_dir() else {}

    def service_actions(self) -> None:
        """Raises KeyboardInterrupt in `serve_forever` once the handler of a signal has set `is_interrupted`: one that the
        handler itself raises is lost where it meets code that ignores exceptions, such as a finalizer."""
        if self.is_interrupted:
            raise KeyboardInterrupt

    def server_bind(self) -> None:
        """As the base class, without the look-up of the host's full name, which may wait for a name server."""
        socket.socket.bind(self.socket, self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)  # the client tries again; waiting here would block every other one
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is no news. Errors of endpoints are answered, so none comes here."""


class _Deadline(io.RawIOBase):
    """The bytes of a socket until a deadline, however slowly they drip."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self.ends = connection, monotonic() + REQUEST_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.ends - monotonic()
        if left <= 0:
            raise TimeoutError("the request was not complete in time")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "datapipe", ""

    def setup(self) -> None:
        super().setup()
        self._raw = _Deadline(self.connection)
        self.rfile = io.BufferedReader(self._raw)

    def handle_one_request(self) -> None:
        self._raw.ends = monotonic() + REQUEST_S
        super().handle_one_request()

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        try:
            body = self._body()
        except RequestError as error:
            self.close_connection = True  # the rest of the body would be taken for a request
            self._send_error(error)
            return
        self._answer(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a log line would hold the token, and what people look for."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """As JSON. The base class calls it for requests that it cannot parse."""
        self.close_connection = True
        self._send_error(RequestError(HTTPStatus(code), message or HTTPStatus(code).phrase))

    # ---------------------------------------------------------------------------------------------- what is asked

    def _body(self) -> Any:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > _MOST_DIGITS or int(length) > MOST_BODY_BYTES:
            raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"Expected a body of at most {MOST_BODY_BYTES:,} bytes.")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise RequestError(HTTPStatus.BAD_REQUEST, "Expected a JSON document as the body.") from None

    def _answer(self, body: Any) -> None:
        try:
            path, query = self._checked()
            if path[:1] == ("api",):
                answer = self.server.endpoint(Request(path=path[1:], query=query, body=body))
            elif body is None:
                self._send_file(path)
                return
            else:
                raise RequestError(HTTPStatus.METHOD_NOT_ALLOWED, "Expected GET.")
        except RequestError as error:
            self._send_error(error)
            return
        if isinstance(answer, Mapping):
            self._send(HTTPStatus.OK, "application/json", _json(answer))
        else:
            self._send_lines(answer)

    def _checked(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Path behind the token, and options. Raises RequestError."""
        port = self.server.server_port
        if self.headers.get_all("Host") not in ([f"{HOST}:{port}"], [f"localhost:{port}"]):
            raise RequestError(
                HTTPStatus.MISDIRECTED_REQUEST, f"Expected http://{HOST}:{port}, and another host was asked for."
            )
        try:
            split = urlsplit(self.path)
        except ValueError:
            raise RequestError(HTTPStatus.BAD_REQUEST, "Expected the path of a page.") from None
        if len(split.query) > MOST_QUERY_CHARS:
            raise RequestError(HTTPStatus.REQUEST_URI_TOO_LONG, f"Expected at most {MOST_QUERY_CHARS:,} characters of options.")
        _, token, *path = [unquote(part) for part in split.path.split("/")] if split.path.count("/") > 1 else ["", ""]
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise RequestError(
                HTTPStatus.FORBIDDEN, "This address has no valid token. Open the address that `datapipe browse` printed."
            )
        try:
            return tuple(path), dict(parse_qsl(split.query, max_num_fields=_MOST_OPTIONS))
        except ValueError:
            raise RequestError(HTTPStatus.BAD_REQUEST, f"Expected at most {_MOST_OPTIONS} options.") from None

    # ---------------------------------------------------------------------------------------------- what is sent

    def _send_file(self, path: tuple[str, ...]) -> None:
        name = "/".join(path) or "index.html"
        file = self.server.static.get(name)
        if file is None:
            raise RequestError(HTTPStatus.NOT_FOUND, "There is no such page.")
        kind = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        self._send(HTTPStatus.OK, kind, file.read_bytes())

    def _send_error(self, error: RequestError) -> None:
        self._send(error.status, "application/json", _json({"error": str(error)}))

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self._send_head(status, kind, {"Content-Length": str(len(content))})
        self.wfile.write(content)

    def _send_head(self, status: HTTPStatus, kind: str, more: Mapping[str, str]) -> None:
        self.connection.settimeout(ANSWER_S)
        self.send_response(status)
        for name, value in {"Content-Type": kind, **_HEADERS, **more}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def _send_lines(self, lines: Iterator[Mapping[str, Any]]) -> None:
        """A line of JSON at a time, in chunks, until the lines end or the client goes away."""
        self.close_connection = True  # what a client sends meanwhile only tells whether it is still there
        self._send_head(HTTPStatus.OK, "application/x-ndjson", {"Transfer-Encoding": "chunked"})
        try:
            for line in lines:
                if self._is_gone():
                    return
                content = _json(line) + b"\n"
                self.connection.settimeout(ANSWER_S)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
            self.wfile.write(b"0\r\n\r\n")
        finally:
            close = getattr(lines, "close", None)
            if close is not None:
                close()

    def _is_gone(self) -> bool:
        """Whether the client has closed the connection."""
        self.connection.setblocking(False)
        try:
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def _json(data: Mapping[str, Any]) -> bytes:
    """JSON in ASCII: control characters and marks of direction are escapes."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
