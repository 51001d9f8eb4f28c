"""The figures of runs for Prometheus. A scrape reads the current `RunState`."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate
from time import process_time
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from datapipe.engine.watching.state import BOUNDS, Figures, RunState
from datapipe.machine.http_server import MetricsServer

_COUNTERS = (
    ("documents", "Documents of committed tasks.", ["source", "fate"]),
    ("input_bytes", "UTF-8 bytes of text that was read.", ["source"]),
    ("tokens", "Tokens.", ["source"]),
    ("output_bytes", "Bytes of committed files.", ["kind"]),
    ("failures", "Failed attempts that are tried again.", ["kind"]),
    ("second_attempts", "Tasks that took long and had two attempts at once.", ["second"]),
    ("task_seconds", "Wall time of committed tasks.", ["step"]),
)

_HISTOGRAMS = (
    ("task_duration_seconds", "Wall time of committed tasks.", ["kind"]),
    ("driver_lag_seconds", "From the end of a task to its commit.", []),
    ("commit_seconds", "Time of a commit of the ledger.", []),
    ("commit_records", "Records in a commit of the ledger.", []),
)

_AT_FIRST = {
    "failures": {(kind,): 0 for kind in ("crash", "infrastructure", "memory", "node", "stall", "task")},
    "second_attempts": {("won",): 0, ("lost",): 0},
}
"""Counters that are served before the first: `increase` does not see a counter appear at 1."""

_STEP_STATES = ("waiting", "running", "committed")


class RunMetrics(Collector):
    """A collector for any registry, of all runs of a command.

    Args:
        about: labels of `datapipe_run_info`: mixture, output, engine, version.
    """

    def __init__(self, state: RunState, about: dict[str, str]) -> None:
        self._state, self._about = state, about

    def collect(self) -> Iterator[Metric]:
        state, totals = self._state, self._state.totals()
        yield _gauge("info", "What runs.", self._about, 1)
        yield _tasks(state)
        states = Counter(step.state for step in state.steps.values())
        yield _gauges("steps", "Steps by state.", ["state"], {(name,): states[name] for name in _STEP_STATES})
        for name, text, labels in _COUNTERS:
            counts = {key[1:]: value for key, value in totals.items() if key[0] == name}
            yield _counters(name, text, labels, {**_AT_FIRST.get(name, {}), **counts})
        for name, text, labels in _HISTOGRAMS:
            yield _histograms(name, text, labels, totals)
        memory = {(str(number),): message.memory_bytes for number, message in enumerate(state.messages)}
        yield _gauges("worker_memory_bytes", "Resident memory of each running worker.", ["worker"], memory)
        silent = max((message.silent_s for message in state.messages), default=0.0)
        yield _gauge("longest_silence_seconds", "Of the running attempts.", {}, silent)
        yield _gauges("waiting", "1 for what attempts wait for.", ["what"], {(what,): 1 for what in state.waiting()})
        yield _counters("driver_cpu_seconds", "CPU of the driver's process.", [], {(): process_time()})
        yield _gauge("slots", "Tasks that the engine runs at once.", {}, state.slots)
        yield _gauge("queued_tasks", "Tasks that wait for a slot.", {}, state.queued)
        text = "Longest time between two updates of the driver, in the last one or two minutes."
        yield _gauge("driver_longest_pause_seconds", text, {}, state.pauses.longest_s)
        left = state.time_left()
        if left is not None:
            bound = {"bound": "least" if left.is_least else "about"}
            yield _gauge("estimated_seconds_left", "Until all steps are committed.", bound, left.seconds)
        yield _counters("published", "New snapshots that this process has published.", [], {(): state.num_published})
        if state.listed_at is not None:
            yield _gauge("looked_timestamp_seconds", "When --follow last listed the sources.", {}, state.listed_at)


def _tasks(state: RunState) -> Metric:
    running, values = state.running, {}
    for step_id, step in state.steps.items():
        if step.planned is not None:
            labels, left = (step_id, step.step.source, step.step.kind), step.planned - step.totals.tasks
            values[*labels, "committed"], values[*labels, "running"] = step.totals.tasks, min(running[step_id], left)
            values[*labels, "pending"] = left - min(running[step_id], left)
    return _gauges("tasks", "Tasks of the steps that are planned.", ["step", "source", "kind", "state"], values)


def _gauge(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    return _gauges(name, text, list(labels), {tuple(labels.values()): value})


def _gauges(name: str, text: str, labels: list[str], values: Mapping[Any, float], kind: Any = GaugeMetricFamily) -> Metric:
    family = kind(f"datapipe_run_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family


_counters = partial(_gauges, kind=CounterMetricFamily)


def _histograms(name: str, text: str, labels: list[str], totals: Figures) -> Metric:
    family = HistogramMetricFamily(f"datapipe_run_{name}", text, labels=labels)
    bounds = [*map(str, BOUNDS[name]), "+Inf"]
    for values in dict.fromkeys(key[1:-1] for key in totals if key[0] == name) if labels else [()]:
        counts = accumulate(totals[name, *values, bound] for bound in bounds)
        family.add_metric(list(values), list(zip(bounds, counts)), totals[name, *values, "sum"])
    return family


def serve_runs(state: RunState, about: dict[str, str], port: int) -> MetricsServer:
    """Serves http://127.0.0.1:port/metrics from a thread. Raises UserError for a taken port."""
    return MetricsServer("127.0.0.1", port, "--metrics-port", RunMetrics(state, about)).start()
