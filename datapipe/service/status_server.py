"""Whether a server lives, whether it is ready, and its figures: over HTTP, on a port of their own.

GET /healthz    200 while the process answers
GET /readyz     200 while requests are answered; else 503 and the reason
GET /metrics    for Prometheus
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from prometheus_client.registry import Collector

from datapipe.http_server import HttpAnswer, HttpRequest, MetricsServer


class StatusServer(MetricsServer):
    """Answers until it is closed.

    Args:
        why_not_ready: a sentence; empty while the server is ready.
    """

    def __init__(self, host: str, port: int, collector: Collector, why_not_ready: Callable[[], str]) -> None:
        super().__init__(host, port, f"--status-port {port}", collector)
        self._why_not_ready = why_not_ready

    def answer(self, request: HttpRequest) -> HttpAnswer:
        path = request.target.partition("?")[0]
        if path == "/healthz":
            return HttpAnswer(content=b"ok\n")
        if path == "/readyz":
            why = self._why_not_ready()
            status = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
            return HttpAnswer(content=f"{why or 'ready'}\n".encode(), status=status)
        return super().answer(request)
