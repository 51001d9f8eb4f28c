"""What a server counts, for a scrape by Prometheus."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_KINDS = ("user", "snapshot", "corruption", "denied", "busy", "draining", "failed")


class ServiceFigures(Collector):
    """Counts since the server began. Any thread may count.

    Attributes:
        running: by client, the streams that run.
        connections: how many there are.
        is_ready: whether requests are answered.
    """

    running: Callable[[], Counter[str]] = Counter
    connections: Callable[[], int] = int
    is_ready: Callable[[], bool] = bool

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.steps, self.bytes, self.seconds = Counter[str](), Counter[str](), defaultdict[str, float](float)
        self.refusals, self.cuts = Counter[str](dict.fromkeys(_KINDS, 0)), Counter[str]()
        self.streams = 0

    def began(self) -> None:
        with self._lock:
            self.streams += 1

    def built(self, output: str, steps: int, num_bytes: int, seconds: float) -> None:
        with self._lock:
            self.steps[output] += steps
            self.bytes[output] += num_bytes
            self.seconds[output] += seconds

    def refused(self, kind: str) -> None:
        with self._lock:
            self.refusals[kind] += 1

    def cut(self, reason: str) -> None:
        with self._lock:
            self.cuts[reason] += 1

    def collect(self) -> Iterator[Metric]:
        yield _counter("streams", "Streams that began.", (), {(): self.streams})
        for name, text, values in (
            ("steps", "Batches built.", self.steps),
            ("bytes", "Bytes of the batches built.", self.bytes),
            ("build_cpu_seconds", "CPU of building batches.", self.seconds),
        ):
            yield _counter(name, text, ("output",), {(output,): value for output, value in list(values.items())})
        refusals = {(kind,): count for kind, count in list(self.refusals.items())}
        yield _counter("refusals", "Requests and streams that were refused.", ("kind",), refusals)
        cuts = {(reason,): count for reason, count in list(self.cuts.items())}
        yield _counter("cut_connections", "Connections that broke a limit.", ("reason",), cuts)
        yield _counter("cpu_seconds", "CPU of the server's process.", (), {(): time.process_time()})
        running = GaugeMetricFamily("datapipe_service_running_streams", "Streams that run.", labels=["client"])
        for client, count in list(self.running().items()):
            running.add_metric([client], count)
        yield running
        yield GaugeMetricFamily("datapipe_service_connections", "Open connections.", value=self.connections())
        yield GaugeMetricFamily("datapipe_service_ready", "Whether requests are answered.", value=float(self.is_ready()))


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    family = CounterMetricFamily(f"datapipe_service_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
