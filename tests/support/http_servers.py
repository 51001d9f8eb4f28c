"""HTTP servers on loopback for tests: rules answer each request, and may have faults; threads end with the `with`.

request  ─▶  Handler.answer, by the rules of its Server  ─▶  an answer, or what goes wrong
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(kw_only=True)
class Fault:
    """What goes wrong with requests whose method is `method`, path holds `path` and body holds `text`; all, where one is empty.

    Attributes:
        kind: as the handler of a server names it.
        after: bytes of the body that come as they should.
        status, headers, body: of the answer instead.
        code: of S3, in the body of a status: "ExpiredToken".
        left: requests still to be hit; None for all.
        hits: requests hit so far.
    """

    kind: str
    method: str = ""
    path: str = ""
    text: str = ""
    after: int = 0
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    code: str = ""
    left: int | None = 1
    hits: int = 0


@dataclass(kw_only=True)
class Faulty:
    """Rules of a server that fails as often as it is asked."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    _faults: list[Fault] = field(default_factory=list)

    def fail(self, kind: str, *, times: int | None = 1, **facts: Any) -> Fault:
        """From now on, until it has hit `times` requests; the rest are facts of `Fault`."""
        fault = Fault(kind=kind, left=times, **facts)
        with self.lock:
            self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Forgets all faults; stalled answers stay stalled."""
        with self.lock:
            self._faults.clear()

    def hit(self, path: str, method: str = "", text: str = "") -> Fault | None:
        """The first fault that hits a request and is not used up; counts it. The caller holds the lock."""
        for fault in self._faults:
            if fault.left != 0 and fault.path in path and fault.text in text and fault.method in ("", method):
                fault.hits += 1
                fault.left = None if fault.left is None else fault.left - 1
                return fault
        return None


class Server(ThreadingHTTPServer):
    """Waits for all its threads at its end. `rules`: what the handler answers by; `ended`: set at the end."""

    daemon_threads = False
    block_on_close = True
    request_queue_size = 256

    def __init__(self, rules: Any, handler: type[Handler], host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((host, port), handler)
        self.rules, self.ended = rules, threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), name=type(rules).__name__)
        self._thread.start()

    @property
    def port(self) -> int:
        return self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is none of the server's errors."""

    def close(self) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()
        self._thread.join()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer in two writes would wait for an acknowledgement
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.answer()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815  # names of BaseHTTPRequestHandler

    def answer(self) -> None:
        """Answers a request of any method."""
        raise NotImplementedError

    def handle_one_request(self) -> None:
        """Waits in short turns for the next request of a connection that is kept open."""
        if self.is_open_until(0.05, lambda: bool(self.connection.recv(1, socket.MSG_PEEK))):
            self.connection.settimeout(30)
            super().handle_one_request()
        else:
            self.close_connection = True

    def is_open_until(self, turn_s: float, came: Callable[[], bool]) -> bool:
        """Whether something came before the client hung up or the server ended."""
        self.connection.settimeout(turn_s)
        while not self.server.ended.is_set():
            try:
                return came()
            except TimeoutError:
                continue
            except OSError:
                return False
        return False

    def log_message(self, format: str, *args: object) -> None:
        """Sends nothing."""

    def body(self) -> bytes:
        """The body of the request, which some clients send in chunks (RFC 9112, 7.1)."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            """A trailer."""
        return b"".join(parts)

    def send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        """An answer; it has its length unless `headers` close the connection."""
        self.send_response(status)
        lengths = {} if headers.get("Connection") == "close" else {"Content-Length": str(len(body))}
        for name, value in (lengths | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextlib.contextmanager
def serving(rules: Any, handler: type[Handler], port: int = 0) -> Iterator[Server]:
    """A server for the time of a `with`, at any free port or a given one."""
    server = Server(rules, handler, port=port)
    try:
        yield server
    finally:
        server.close()
