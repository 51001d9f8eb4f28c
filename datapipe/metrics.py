"""The numbers of a task, and their sums over committed tasks, so a resumed run reports the same.

per task and source:   read = kept + Σ dropped by reason + quarantined            (`DocumentCounts.check`)
along a source:        kept of one step = read of the next                        (`steps.counts`)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter

from datapipe.dataclass import dataclass, field
from datapipe.errors import DatapipeError
from datapipe.machine.activity import doing, work_clock
from datapipe.quantities import rate_mb_per_s
from datapipe.token_counts import Sums

MAX_QUARANTINE_REASONS = 20
Item = TypeVar("Item")
Own = TypeVar("Own")
Name = TypeVar("Name", str, int)
Numbers = TypeVar("Numbers", bound=Sums)
_REASON_CHARS = 120
_NUMBER = re.compile(r"(?<![\w-])\d+(?:[,._]\d+)*")


def quarantine_reason(stage: str, error: str) -> str:
    """Stage and last line of an error: "my_module:Stage: ValueError: no number". Numbers become N, to count errors by kind."""
    last_line = error.strip().rpartition("\n")[2].rstrip(".")
    return f"{stage}: {_NUMBER.sub('N', last_line)[:_REASON_CHARS]}"


@dataclass(slots=True)
class DocumentCounts(Sums):
    """Counts of the documents that entered one step of one source."""

    # read, kept, quarantined: documents
    read: int = 0
    # read_bytes, kept_bytes: UTF-8 bytes of their text
    read_bytes: int = 0
    kept: int = 0
    kept_bytes: int = 0
    quarantined: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # documents by reason, "stage:rule"
    # of the stages, "stage:name": replaced spans, cut bytes and the like. Not documents.
    counts: Counter[str] = field(default_factory=Counter)
    # quarantined documents by stage and error; see `quarantine`
    quarantine_reasons: Counter[str] = field(default_factory=Counter)

    def quarantine(self, stage: str, error: str) -> None:
        """Counts a document in quarantine. A task has at most `MAX_QUARANTINE_REASONS` reasons."""
        self.quarantined += 1
        reason = quarantine_reason(stage, error)
        is_known = reason in self.quarantine_reasons or len(self.quarantine_reasons) < MAX_QUARANTINE_REASONS
        self.quarantine_reasons[reason if is_known else f"{stage}: other errors"] += 1

    def check(self, where: str) -> None:
        """Raises DatapipeError unless every document that was read is accounted for."""
        accounted = self.kept + self.dropped.total() + self.quarantined
        if self.read != accounted:
            raise DatapipeError(
                f"{where}: the document counts do not add up: read {self.read}, but kept {self.kept} + dropped "
                f"{self.dropped.total()} + quarantined {self.quarantined} = {accounted}. "
                f"A stage lost or invented documents. This is a defect of datapipe or of a stage of yours."
            )


@dataclass(slots=True)
class Work(Sums):
    """Time and input of work under one name: a stage, reading, writing."""

    seconds: float = 0.0  # wall time, summed over tasks
    bytes: int = 0  # of the input: of text, or of rows where rows are moved
    documents: int = 0  # in the input; 0 for work on rows

    # as that of `Sums`, in a third of its time: every task has many kinds of work
    def add(self, other: Self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.seconds += other.seconds
        self.bytes += other.bytes
        self.documents += other.documents

    @property
    def mb_per_s(self) -> float | None:
        rate = rate_mb_per_s(self.bytes, self.seconds)
        return None if rate is None else round(rate, 3)


@dataclass(slots=True)
class Packing(Sums):
    """How documents went into rows of one length."""

    rows: int = 0
    tokens: int = 0  # in rows; with `padding_tokens` they fill `rows` whole rows
    padding_tokens: int = 0
    documents: int = 0  # with at least one token in a row
    split_documents: int = 0  # of these, documents that are split over several spans, or lost a part
    pieces: int = 0  # spans of documents in rows
    # dropped_tokens, dropped_documents: tokens in spans too short to keep, or behind what fits into a
    # BOS-aligned row; documents that lost all their tokens
    dropped_tokens: int = 0
    dropped_documents: int = 0
    # of these, documents that fit into a row and are split or cut to keep `pack.max_padding`
    split_for_padding: int = 0

    @property
    def padding_share(self) -> float:
        whole = self.tokens + self.padding_tokens
        return round(self.padding_tokens / whole, 9) if whole else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class UnreadableFile:
    """An input file that is damaged, cut off or of another format, so that an unknown number of its documents is lost."""

    path: str  # relative to the fixed part of its pattern
    position: int  # from where on, as those of documents: byte offset of a line, or row number
    error: str  # what was found and what was expected


@dataclass(slots=True)
class TaskMetrics:
    # documents in and out; empty for tasks on rows
    document_counts: DocumentCounts = field(default_factory=DocumentCounts)
    work: dict[str, Work] = field(default_factory=dict)  # by name, in the order of the data
    # the numbers of its kind of work, a dataclass of the kind; as JSON in a record that was read
    # from the ledger, until `of` is asked for it. None where the kind has none.
    own: Any = field(default=None, compare=False)  # it has one of two forms
    # of a task that had two attempts at once, whether the second one "won" or "lost"; empty for others
    second_attempt: str = ""
    # blocks and files that were read again because their checksum was wrong; see `shards.checksum.intact`
    rereads: int = 0
    seconds: float = 0.0  # wall time of the whole task
    peak_bytes: int = 0  # the worker's peak resident memory when the task ended

    def of(self, kind: type[Own]) -> Own:
        """The numbers of its kind of work."""
        if not isinstance(self.own, kind):
            self.own = _adapter(kind).validate_python(self.own or {})
        return self.own

    def spent(self, name: str, seconds: float, num_bytes: int = 0, num_docs: int = 0) -> None:
        """Adds work that was timed elsewhere."""
        self.work.setdefault(name, Work()).add(Work(seconds, num_bytes, num_docs))

    @contextmanager
    def timed(self, name: str, num_bytes: int = 0, num_docs: int = 0) -> Iterator[Work]:
        """Times a block, publishes it as the current activity, and adds it to the work of this name. The block may correct
        the yielded record. A block that raises is not counted; the time in which it loads kernels is not either."""
        started, work = work_clock(), Work(bytes=num_bytes, documents=num_docs)
        with doing(name, num_bytes):
            yield work
        work.seconds = max(0.0, work.seconds + work_clock() - started)
        self.work.setdefault(name, Work()).add(work)

    def timed_each(self, name: str, items: Iterator[Item], sizes: Callable[[Item], tuple[int, int]]) -> Iterator[Item]:
        """The items, none of which is None. Making each one is timed; its `sizes` are its bytes and its documents."""
        while True:
            with self.timed(name) as work:
                item = next(items, None)
                if item is None:
                    return
                work.bytes, work.documents = sizes(item)
            yield item
            del item  # whoever has it may release it before the next one is made

    def to_json(self) -> dict[str, Any]:
        numbers = _adapter(TaskMetrics).dump_python(self, mode="json", exclude={"own"}, exclude_defaults=True)
        for each in (numbers, *numbers.get("work", {}).values()):
            if "seconds" in each:
                each["seconds"] = round(each["seconds"], 6)
        if self.own is not None:
            is_json = isinstance(self.own, dict)
            own = self.own if is_json else _adapter(type(self.own)).dump_python(self.own, mode="json", exclude_defaults=True)
            numbers |= {"own": own} if own else {}
        return numbers

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TaskMetrics:
        return _adapter(TaskMetrics).validate_python(data)


@lru_cache(maxsize=32)
def _adapter(kind: type[Own]) -> TypeAdapter[Own]:
    return TypeAdapter(kind)


def total_counts(parts: Iterable[DocumentCounts]) -> DocumentCounts:
    total = DocumentCounts()
    for part in parts:
        total.add(part)
    return total


def total_by_name(parts: Iterable[Mapping[Name, Numbers]]) -> dict[Name, Numbers]:
    """The sum of work by name, or of packing by sequence length, in the order of their first appearance."""
    total: dict[Name, Numbers] = {}
    for part in parts:
        for name, numbers in part.items():
            add_to(total, name, numbers)
    return total


def add_to(total: dict[Name, Numbers], name: Name, numbers: Numbers) -> None:
    """Adds numbers to those of the same name."""
    known = total.get(name)
    if known is None:
        known = total[name] = type(numbers)()
    known.add(numbers)


def by_file(unreadable: Iterable[UnreadableFile]) -> tuple[UnreadableFile, ...]:
    """The first damage of each file, by path."""
    first: dict[str, UnreadableFile] = {}
    for file in sorted(unreadable, key=lambda file: (file.path, file.position)):
        first.setdefault(file.path, file)
    return tuple(first.values())
