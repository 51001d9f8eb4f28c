"""The metrics of a server, for Prometheus."""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_KINDS = ("user", "snapshot", "corruption", "denied", "busy", "draining", "failed")


class ServiceFigures(CollectorRegistry):
    """Counts since the server began. Any thread may count.

    Args:
        running: by client, the streams that run.
    """

    def __init__(self, running: Callable[[], Counts[str]]) -> None:
        super().__init__(auto_describe=False)
        self._running = running
        self.streams = self._counter("streams", "Streams that began.")
        self.steps = self._counter("steps", "Batches built.", "output")
        self.bytes = self._counter("bytes", "Bytes of the batches built.", "output")
        self.seconds = self._counter("build_cpu_seconds", "CPU of building batches.", "output")
        self.refusals = self._counter("refusals", "Requests and streams that were refused.", "kind")
        for kind in _KINDS:
            self.refusals.labels(kind)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Adds a figure that each scrape asks for."""
        Gauge(f"datapipe_service_{name}", text, registry=self).set_function(value)

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        yield CounterMetricFamily("datapipe_service_cpu_seconds", "CPU of the server's process.", value=time.process_time())
        running = GaugeMetricFamily("datapipe_service_running_streams", "Streams that run.", labels=["client"])
        for client, count in self._running().items():
            running.add_metric([client], count)
        yield running

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"datapipe_service_{name}", text, labels, registry=self)
