"""Where budgets of tokens end: the greatest prefix of documents in the order of their hashes that fits, of many cells at once.

    hash, tokens of each document ─▶ stops, some files each ─▶ tokens and documents in each of 256 parts of a span of hashes
                                     stops, one task        ─▶ the part in which the budget ends, a span of the next round

A span begins as all hashes of a cell. The part is found once it begins with the first document that does not fit: its begin is
the stop, before which all documents stay. It follows from the documents of the cell and its budget alone. Documents of one
hash stay together.

Every document is in one span at most, so a round reads the sizes once, whatever the number of cells. A round leaves about a
256th of the documents of a cell, and 1e10 of them need six. Memory: 4 KiB a cell that is over its budget.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.columns import full_schema, numbers
from datapipe.dataclass import asdict, dataclass, field
from datapipe.exchange.tables import TableWriter, read_table
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import Outputs, TableFile
from datapipe.steps.cells import CELL_SHIFT
from datapipe.steps.growth import Files, Growth, Reads, StepSize
from datapipe.steps.kind import WHERE_GIVEN, Fields, Planning, Step, Task, entering, file_checksums
from datapipe.steps.rank import file_groups
from datapipe.storage.root import Root

SIZES, SUMS, STOPS = "sizes", "sums", "stops"

_BITS = 8  # of a hash that a round finds
_MOST_CELLS = 1 << (64 - CELL_SHIFT)
_GROUPS = 4  # times `execution.bucket_bytes` that a task reads: what it writes depends on the number of cells alone
_SUMS_SCHEMA = full_schema(part=pa.int64(), tokens=pa.int64(), documents=pa.int64())
_STOPS_SCHEMA = full_schema(cell=pa.int64(), stop=pa.uint64())

BudgetOf = Literal["", "all", "each"]
"""What a budget is of: a source without cells, all cells of a source together, or each of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """2 ** `bits` hashes of a cell from `start` on, among which its budget ends: documents there may have `left` tokens. The
    stop is `start` where `bits` is 0."""

    cell: int
    start: int = 0
    bits: int
    left: int


@dataclass(frozen=True, slots=True)
class StopsMetrics:
    """What a round has found of the cells that are over their budgets. It stands in the record, so a plan reads no file."""

    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StopsTask(Task):
    """Adds up the tokens in the parts of spans: of what size tasks wrote (`sizes`), or of sums of tasks like this one (`sums`).
    The last task of a round narrows the spans, and writes the stops that it has found."""

    kind, version, of_tokens = "stops", 1, True
    options = ("sources.SOURCE.max_tokens", "sources.SOURCE.split.max_tokens")

    sizes: tuple[TableFile, ...] = field(default=(), metadata=entering(file_checksums))
    sums: tuple[TableFile, ...] = field(default=(), metadata=entering(file_checksums))
    spans: tuple[Span, ...] = field(metadata=entering(lambda spans: [asdict(span) for span in spans]))
    budget_of: BudgetOf = field(default="", metadata=WHERE_GIVEN)
    is_last: bool

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        metrics, parts = TaskMetrics(), _Parts(self.spans)
        with metrics.timed("add up tokens") as work:
            for file in self.sums:
                for rows in read_table(root, file):
                    work.bytes += rows.nbytes
                    parts.add(*(numbers(rows.column(name)) for name in _SUMS_SCHEMA.names))
            for file in self.sizes:
                for rows in read_table(root, file, ("hash", "tokens")):
                    work.bytes += rows.nbytes
                    parts.add_documents(*places(numbers(rows.column("hash")), self.budget_of), numbers(rows.column("tokens")))
            writer = TableWriter(root, f"{folder}/{STOPS if self.is_last else SUMS}.arrow")
            if not self.is_last:
                writer.add(parts.rows())
                return {SUMS: writer.finish()}, metrics
            metrics.own = StopsMetrics(tuple(parts.narrowed()))
            stops = [(span.cell, span.start) for span in metrics.own.spans if not span.bits]
            arrays = [pa.array(column, each.type) for column, each in zip(zip(*stops), _STOPS_SCHEMA)] if stops else [[], []]
            writer.add(pa.record_batch(arrays, schema=_STOPS_SCHEMA))
            return {STOPS: writer.finish()}, metrics

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        sizes = growth.steps[f"{step.source}/size"].writes.get(SIZES, Files())
        num_groups = math.ceil(sizes.row_bytes / (growth.bucket_bytes * _GROUPS))
        growth.add(step, num_groups + 1 if num_groups > 1 else 1, Reads.whole(sizes))


class _Parts:
    """The tokens and documents in the parts of spans."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._starts, self._widths = (np.zeros(_MOST_CELLS, np.uint64) for _ in range(2))
        self._numbers = np.full(_MOST_CELLS, -1, np.int64)  # of spans, by cell
        for number, span in enumerate(spans):
            self._numbers[span.cell] = number
            self._starts[span.cell], self._widths[span.cell] = span.start, max(0, span.bits - _BITS)
        self._totals = np.zeros((2, len(spans) << _BITS), np.int64)

    def add(self, parts: NDArray[np.int64], tokens: NDArray[np.int64], documents: NDArray[np.int64]) -> None:
        np.add.at(self._totals[0], parts, tokens)
        np.add.at(self._totals[1], parts, documents)

    def add_documents(self, cells: NDArray[np.int64], hashes: NDArray[np.uint64], tokens: NDArray[np.int64]) -> None:
        starts, of_spans = self._starts[cells], self._numbers[cells]
        parts = (hashes - starts) >> self._widths[cells]
        inside = (of_spans >= 0) & (hashes >= starts) & (parts < 1 << _BITS)
        places = (of_spans[inside] << _BITS) + parts[inside].astype(np.int64)
        self.add(places, tokens[inside], np.ones(len(places), np.int64))

    def rows(self) -> pa.RecordBatch:
        parts = np.flatnonzero(self._totals[1])
        return pa.record_batch([pa.array(column) for column in (parts, *self._totals[:, parts])], schema=_SUMS_SCHEMA)

    def narrowed(self) -> Iterator[Span]:
        """The part of each span in which its budget ends; nothing of a span whose documents all fit."""
        for span, tokens, documents in zip(self._spans, *self._totals.reshape(2, -1, 1 << _BITS)):
            most = np.cumsum(tokens)
            part = int(np.searchsorted(most, span.left, side="right"))
            if part < len(most):
                width = max(0, span.bits - _BITS)
                left = span.left - int(most[part] - tokens[part])
                bits = 0 if documents[part] == 1 else width
                yield Span(cell=span.cell, start=span.start + (part << width), bits=bits, left=left)


def places(hashes: NDArray[np.uint64], budget_of: BudgetOf) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The cell of token rows, 0 where a budget is of the source, and their hashes within it: (num_docs,) each."""
    cells = hashes >> np.uint64(CELL_SHIFT) if budget_of == "each" else np.zeros(len(hashes), np.uint64)
    within = hashes & np.uint64((1 << CELL_SHIFT) - 1) if budget_of else hashes
    return cells.astype(np.int64), within


def find_stops(
    planning: Planning, source: str, budgets: Mapping[int, int] | None, budget_of: BudgetOf, sized: Step
) -> tuple[TableFile, ...] | None:
    """The files with the stops of cells that are over their budgets (None: not known yet), or None while they are not known.
    `sized`: the step that wrote the sizes."""
    bits, files = CELL_SHIFT if budget_of else 64, tuple[TableFile, ...]()
    spans = () if budgets is None else tuple(Span(cell=cell, bits=bits, left=budgets[cell]) for cell in sorted(budgets))
    groups = None
    if sized.is_committed:
        groups = [*file_groups(sized.outputs(SIZES, TableFile), planning.bucket_bytes * _GROUPS)]
    for number in count(1):
        common = {"source": source, "spans": spans, "budget_of": budget_of}
        last: list[Fields] | None = None if groups is None else [{"sizes": groups[0] if groups else ()}]
        if groups is not None and len(groups) > 1:
            step_id, own = f"{source}/stops-of-parts-{number}", ({"sizes": group} for group in groups)
            added = planning.add(StopsTask, step_id, f"add up tokens, round {number}", own, is_last=False, **common)
            last = [{"sums": added.outputs(SUMS, TableFile)}] if added.is_committed else None
        label = f"find where budgets end, round {number}"
        found = planning.add(StopsTask, f"{source}/stops-{number}", label, last, is_last=True, **common)
        if not found.is_committed:
            return None
        files += tuple(file for file in found.outputs(STOPS, TableFile) if file.rows)
        spans = tuple(span for span in _spans_of(found) if span.bits)
        if not spans:
            return files
    return None


def found_stops(planning: Planning, source: str) -> dict[int, int] | None:
    """By cell, or by 0 for the source: the hash within it from which on documents are over the budget; without those that fit.
    None while it is not known."""
    stops = dict[int, int]()
    for number in count(1):
        step = planning.known.get(f"{source}/stops-{number}")
        if step is None:
            return stops
        if not step.is_committed:
            return None
        stops |= {span.cell: span.start for span in _spans_of(step) if not span.bits}
    return stops


def _spans_of(step: Step) -> tuple[Span, ...]:
    return step.records[0].metrics.of(StopsMetrics).spans


def read_stops(root: Root, files: Iterable[TableFile]) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """By cell, whether it has a stop, and the stop."""
    has_stop, stops = np.zeros(_MOST_CELLS, np.bool_), np.zeros(_MOST_CELLS, np.uint64)
    for rows in (rows for file in files for rows in read_table(root, file)):
        cells = numbers(rows.column("cell"))
        has_stop[cells], stops[cells] = True, numbers(rows.column("stop"))
    return has_stop, stops
