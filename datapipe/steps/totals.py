"""The sums over the committed tasks of a step, each of which decodes its record once."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, Protocol, Self

from datapipe.dataclass import dataclass, field
from datapipe.metrics import DocumentCounts, Work, add_to
from datapipe.records.outputs import OutputFile, Record

TASK_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Upper bounds of the histogram of the times of tasks."""


class Summed(Protocol):
    """The numbers of a kind of work, which can be added up."""

    def add(self, other: Self) -> None: ...


@dataclass(slots=True)
class Totals:
    tasks: int = 0
    microseconds: int = 0  # whole ones: their sum is the same in any order of the tasks, and never falls
    # slowest_s, slowest: of the slowest task: its time, and the first digits of its fingerprint
    slowest_s: float = 0.0
    slowest: str = ""
    durations: Counter[int] = field(default_factory=Counter)  # tasks by the number of their bound in `TASK_SECONDS`
    documents: DocumentCounts = field(default_factory=DocumentCounts)
    work: dict[str, Work] = field(default_factory=dict)  # by name, in the order of the first task that has it
    own: Any = None  # of the kind of work, as its `metrics_type`; None where that is None
    rows: Counter[str] = field(default_factory=Counter)  # of the files that the tasks wrote, by their kind
    bytes: int = 0  # of all these files
    peak_bytes: int = 0
    rereads: int = 0
    second_attempts: Counter[str] = field(default_factory=Counter)  # tasks that had one, "won" or "lost"

    @property
    def seconds(self) -> float:
        return self.microseconds / 1e6

    def add(self, record: Record) -> None:
        content = record.content
        metrics = content.metrics
        self.tasks += 1
        self.microseconds += round(metrics.seconds * 1e6)
        if metrics.seconds > self.slowest_s:
            self.slowest_s, self.slowest = metrics.seconds, record.fingerprint[:12]
        self.durations[bisect_left(TASK_SECONDS, metrics.seconds)] += 1
        self.documents.add(metrics.document_counts)
        for name, work in metrics.work.items():
            add_to(self.work, name, work)
        if self.own is not None:
            self.own.add(metrics.of(type(self.own)))
        for kind, files in content.outputs.items():
            if files:
                self.rows[kind] += sum(file.rows for file in files)
                self.bytes += sum(file.bytes for file in files)
        self.peak_bytes = max(self.peak_bytes, metrics.peak_bytes)
        self.rereads += metrics.rereads
        if metrics.second_attempt:
            self.second_attempts[metrics.second_attempt] += 1


class Records(tuple[Record, ...]):
    """The records of the committed tasks of a step, in task order. What the plans of a run take from them is kept, since each
    record is decoded for it."""

    _before: Records | None = None
    _totals: Totals | None = None
    _outputs: dict[str, tuple[OutputFile, ...]] | None = None  # by kind

    def outputs(self, kind: str) -> tuple[OutputFile, ...]:
        """The files of a kind."""
        known = self._outputs = {} if self._outputs is None else self._outputs
        if kind not in known:
            known[kind] = tuple(output for record in self for output in record.outputs.get(kind, ()))
        return known[kind]

    def growing(self, before: Records) -> Self:
        """The same, where those `before` are among them, so that their sums count for them."""
        self._before = before if before._before is None else before._before  # no chain of plans without sums
        return self

    def totals(self, own: type[Summed] | None) -> Totals:
        """Their sums. `own` is the `metrics_type` of their kind of work."""
        if self._totals is None:
            before = self._before
            if before is None:
                self._totals = _added(Totals(own=None if own is None else own()), self)
            else:
                known = {record.fingerprint for record in before}
                fresh = (record for record in self if record.fingerprint not in known)
                self._totals = _added(deepcopy(before.totals(own)), fresh)
            self._before = None
        return self._totals


def _added(totals: Totals, records: Iterable[Record]) -> Totals:
    for record in records:
        totals.add(record)
    return totals
