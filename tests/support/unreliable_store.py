"""A proxy on loopback before an object store, that fails as networks and stores do, as often as it is asked.

    client  ──▶  UnreliableStore (on loopback, its own port)  ──▶  the store of tests/support/object_store.py
                 fail("stall", path="part-00003", after=1000, times=2)

A fault hits the requests of a method whose path holds `path`, the first `times` of them or, with None, all. Everything else
passes through untouched.
"""

import contextlib
import http.client
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from tests.support.http_servers import Fault, Faulty, Handler, Server

Kind = Literal["cut", "stall", "status", "reset", "flip", "lost", "silent", "slow"]
"""The body ends (cut), stops without ending (stall), comes in small pieces (slow), with a bit flipped, or with a reset of the
connection; the answer is `status` without the object; the store does what it is asked and the answer is lost, with the
connection (lost) or without a word (silent)."""
_PIECE_BYTES = 1 << 16
_SLOW_PIECE_BYTES, _SLOW_PAUSE_S = 1 << 10, 0.02


class UnreliableStore(Faulty):
    """Passes requests on to `upstream`, "127.0.0.1:5000", but for the faults it was given."""

    def __init__(self, upstream: str, host: str = "127.0.0.1") -> None:
        super().__init__()
        self.upstream, self.host = upstream, host
        self.gets: list[str] = []  # paths of the GET requests, in the order in which they came
        self.authorizations: set[str | None] = set()  # of all requests
        self._server = Server(self, _Handler, host)

    @property
    def ended(self) -> threading.Event:
        return self._server.ended

    @property
    def query(self) -> str:
        """The end of the URLs that go through this proxy."""
        return f"?endpoint_override=http://{self.host}:{self._server.port}&region=us-east-1"

    def fail(self, kind: str, *, method: str = "GET", **facts: Any) -> Fault:
        """As of all servers. A HEAD request can only be answered with a status."""
        return super().fail(kind, method=method, **facts)

    def fault_of(self, method: str, path: str, authorization: str | None) -> Fault | None:
        """Counts one request of `path`; what is to go wrong with it."""
        with self.lock:
            self.authorizations.add(authorization)
            if method == "GET":
                self.gets.append(path)
            return self.hit(path, method)

    def close(self) -> None:
        self._server.close()


class _Handler(Handler):
    def answer(self) -> None:
        fault = self.server.rules.fault_of(self.command, self.path, self.headers.get("Authorization"))
        sent = self.body()
        if fault is not None and fault.kind == "status":
            code = f"<Error><Code>{fault.code}</Code><Message>so it is</Message></Error>" if fault.code else ""
            self.send(fault.status, {}, code.encode())
        else:
            self._pass_on(fault, sent)

    def _pass_on(self, fault: Fault | None, sent: bytes) -> None:
        upstream = http.client.HTTPConnection(self.server.rules.upstream, timeout=30)
        with contextlib.closing(upstream):
            dropped = ("expect", "transfer-encoding")
            headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
            upstream.request(self.command, self.path, body=sent or None, headers=headers)
            response = upstream.getresponse()
            if fault is not None and fault.kind == "lost":
                self._reset()
                return
            if fault is not None and fault.kind == "silent":
                self.close_connection = True
                self._stall()
                return
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in ("connection", "server", "date"):
                    self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self._send_body(response, fault)

    def _send_body(self, response: http.client.HTTPResponse, fault: Fault | None) -> None:
        body = response.read() if fault is not None else b""
        if fault is None:
            while piece := response.read(_PIECE_BYTES):
                self.wfile.write(piece)
            return
        if fault.kind == "flip":
            flipped = bytearray(body)
            flipped[min(fault.after, len(body) - 1)] ^= 4
            self.wfile.write(flipped)
            return
        if fault.kind == "slow":
            for start in range(0, len(body), _SLOW_PIECE_BYTES):
                self.wfile.write(body[start : start + _SLOW_PIECE_BYTES])
                self.wfile.flush()
                self.server.ended.wait(_SLOW_PAUSE_S)
            return
        self.wfile.write(body[: fault.after])
        self.wfile.flush()
        self.close_connection = True
        if fault.kind == "stall":
            self._stall()
        elif fault.kind == "reset":
            self._reset()

    def _reset(self) -> None:
        """The connection ends with a TCP reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _stall(self) -> None:
        """Sends nothing more until the client hangs up or the test ends."""
        while self.is_open_until(0.05, lambda: bool(self.connection.recv(1))):
            """What the client sends is not read."""


@contextlib.contextmanager
def unreliable(query: str) -> Iterator[UnreliableStore]:
    """A proxy before the store whose URLs end with `query`, for the time of a `with`."""
    store = UnreliableStore(urlsplit(dict(parse_qsl(query.removeprefix("?")))["endpoint_override"]).netloc)
    try:
        yield store
    finally:
        store.close()
