"""Which cells a source has, found before its documents are tokenized, and how many bytes of token rows each has.

    cleaned documents ─▶ grid: the columns of `split.by` ─▶ scores of each column of quantiles ─▶ rank, narrow ─▶ its borders
                                                        └─▶ parts of names, borders ─▶ cells, some files each ─▶ cells, one task
    token rows ─▶ bytes by cell ─▶ cell_sizes, one task ─▶ where the ranges of the pack tasks begin

The cells are sorted by name. Of files that are added, names and borders of the snapshot before stay,
and new names follow. Only the columns of `by` are read. Memory: a batch of documents, and the names
of the cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from datapipe.columns import full_schema, numbers
from datapipe.dataclass import asdict, dataclass, field, replace
from datapipe.exchange.tables import TableWriter, read_table
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import CELL_SIZES, CELLS, Outputs, TableFile
from datapipe.steps.cells import Axis, Codes, check_number, column_of, joined_parts, parts_of
from datapipe.steps.costs import StepCost, Texts, seconds_of
from datapipe.steps.fold import fewest
from datapipe.steps.growth import Files, Growth, Reads, StepSize
from datapipe.steps.kind import LEFT_OUT, Fields, Plan, Planning, Step, Task, documents_of, entering, file_checksums
from datapipe.steps.rank import file_groups, find_cuts, found_cuts, name_in_split, scores_of
from datapipe.storage.root import Root

if TYPE_CHECKING:
    from datapipe.config.sources.split import AxisSpec

PARTS = "parts"
"""Output of grid tasks: the parts of documents by columns without quantiles."""

_NAMES_SCHEMA = full_schema(cell=pa.string())
_MB_PER_S = 500.0  # of text, whose columns are read: about the speed at which files are compared with their checksums
_COLUMNS = 0.005  # bytes written per byte of text
_ENTER_AXES = entering(lambda axes: [asdict(axis) for axis in axes])


@dataclass(frozen=True, kw_only=True, slots=True)
class GridTask(Task):
    """Copies from documents what decides their cells: scores of columns of quantiles, and parts of the other columns."""

    kind, version, of_tokens, libraries = "grid", 3, True, ("pyarrow",)
    options = ("seed", "sources.SOURCE.split.by")

    before: str  # fingerprint of the task that wrote `documents`
    documents: tuple[TableFile, ...] = field(metadata=LEFT_OUT)  # they follow from `before`
    axes: tuple[Axis, ...] = field(metadata=_ENTER_AXES)

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        metrics, cells = TaskMetrics(), set[str]()
        tables = {output: TableWriter(root, f"{folder}/{number}.arrow") for number, output in enumerate(outputs_of(self.axes))}
        wanted = ("key", *(axis.column for axis in self.axes))
        read = (rows for file in self.documents for rows in read_table(root, file, wanted))
        for rows in metrics.timed_each("read columns", read, lambda rows: (rows.nbytes, rows.num_rows)):
            with metrics.timed("find cells", rows.nbytes, rows.num_rows):
                others: dict[str, Codes] = {}
                for axis in self.axes:
                    if axis.quantiles:
                        where = f"sources.{self.source}.split.by"
                        scores = axis.scores(column_of(axis, rows, where), rows.column("key"), self.seed, where)
                        tables[scores_of(name_in_split(axis.column))].add(scores)
                    else:
                        others[axis.column] = parts_of(axis, rows, self.seed, self.source)
                if others:
                    parts = {
                        name: pa.array(names, pa.string()).take(pa.array(codes)) for name, (codes, names) in others.items()
                    }
                    tables[PARTS].add(pa.record_batch(parts))
                    cells.update(joined_parts([*others.values()])[1])
                    check_number(cells, [*others], self.source)
        return {output: table.finish() for output, table in tables.items()}, metrics

    @classmethod
    def cost(cls, plan: Plan, step: Step, texts: Texts) -> Iterator[StepCost]:
        text = texts.cleaned[step.source]
        yield StepCost(text * _COLUMNS, seconds_of(text, _MB_PER_S))

    @classmethod
    def plan_source(cls, planning: Planning, source: str) -> None:
        spec, cleaned = planning.mixture.sources[source].split, planning.cleaned(source)
        if spec is None:
            return
        axes = tuple(map(Axis.of, spec.by))
        documents = map(documents_of, cleaned.records) if cleaned.is_committed else None
        grid = planning.add(cls, f"{source}/grid", "read the columns of cells", documents, source=source, axes=axes)
        for number, axis in enumerate(axes):
            if axis.quantiles:
                shares = [Fraction(axis.quantiles - part, axis.quantiles) for part in range(1, axis.quantiles)]
                cuts = find_cuts(planning, source, name_in_split(axis.column), shares, grid)
                axes = (*axes[:number], replace(axis, cuts=cuts or ()), *axes[number + 1 :])
        is_found = all(len(axis.cuts) + 1 == (axis.quantiles or 1) for axis in axes)
        CellsTask.add_steps(planning, source, axes, grid if grid.is_committed and is_found else None)


@dataclass(frozen=True, slots=True)
class CellsMetrics:
    """The names of the cells, by number. Those of all stand in a record, so a plan reads no file."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CellsTask(Task):
    """Lists the cells of a source, by name, those of the snapshot before first: of what grid tasks wrote (`inputs`, by their
    outputs), and of lists of tasks like this one (`lists`)."""

    kind, version, of_tokens = "cells", 1, True

    axes: tuple[Axis, ...] = field(metadata=_ENTER_AXES)
    inputs: Mapping[str, tuple[TableFile, ...]] = field(
        default_factory=dict, metadata=entering(lambda inputs: {name: file_checksums(files) for name, files in inputs.items()})
    )
    lists: tuple[TableFile, ...] = field(default=(), metadata=entering(file_checksums))
    earlier: tuple[str, ...] = ()
    is_last: bool

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        metrics, cells = TaskMetrics(), set(self.earlier)
        with metrics.timed("list cells") as work:
            for file in self.lists:
                cells.update(*(rows.column("cell").to_pylist() for rows in read_table(root, file)))
                work.bytes += file.row_bytes
            for files in zip(*self.inputs.values(), strict=True):
                for batches in zip(*(read_table(root, file) for file in files), strict=True):
                    cells.update(self._cells_in(dict(zip(self.inputs, batches))))
                    work.bytes += sum(rows.nbytes for rows in batches)
                    check_number(cells, [axis.column for axis in self.axes], self.source)
            check_number(cells, [axis.column for axis in self.axes], self.source)
            writer = TableWriter(root, f"{folder}/cells.arrow")
            names = [*self.earlier, *sorted(cells.difference(self.earlier))]
            writer.add(pa.record_batch([pa.array(names, pa.string())], schema=_NAMES_SCHEMA))
            metrics.own = CellsMetrics(tuple(names)) if self.is_last else None
            return {CELLS: writer.finish()}, metrics

    def _cells_in(self, batches: Mapping[str, pa.RecordBatch]) -> list[str]:
        return joined_parts([self._codes(axis, batches) for axis in self.axes])[1]

    def _codes(self, axis: Axis, batches: Mapping[str, pa.RecordBatch]) -> Codes:
        if axis.quantiles:
            codes, names = axis.parts_of_scores(batches[scores_of(name_in_split(axis.column))])
            occurring, codes = np.unique(codes, return_inverse=True)
            return codes, [names[code] for code in occurring.tolist()]
        parts = batches[PARTS].column(axis.column).dictionary_encode()
        return numbers(parts.indices).astype(np.int64), parts.dictionary.to_pylist()

    @classmethod
    def add_steps(cls, planning: Planning, source: str, axes: tuple[Axis, ...], grid: Step | None) -> None:
        """Adds the steps that list the cells, once the grid (None before) and its borders are known."""
        before = planning.request.added_to
        known = None if before is None or source not in before.sources else before.sources[source].cells
        common = {"source": source, "axes": axes}
        groups = None if grid is None else [*_groups(grid, outputs_of(axes), planning.bucket_bytes // 4)]
        last: list[Fields] | None = None if groups is None else [{"inputs": groups[0] if groups else {}}]
        if groups is not None and len(groups) > 1:
            own = ({"inputs": inputs} for inputs in groups)
            listed = planning.add(cls, f"{source}/cells-of-parts", "list cells", own, is_last=False, **common)
            last = [{"lists": listed.outputs(CELLS, TableFile)}] if listed.is_committed else None
        earlier = () if known is None else known.names
        planning.add(cls, f"{source}/cells", "list all cells", last, earlier=earlier, is_last=True, **common)

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        """As many tasks as there are groups of what the grid tasks write, and one for their lists."""
        files = sum(growth.steps[f"{step.source}/grid"].writes.values(), Files())
        num_groups = math.ceil(4 * files.row_bytes / growth.bucket_bytes)
        growth.add(step, num_groups + 1 if num_groups > 1 else 1, Reads.whole(files))


@dataclass(frozen=True, slots=True)
class CellSizesMetrics:
    """About the bytes that the token rows of each cell take in memory, by its number. They stand in the record."""

    bytes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CellSizesTask(Task):
    """Adds up the bytes of the token rows of each cell."""

    kind, version, of_tokens = "cell_sizes", 1, True

    sizes: tuple[TableFile, ...] = field(metadata=entering(file_checksums))
    num_cells: int

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        metrics, total = TaskMetrics(), np.zeros(self.num_cells, np.int64)
        with metrics.timed("add up the sizes of cells", sum(file.row_bytes for file in self.sizes)):
            for file in self.sizes:
                for rows in read_table(root, file):
                    np.add.at(total, numbers(rows.column("cell")), numbers(rows.column("bytes")))
        metrics.own = CellSizesMetrics(tuple(total.tolist()))
        return {}, metrics

    @classmethod
    def plan_source(cls, planning: Planning, source: str) -> None:
        if planning.mixture.sources[source].split is None:
            return
        tokenized, cells = (planning.known[f"{source}/{step}"] for step in ("tokenize", "cells"))
        own = None
        if tokenized.is_committed and all(step.is_committed for step in planning.plan.of_kind("fold", source)):
            sizes = fewest(planning.plan, tokenized, CELL_SIZES, TableFile)
            own = [{"sizes": sizes, "num_cells": sum(file.rows for file in cells.outputs(CELLS))}]
        planning.add(cls, f"{source}/cell-sizes", "add up the sizes of cells", own, source=source)

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        growth.add(step, 1, factor=1.0)


def _groups(grid: Step, outputs: Sequence[str], group_bytes: int) -> Iterator[dict[str, tuple[TableFile, ...]]]:
    """What some grid tasks wrote, by output, together about `group_bytes` in memory."""
    for group in file_groups(grid.outputs(outputs[0], TableFile), max(1, group_bytes // len(outputs))):
        chosen = {file.path for file in group}
        files = {output: grid.outputs(output, TableFile) for output in outputs}
        rows = [number for number, file in enumerate(files[outputs[0]]) if file.path in chosen]
        yield {output: tuple(listed[number] for number in rows) for output, listed in files.items()}


def outputs_of(axes: Sequence[Axis]) -> list[str]:
    """What a grid task writes: a row for each document in each."""
    others = [PARTS] if any(not axis.quantiles for axis in axes) else []
    return [*others, *(scores_of(name_in_split(axis.column)) for axis in axes if axis.quantiles)]


def names_of(plan: Plan, source: str) -> tuple[str, ...]:
    """The names of the cells of a source that is split, by number; none before they are known."""
    step = next((step for step in plan.steps if step.id == f"{source}/cells"), None)
    return () if step is None or not step.is_committed else step.records[0].metrics.of(CellsMetrics).names


def axes_of(plan: Plan, source: str, specs: Sequence[AxisSpec]) -> tuple[Axis, ...]:
    """The columns by which a source is split, with the borders that a plan, or an earlier one, has found."""
    steps = (*plan.earlier, *plan.steps)
    return tuple(Axis.of(spec, found_cuts(steps, source, name_in_split(spec.column)) or ()) for spec in specs)
