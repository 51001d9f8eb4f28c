"""Sums of a run by the name of a figure and its labels, for Prometheus: over committed tasks, and of the driver itself."""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self

from datapipe.metrics import DocumentCounts
from datapipe.records.outputs import Record
from datapipe.steps.kind import Plan, Step
from datapipe.steps.tokenize import TokenizeMetrics, TokenizeTask

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WINDOW_S = 60.0

BOUNDS: Mapping[str, Sequence[float]] = {
    "task_duration_seconds": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0),
    "driver_lag_seconds": _SECONDS,
    "commit_seconds": _SECONDS,
    "commit_records": (1, 3, 10, 30, 100, 300, 1000, 3000),
}
"""The histograms."""


class Figures(dict[tuple[str, ...], float]):
    """Sums by the name of a figure and its labels. A histogram has one for each bucket, "+Inf" the last, and
    "sum"."""

    def __missing__(self, key: tuple[str, ...]) -> float:
        return 0

    def observe(self, name: str, *labels: str, value: float) -> None:
        bounds = BOUNDS[name]
        index = bisect_left(bounds, value)
        self[name, *labels, str(bounds[index]) if index < len(bounds) else "+Inf"] += 1
        self[name, *labels, "sum"] += value

    def add(self, others: Mapping[tuple[str, ...], float]) -> Self:
        """Adds other sums, and returns these."""
        for key, value in dict(others).items():
            self[key] += value
        return self


class Sums(Figures):
    """Sums over the committed tasks of a plan, as `metrics.py` names them. Documents are by source and fate:
    read, kept, dropped, quarantined."""

    def __init__(self, plan: Plan | None = None) -> None:
        maps = [] if plan is None else plan.of_kind("map")
        self._first = {step.source: step.id for step in reversed(maps)}
        self._last = {step.source: step.id for step in maps}

    def count(self, step: Step, records: Iterable[Record]) -> None:
        for record in records:
            metrics = record.metrics
            self["task_seconds", step.id] += metrics.seconds
            self.observe("task_duration_seconds", step.kind, value=metrics.seconds)
            self["tokens", step.source] += metrics.of(TokenizeMetrics).tokens if step.work is TokenizeTask else 0
            if metrics.second_attempt:
                self["second_attempts", metrics.second_attempt] += 1
            self["output_bytes", step.kind] += sum(file.bytes for files in record.outputs.values() for file in files)
            if step.kind == "map":
                self._count_documents(step, metrics.document_counts)

    def _count_documents(self, step: Step, counts: DocumentCounts) -> None:
        source = step.source
        self["documents", source, "dropped"] += counts.dropped.total()
        self["documents", source, "quarantined"] += counts.quarantined
        if step.id == self._first[source]:
            self["documents", source, "read"] += counts.read
            self["input_bytes", source] += counts.read_bytes
        if step.id == self._last[source]:
            self["documents", source, "kept"] += counts.kept


class Pauses:
    """The longest time between two updates of the driver, of the last one or two minutes. `clock` is
    monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.end()

    def update(self) -> None:
        now = self._clock()
        if now - self._window >= _WINDOW_S:
            self._window, self._longest = now, (0.0, self._longest[0])
        if self._updated is not None:
            self._longest = max(self._longest[0], now - self._updated), self._longest[1]
        self._updated = now

    def end(self) -> None:
        """No more updates come."""
        self._window, self._longest = 0.0, (0.0, 0.0)
        self._updated: float | None = None

    @property
    def longest_s(self) -> float:
        updated = self._updated
        return max(*self._longest, 0.0 if updated is None else self._clock() - updated)
