"""Figures of the driver: what its engine holds, how long it takes to commit, and whether it keeps up.

    engine hands over the end of a task ─▶ waits for its group ─▶ commit of the ledger
                  └──────────────── lag ────────────────────────────────┘

The driver's thread writes, others read. The size is constant.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RECORDS = (1, 3, 10, 30, 100, 300, 1000, 3000)
_WINDOW_S = 60.0

R = TypeVar("R")
S = TypeVar("S")


class Histogram:
    """Numbers by the first bound that is not below them.

    Attributes:
        counts: of the numbers up to each bound and above the bound before; the last of those above every bound.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = tuple(bounds), [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def plus(self, other: Histogram | None) -> Histogram:
        """The numbers of both, which have the same bounds."""
        both = Histogram(self.bounds)
        both.counts = [a + b for a, b in zip(self.counts, other.counts)] if other else list(self.counts)
        both.total = self.total + (other.total if other else 0.0)
        return both


class DriverFigures:
    """What the driver counts of itself, in this process.

    Attributes:
        slots: tasks that the engine runs at once, as of the last look.
        queued: tasks that could run and wait for a slot, here or in the engine.
        waits_for: the disk or store whose outage all tasks wait for, until something is written; empty for none.
        lag_s: for each committed task, seconds from its end, as the engine handed it over, to its commit.
        commit_s, commit_records: for each commit of the ledger.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.slots = self.queued = 0
        self.waits_for = ""
        self.lag_s, self.commit_s, self.commit_records = Histogram(_SECONDS), Histogram(_SECONDS), Histogram(_RECORDS)
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
        self.commit_s.add(self._clock() - began)
        return committed

    def committed(self, handed_over: Iterable[float]) -> None:
        """Takes the times at which the tasks of a commit ended."""
        now, number = self._clock(), 0
        for each in handed_over:
            self.lag_s.add(now - each)
            number += 1
        self.commit_records.add(number)
