"""The group of records that is committed next: a commit costs one flush of a disk, or one request of a store, for all."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from datapipe.ledger.commit_files import MOST_RECORDS
from datapipe.plan.work import Record

LONGEST_WAIT_S = 0.1
"""That a finished task waits for its commit. A run that is killed loses what was finished in that time."""


@dataclass(slots=True)
class Pending:
    """Records that wait for their commit.

    Attributes:
        by_step: how many of each step.
        since: when each was added, by the clock.
        clock: seconds, monotonic.
    """

    clock: Callable[[], float] = time.monotonic
    records: list[Record] = field(default_factory=list)
    by_step: Counter[str] = field(default_factory=Counter)
    since: list[float] = field(default_factory=list)

    def add(self, record: Record) -> None:
        self.records.append(record)
        self.since.append(self.clock())
        self.by_step[record.step] += 1

    @property
    def due_in_s(self) -> float:
        """Seconds until the group is to be committed; infinite while there is none."""
        if not self.records:
            return float("inf")
        return 0.0 if len(self.records) >= MOST_RECORDS else max(0.0, self.since[0] + LONGEST_WAIT_S - self.clock())

    def take(self) -> list[Record]:
        """The records, which wait no longer."""
        records, self.records, self.since = self.records, [], []
        self.by_step.clear()
        return records
