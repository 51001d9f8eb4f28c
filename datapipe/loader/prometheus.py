"""The figures of loaders for Prometheus. A scrape reads the current `LoaderStats`; nothing is counted twice.

    with serve_metrics([loader], port=9400):
        for batch in loader: …

The share of an accelerator's time spent waiting is rate(wait) / (rate(wait) + rate(compute)), with `rate` over [5m].
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from datapipe.loader.stats import LoaderStats
from datapipe.machine.http_server import MetricsServer

_LABELS = ("rank", "split")

_COUNTERS: tuple[tuple[str, str, Callable[[LoaderStats], float]], ...] = (
    ("steps", "Batches handed out.", lambda stats: stats.steps),
    ("tokens", "Tokens in the batches handed out.", lambda stats: stats.tokens),
    ("bytes", "Bytes of the batches handed out.", lambda stats: stats.bytes),
    ("wait_seconds", "Waiting for batches, without the first of each iteration.", lambda stats: stats.wait_s),
    ("first_wait_seconds", "Waiting for the first batch of each iteration.", lambda stats: stats.first_wait_s),
    ("compute_seconds", "Between taking a batch and asking for the next.", lambda stats: stats.compute_s),
    ("build_seconds", "Building batches, over all threads.", lambda stats: stats.build_s),
    ("built", "Batches built.", lambda stats: stats.built),
)

_GAUGES: tuple[tuple[str, str, Callable[[LoaderStats], float]], ...] = (
    ("buffer_batches", "Batches that are ready.", lambda stats: stats.buffer_now),
    ("prefetch_batches", "The most batches that are built ahead.", lambda stats: stats.depth),
    ("host_memory_bytes", "The most bytes of batches that exist at a time.", lambda stats: stats.host_bytes),
)


class LoaderMetrics(Collector):
    """A collector for any registry: `registry.register(LoaderMetrics([loader, validation]))`."""

    def __init__(self, loaders: Sequence[Any]) -> None:
        self._loaders = tuple(loaders)

    def collect(self) -> Iterator[Metric]:
        figures = [loader.stats() for loader in self._loaders]
        for kind, metrics in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, text, value in metrics:
                family = kind(f"datapipe_loader_{name}", text, labels=_LABELS)
                for stats in figures:
                    family.add_metric([str(stats.rank), stats.split], value(stats))
                yield family


def serve_metrics(loaders: Sequence[Any], port: int, address: str = "127.0.0.1") -> MetricsServer:
    """Serves the figures of `loaders` at http://address:port/metrics. Each rank of a machine needs another port. `loaders`
    have a method `stats`, and differ in rank or split, which label the figures."""
    return MetricsServer(address, port, f"port={port}", LoaderMetrics(loaders)).start()
