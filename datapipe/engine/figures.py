"""Figures of a run, and of its driver: what its engine holds, how long it takes to commit, and whether it keeps up.

    engine hands over the end of a task ─▶ waits for its group ─▶ commit of the ledger
                  └──────────────── lag ────────────────────────────────┘

The driver's thread writes, others read. The size is constant.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WINDOW_S = 60.0

BOUNDS: Mapping[str, Sequence[float]] = {
    "task_duration_seconds": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0),
    "driver_lag_seconds": _SECONDS,
    "commit_seconds": _SECONDS,
    "commit_records": (1, 3, 10, 30, 100, 300, 1000, 3000),
}
"""The figures that are histograms."""

R = TypeVar("R")
S = TypeVar("S")


class Figures(dict[tuple[str, ...], float]):
    """Sums by the name of a figure and its labels. A histogram has one by each bound, of the numbers up to it and above the
    bound before, one by "+Inf", and "sum"."""

    def __missing__(self, key: tuple[str, ...]) -> float:
        return 0

    def observe(self, name: str, *labels: str, value: float) -> None:
        """Counts a number in a histogram."""
        bounds = BOUNDS[name]
        index = bisect_left(bounds, value)
        self[name, *labels, str(bounds[index]) if index < len(bounds) else "+Inf"] += 1
        self[name, *labels, "sum"] += value

    def add(self, others: Mapping[tuple[str, ...], float]) -> Figures:
        """Adds other sums, and returns these."""
        for key, value in dict(others).items():
            self[key] += value
        return self


class DriverFigures:
    """What the driver counts of itself, in this process.

    Attributes:
        slots: tasks that the engine runs at once, as of the last look.
        queued: tasks that could run and wait for a slot, here or in the engine.
        waits_for: the disk or store whose outage all tasks wait for, until something is written; empty for none.
        sums: for each committed task, seconds from its end, as the engine handed it over, to its commit; and of each commit of
            the ledger its seconds and records.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.slots = self.queued = 0
        self.waits_for = ""
        self.sums = Figures()
        self._clock = clock
        self._looked: float | None = None
        self._window, self._pauses = 0.0, (0.0, 0.0)

    def look(self, slots: int, queued: int) -> None:
        """Takes what the driver sees when it looks around, a few times a second."""
        now = self._clock()
        self.slots, self.queued = slots, max(0, queued)
        if now - self._window >= _WINDOW_S:
            self._window, self._pauses = now, (0.0, self._pauses[0])
        if self._looked is not None:
            self._pauses = max(self._pauses[0], now - self._looked), self._pauses[1]
        self._looked = now

    def end(self) -> None:
        """The driver looks no more: every task is committed, or the run ends early."""
        self.slots = self.queued = 0
        self.waits_for = ""
        self._looked, self._pauses = None, (0.0, 0.0)

    @property
    def longest_pause_s(self) -> float:
        """The longest time between two looks of the last one or two minutes, with the time since the last look."""
        looked = self._looked
        return max(*self._pauses, 0.0 if looked is None else self._clock() - looked)

    def timed(self, commit: Callable[[S], R], records: S) -> R:
        """The result of a commit, whose time counts where it succeeds."""
        began = self._clock()
        committed = commit(records)
        self.sums.observe("commit_seconds", value=self._clock() - began)
        return committed

    def committed(self, handed_over: Iterable[float]) -> None:
        """Takes the times at which the tasks of a commit ended."""
        now, times = self._clock(), list(handed_over)
        for each in times:
            self.sums.observe("driver_lag_seconds", value=now - each)
        self.sums.observe("commit_records", value=len(times))
