"""A small HTTP server: the figures of runs and loaders, the status of a service, the page of an output.

    socket ─▶ deadline for the whole request ─▶ `answer` ─▶ bytes, or a stream in chunks

It is `http.server` because that starts in 50 ms and needs no dependency, and because a request here is a look into memory or a
file. Connections that send or read nothing end after a time. Long lines, many headers and large bodies are refused. Each of a
bounded number of connections has a thread.
"""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from types import TracebackType
from typing import Any, Self

from datapipe.errors import UserError

REQUEST_S = 10.0
"""For the whole of a request, from its first byte; a kept connection may be silent for as long."""

ANSWER_S = 60.0
"""For sending one answer, or one part of a stream."""

MOST_CONNECTIONS = 64
MOST_BODY_BYTES = 1 << 20
_MOST_DIGITS = 15
_POLL_S = 0.2


class RequestError(Exception):
    """A request that is refused: its status, and one sentence."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpRequest:
    """A request.

    Attributes:
        target: path and options, as sent.
        body: of a POST; None otherwise.
    """

    target: str
    body: bytes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpAnswer:
    """An answer.

    Attributes:
        content: whole, or the parts of a stream, which is closed when its client goes away.
    """

    content: bytes | Iterator[bytes]
    kind: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=lambda: {"Cache-Control": "no-store"})


class HttpServer(ThreadingHTTPServer):
    """Listens once it is made, and answers in `start` or `serve_forever`.

    Args:
        port: 0 for a free one.
        option: by which the port was given, for the error.
        most_connections: others are closed at once.

    Raises UserError where it cannot listen.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, option: str, most_connections: int = MOST_CONNECTIONS) -> None:
        self._room = threading.BoundedSemaphore(most_connections)
        self._thread: threading.Thread | None = None
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise UserError(f"{option}: {why}: {host}:{port}. Give another port, or 0 for a free one.") from error

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """The answer to a request. Raises RequestError. It must be safe for several threads."""
        raise NotImplementedError

    def refusal(self, error: RequestError) -> HttpAnswer:
        return HttpAnswer(content=f"{error}\n".encode(), status=error.status)

    @property
    def port(self) -> int:
        return self.server_port

    def start(self) -> Self:
        """Answers in a thread, until `close`."""
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_S,), name="datapipe-http", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def server_bind(self) -> None:
        """As the base class, without the look-up of the host's full name, which may wait for a name server."""
        socket.socket.bind(self.socket, self.server_address)
        self.server_address = address = self.socket.getsockname()
        self.server_name, self.server_port = address[0], address[1]

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
        """A connection that breaks is no error of the server."""


class MetricsServer(HttpServer):
    """GET /metrics: the figures of a collector of `prometheus_client`."""

    def __init__(self, host: str, port: int, option: str, collector: Any) -> None:
        from prometheus_client import CollectorRegistry

        super().__init__(host, port, option)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)

    def answer(self, request: HttpRequest) -> HttpAnswer:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        if request.target.partition("?")[0] != "/metrics":
            raise RequestError(HTTPStatus.NOT_FOUND, "Expected /metrics.")
        return HttpAnswer(content=generate_latest(self._registry), kind=CONTENT_TYPE_LATEST)


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
    server: HttpServer  # type: ignore[assignment]
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
        self._answer()

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > _MOST_DIGITS or int(length) > MOST_BODY_BYTES:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"Expected a body of at most {MOST_BODY_BYTES:,} bytes.")
            return
        self._answer(self.rfile.read(int(length)))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: probes ask every few seconds, and a path may hold a token."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuses a request, of which bytes may be left. The base class calls it for one that it cannot parse."""
        self.close_connection = True
        self._send(self.server.refusal(RequestError(HTTPStatus(code), message or HTTPStatus(code).phrase)))

    def _answer(self, body: bytes | None = None) -> None:
        try:
            answer = self.server.answer(HttpRequest(target=self.path, body=body))
        except RequestError as error:
            answer = self.server.refusal(error)
        self._send(answer)

    def _send(self, answer: HttpAnswer) -> None:
        if isinstance(answer.content, bytes):
            self._send_head(answer, "Content-Length", str(len(answer.content)))
            self.wfile.write(answer.content)
        else:
            self._send_parts(answer, answer.content)

    def _send_head(self, answer: HttpAnswer, *size: str) -> None:
        self.connection.settimeout(ANSWER_S)
        self.send_response(answer.status)
        for name, value in (("Content-Type", answer.kind), *answer.headers.items(), size):
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def _send_parts(self, answer: HttpAnswer, parts: Iterator[bytes]) -> None:
        """A part at a time, in chunks, until they end or the client goes away."""
        self.close_connection = True  # what a client sends meanwhile only tells whether it is still there
        self._send_head(answer, "Transfer-Encoding", "chunked")
        try:
            for part in parts:
                if self._is_gone():
                    return
                self.connection.settimeout(ANSWER_S)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        finally:
            getattr(parts, "close", lambda: None)()

    def _is_gone(self) -> bool:
        """Whether the client has closed the connection."""
        self.connection.setblocking(False)
        try:
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
