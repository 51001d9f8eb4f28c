"""A small HTTP server: the figures of runs and loaders, the status of a service, the page of an output.

It is `http.server`, which starts in 50 ms and needs no dependency: a request here reads memory or a
file. Each connection has a thread, and ends after a time without bytes. Large bodies are refused.
"""

import socket
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from datapipe.dataclass import dataclass, field
from datapipe.errors import UserError

MOST_BODY_BYTES = 1 << 20
_MOST_DIGITS = 15
_POLL_S = 0.2


class RequestError(Exception):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpAnswer:
    """An answer. `content` is whole, or a stream, which is closed when its client goes."""

    content: bytes | Iterator[bytes]
    kind: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=lambda: {"Cache-Control": "no-store"})


class HttpServer(ThreadingHTTPServer):
    """Listens once it is made, at a free port for 0, and answers in `start` or `serve_forever`.
    Raises UserError where it cannot listen; `option` is the one that gave the port."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, option: str) -> None:
        self._thread: threading.Thread | None = None
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise UserError(f"{option}: {why}: {host}:{port}. Give another port, or 0 for a free one.") from error

    def answer(self, target: str, body: bytes | None) -> HttpAnswer:
        """The answer to a request for `target`, path and options as sent, with the body of a POST. Raises RequestError. It
        must be safe for several threads."""
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

    def __exit__(self, *error: object) -> None:
        self.close()

    def server_bind(self) -> None:
        """As the base class, without asking a name server for the host's full name."""
        socket.socket.bind(self.socket, self.server_address)
        self.server_address = address = self.socket.getsockname()
        self.server_name, self.server_port = address[0], address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is no error of the server."""


class MetricsServer(HttpServer):
    """GET /metrics: the figures of a collector of `prometheus_client`."""

    def __init__(self, host: str, port: int, option: str, collector: Any) -> None:
        from prometheus_client import CollectorRegistry

        super().__init__(host, port, option)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)

    def answer(self, target: str, body: bytes | None) -> HttpAnswer:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        if target.partition("?")[0] != "/metrics":
            raise RequestError(HTTPStatus.NOT_FOUND, "Expected /metrics.")
        return HttpAnswer(content=generate_latest(self._registry), kind=CONTENT_TYPE_LATEST)


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "datapipe", ""
    timeout = 60.0  # seconds without a byte

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
        """Refuses a request, of which bytes may be left. Also called by the base class."""
        self.close_connection = True
        self._send(self.server.refusal(RequestError(HTTPStatus(code), message or HTTPStatus(code).phrase)))

    def _answer(self, body: bytes | None = None) -> None:
        try:
            answer = self.server.answer(self.path, body)
        except RequestError as error:
            answer = self.server.refusal(error)
        self._send(answer)

    def _send(self, answer: HttpAnswer) -> None:
        if isinstance(answer.content, bytes):
            self._send_head(answer, "Content-Length", str(len(answer.content)))
            self.wfile.write(answer.content)
            return
        self.close_connection = True
        self._send_head(answer, "Transfer-Encoding", "chunked")
        try:
            for part in answer.content:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        finally:
            getattr(answer.content, "close", lambda: None)()

    def _send_head(self, answer: HttpAnswer, *size: str) -> None:
        self.send_response(answer.status)
        for name, value in (("Content-Type", answer.kind), *answer.headers.items(), size):
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
