"""The figures of a run for Prometheus, served by the driver. A scrape reads the current `RunState`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from time import process_time
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from datapipe.errors import UserError
from datapipe.figures import DriverFigures, Histogram
from datapipe.loader.prometheus import MetricsServer
from datapipe.watching.state import RunState

_COUNTED = {
    "failures": ("crash", "infrastructure", "memory", "node", "stall", "task"),
    "second_attempts": ("won", "lost"),
}
"""Values of labels that are served before the first: `increase` does not see a counter appear at 1."""

_STEP_STATES = ("waiting", "running", "committed")


class RunMetrics(Collector):
    """A collector for any registry.

    Args:
        about: labels of `datapipe_run_info`: mixture, output, engine, version.
    """

    def __init__(self, state: RunState, about: dict[str, str]) -> None:
        self._state, self._about = state, about

    def collect(self) -> Iterator[Metric]:
        state, sums = self._state, self._state.sums
        yield _gauge("info", "What runs.", self._about, 1)
        yield self._tasks()
        states = Counter(step.state for step in state.steps.values())
        yield _gauges("steps", "Steps by state.", ["state"], {(name,): states[name] for name in _STEP_STATES})
        yield _counters("documents", "Documents of committed tasks.", ["source", "fate"], dict(sums.documents))
        for name, text, label, by_label in (
            ("input_bytes", "UTF-8 bytes of text that was read.", "source", sums.input_bytes),
            ("tokens", "Tokens.", "source", sums.tokens),
            ("output_bytes", "Bytes of committed files.", "kind", sums.output_bytes),
            ("failures", "Failed attempts that are tried again.", "kind", state.failures),
            ("second_attempts", "Tasks that took long and had two attempts at once.", "second", sums.second_attempts),
        ):
            values = dict.fromkeys(_COUNTED.get(name, ()), 0) | by_label
            yield _counters(name, text, [label], {(key,): number for key, number in values.items()})
        seconds = {(name,): step.seconds for name, step in state.steps.items()}
        yield _counters("task_seconds", "Wall time of committed tasks.", ["step"], seconds)
        yield _histograms("task_duration_seconds", "Wall time of committed tasks.", ["kind"], sums.task_seconds)
        memory = {(str(place),): message.memory_bytes for place, message in enumerate(state.messages)}
        yield _gauges("worker_memory_bytes", "Resident memory of each worker at work.", ["worker"], memory)
        silent = max((message.silent_s for message in state.messages), default=0.0)
        yield _gauge("longest_silence_seconds", "Of the running attempts.", {}, silent)
        yield _gauges("waiting", "1 for what attempts wait for.", ["what"], {(what,): 1 for what in state.waiting()})
        yield _counters("driver_cpu_seconds", "CPU of the driver's process.", [], {(): process_time()})
        yield from _of_driver(state.driver)
        left = state.time_left()
        if left is not None:
            bound = {"bound": "least" if left.is_least else "about"}
            yield _gauge("estimated_seconds_left", "Until all steps are committed.", bound, left.seconds)

    def _tasks(self) -> Metric:
        running, values = self._state.running, {}
        for step_id, state in self._state.steps.items():
            if state.planned is not None:
                labels, left = (step_id, state.step.source, state.step.kind), state.planned - state.committed
                values[*labels, "committed"], values[*labels, "running"] = state.committed, min(running[step_id], left)
                values[*labels, "pending"] = left - min(running[step_id], left)
        return _gauges("tasks", "Tasks of the steps that are planned.", ["step", "source", "kind", "state"], values)


def _of_driver(driver: DriverFigures) -> Iterator[Metric]:
    yield _gauge("slots", "Tasks that the engine runs at once.", {}, driver.slots)
    yield _gauge("queued_tasks", "Tasks that wait for a slot.", {}, driver.queued)
    text = "Longest time between two looks of the driver, in the last one or two minutes."
    yield _gauge("driver_longest_pause_seconds", text, {}, driver.longest_pause_s)
    for name, text, histogram in (
        ("driver_lag_seconds", "From the end of a task to its commit.", driver.lag_s),
        ("commit_seconds", "Time of a commit of the ledger.", driver.commit_s),
        ("commit_records", "Records in a commit of the ledger.", driver.commit_records),
    ):
        yield _histograms(name, text, [], {"": histogram})


def _gauge(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    return _gauges(name, text, list(labels), {tuple(labels.values()): value})


def _gauges(name: str, text: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    return _filled(GaugeMetricFamily(f"datapipe_run_{name}", text, labels=labels), values)


def _counters(name: str, text: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    return _filled(CounterMetricFamily(f"datapipe_run_{name}", text, labels=labels), values)


def _histograms(name: str, text: str, labels: list[str], values: Mapping[str, Histogram]) -> Metric:
    """Histograms by the value of their label, if they have one."""
    family = HistogramMetricFamily(f"datapipe_run_{name}", text, labels=labels)
    for value, histogram in list(values.items()):
        bounds = [*map(str, histogram.bounds), "+Inf"]
        family.add_metric([value] if labels else [], list(zip(bounds, accumulate(histogram.counts))), histogram.total)
    return family


def _filled(family: Any, values: Mapping[Any, float]) -> Metric:
    for labels, value in values.items():
        family.add_metric(list(labels), value)
    return family


def serve_run(state: RunState, about: dict[str, str], port: int, address: str = "127.0.0.1") -> MetricsServer:
    """Serves the figures of a run at http://address:port/metrics, from a thread. Raises UserError for a taken port."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunMetrics(state, about))
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise UserError(
            f"--metrics-port: cannot serve metrics at {address}:{port}: {error.strerror}. Give another port, "
            f"or see with `datapipe status` whether this run is at work already."
        ) from error
    return MetricsServer(server, thread)
