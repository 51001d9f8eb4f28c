"""Whether a server lives, whether it is ready, and its figures: over HTTP, on a port of their own.

GET /healthz    200 while the process answers
GET /readyz     200 while requests are answered; else 503 and the reason
GET /metrics    for Prometheus
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from datapipe.errors import UserError

MOST_CONNECTIONS = 32
_REQUEST_S = 10.0


class StatusServer(ThreadingHTTPServer):
    """Answers in threads of its own until it is closed.

    Args:
        why_not_ready: a sentence; empty while the server is ready.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, collector: Collector, why_not_ready: Callable[[], str]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(collector)
        self.why_not_ready = why_not_ready
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise UserError(f"--status-port {port}: {error.strerror}: {host}:{port}. Give another port, or 0.") from error
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), name="datapipe-status", daemon=True)
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error of the server."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Any
    timeout = _REQUEST_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._answer(200, b"ok\n")
        elif path == "/readyz":
            why = self.server.why_not_ready()
            self._answer(503 if why else 200, f"{why or 'ready'}\n".encode())
        elif path == "/metrics":
            self._answer(200, generate_latest(self.server.registry), CONTENT_TYPE_LATEST)
        else:
            self._answer(404, b"expected /healthz, /readyz or /metrics\n")

    def _answer(self, status: int, content: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: probes ask every few seconds."""
