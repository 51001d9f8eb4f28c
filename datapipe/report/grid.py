"""The grid of a source that is cut into cells: what each cell has, and what training draws of it.

    snapshot, order of the run  ─▶  `grids`  ─▶  Grid of each source  ─▶  `cells`: tables, with a heat map of all cells

Columns of a table are the last axis, rows the others. A table has at most 20 rows and 10 columns: of a larger grid it has sums
over axes, over neighbours of numbers, and over the words with least tokens. Its note says so.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import ceil, floor
from typing import Self

import numpy as np
from pydantic import Field

from datapipe import columns
from datapipe.dataclass import dataclass
from datapipe.loader.order.sample_order import SampleOrder
from datapipe.quantities import counted, spans
from datapipe.report.cells import Amount, Cell, Section, Share, Table
from datapipe.report.drawing import HeatMap
from datapipe.report.records import Record, Summary
from datapipe.shards.leaves import leaf_name
from datapipe.shards.manifest import Snapshot
from datapipe.shards.shard_table import ShardTable
from datapipe.shards.source_entry import CellAxis, Cells

_MOST_ROWS, _MOST_COLUMNS, _MOST_NAMED = 20, 10, 10
_MOST_BORDERS = 9  # of an axis that a note lists
_NONE = "none"  # the part of documents without a value
_ALL = "all"
_ENDLESS = 1 << 40  # rows of an endless run by which its shares are computed: every cell is within three of its exact share


class GridCell(Record):
    """A cell of a source. Epochs of an endless run are None."""

    documents: int
    tokens: int  # of its text, once
    repeat: float  # in an epoch
    share: float  # of all tokens drawn
    epochs: float | None
    max_epochs: float | None
    is_exhausted: bool  # whether the run draws all that its max_epochs allow, but for one row at most

    @property
    def times(self) -> float:
        """How often the run draws the documents that it draws most; 0 for an endless run."""
        return (self.epochs or 0.0) * ceil(self.repeat)


class Grid(Record):
    axes: tuple[CellAxis, ...]
    cells: dict[str, GridCell]

    @property
    def exhausted(self) -> list[str]:
        """The cells that reach their max_epochs, those with most tokens first."""
        return sorted((name for name, cell in self.cells.items() if cell.is_exhausted), key=lambda n: -self.cells[n].tokens)


class WithGrids(Summary):
    grids: dict[str, Grid] = Field(default={})


def grids(snapshot: Snapshot, order: SampleOrder) -> dict[str, Grid]:
    """The grid of each source that is cut into cells. `order`: of the run over the snapshot."""
    drawn = dict(zip(order.mixture.sources, order.mixture.counts(order.num_samples or _ENDLESS)))
    total = sum(drawn.values()) or 1
    found: dict[str, Grid] = {}
    for source, entry in snapshot.sources.items():
        if entry.cells is not None:
            made: dict[str, GridCell] = {}
            for number, (name, (documents, tokens)) in enumerate(_sums(snapshot, source, entry.cells).items()):
                leaf, limit = leaf_name(source, name), entry.cells.max_epochs[number]
                count, rows = drawn.get(leaf, 0), order.inventory.sizes.get(leaf, 0)
                is_known = order.num_samples is not None and rows > 0
                made[name] = GridCell(
                    documents=documents,
                    tokens=tokens,
                    repeat=float(Fraction(entry.cells.repeats[number])),
                    share=count / total,
                    epochs=round(count / rows, 6) if is_known else None,
                    max_epochs=limit,
                    is_exhausted=is_known and limit is not None and 0 < count >= floor(Fraction(repr(limit)) * rows) - 1,
                )
            found[source] = Grid(axes=entry.cells.axes, cells=made)
    return found


def _sums(snapshot: Snapshot, source: str, cells: Cells) -> dict[str, tuple[int, int]]:
    """Documents and tokens of the training rows of each cell."""
    runs = ShardTable.of(snapshot.shards).of_source(source, "train").column("cells").flatten()
    cell, documents, tokens = (columns.numbers(runs.field(name)) for name in ("cell", "documents", "tokens"))
    sums = np.zeros((len(cells.names), 2), np.int64)
    np.add.at(sums, cell, np.column_stack([documents, tokens]))
    return {name: (documents, tokens) for name, (documents, tokens) in zip(cells.names, sums.tolist())}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Axis:
    """An axis of a grid, with its parts of the names of cells in the order in which they are shown."""

    name: str
    parts: Sequence[str]
    is_numbered: bool

    @classmethod
    def of(cls, axis: CellAxis, tokens: Mapping[str, int]) -> Self:
        """Numbers ascend; words follow each other by their tokens, most first."""
        numbers = {part: int(part) for part in tokens if part.removeprefix("-").isdecimal()}
        is_numbered = len(numbers) + (_NONE in tokens) == len(tokens)
        least = (lambda part: (part == _NONE, numbers.get(part, 0))) if is_numbered else (lambda part: (-tokens[part], part))
        return cls(name=axis.column, parts=sorted(tokens, key=least), is_numbered=is_numbered)

    def groups(self, most: int) -> tuple[dict[str, str], str]:
        """The group of each part, of at most `most` groups; and a note where they have several parts."""
        parts, count = self.parts, len(self.parts)
        if count <= most:
            return {part: part for part in parts}, ""
        if self.is_numbered:
            size = -(-count // most)
            firsts = [at - at % size for at in range(count)]
            names = ["–".join(dict.fromkeys((parts[first], parts[min(first + size, count) - 1]))) for first in firsts]
            return dict(zip(parts, names)), f"{self.name}: {size} together"
        others = f"{count - most + 1:,} others"
        note = f"{self.name}: the {most - 1} with most tokens, and {others} together"
        return {part: part if at < most - 1 else others for at, part in enumerate(parts)}, note


def cells(report: WithGrids) -> Section:
    tables = [table for source, grid in report.grids.items() for table in _tables(source, grid)]
    return Section(anchor="cells", title="Cells", tables=tables)


def _tables(source: str, grid: Grid) -> Iterator[Table]:
    """Tokens, shares, and the cells to look at."""
    axes = _axes(grid)
    ranks = [{part: rank for rank, part in enumerate(axis.parts)} for axis in axes]
    names = sorted(grid.cells, key=lambda name: [rank[part] for rank, part in zip(ranks, name.split("/"))])
    (*of_rows, of_columns), heading, note = _groups(axes, names)
    places = {}
    for name in names:
        *others, last = name.split("/")
        places[name] = "/".join(group[part] for group, part in zip(of_rows, others)) or source, of_columns[last]
    headings = [heading, *dict.fromkeys(of_columns.values()), _ALL]
    by = " × ".join(axis.name for axis in axes)
    for title, kind, key in (
        (f"{source}: tokens of {counted(len(names), 'cell')}, {by}", Amount, "tokens"),
        (f"{source}: what training draws of each cell, as a share of all tokens", Share, "share"),
    ):
        numbers = {name: kind(getattr(grid.cells[name], key)) for name in names}
        drawing = HeatMap(axes=[(axis.name, axis.parts) for axis in axes], numbers=numbers, is_share=kind is Share)
        rows = _rows(places, headings[1:-1], numbers, kind)
        yield Table(title=title, headings=headings, rows=rows, drawing=drawing, note=note, strong=[_ALL])
    yield _named(source, grid)


def _axes(grid: Grid) -> list[_Axis]:
    tokens = [Counter[str]() for _ in grid.axes]
    for name, cell in grid.cells.items():
        for counts, part in zip(tokens, name.split("/")):
            counts[part] += cell.tokens
    return [_Axis.of(axis, counts) for axis, counts in zip(grid.axes, tokens)]


def _groups(axes: Sequence[_Axis], names: Sequence[str]) -> tuple[list[dict[str, str]], str, str]:
    """The groups of parts that make the rows, and last the columns; the heading of the rows; and a note on what is added up."""
    *others, last = axes
    kept = len(others)
    while kept > 1 and len({(*name.split("/")[:kept],) for name in names}) > _MOST_ROWS:
        kept -= 1
    most = _MOST_ROWS if kept == 1 else len(names)  # rows of several axes are few enough
    found = [*(axis.groups(most) for axis in others[:kept]), last.groups(_MOST_COLUMNS)]
    summed = ", ".join(axis.name for axis in others[kept:])
    notes = "; ".join(filter(None, [f"summed over {summed}" if summed else "", *(note for _, note in found)]))
    heading = "/".join(axis.name for axis in others[:kept]) or "source"
    return [group for group, _ in found], heading, f"In the table, {notes}." if notes else ""


def _rows(
    places: Mapping[str, tuple[str, str]], columns: Sequence[str], numbers: Mapping[str, float], kind: type[Amount | Share]
) -> list[list[Cell]]:
    """Rows of sums; the last row and the last column add up the others."""
    sums: defaultdict[tuple[str | None, str | None], float] = defaultdict(float)
    for name, (row, column) in places.items():
        for place in product((row, None), (column, None)):
            sums[place] += numbers[name]
    rows = dict.fromkeys(row for row, _ in places.values())
    return [
        [row or _ALL, *(kind(sums[row, column]) if (row, column) in sums else None for column in (*columns, None))]
        for row in (*rows, *([None] if len(rows) > 1 else []))
    ]


def _named(source: str, grid: Grid) -> Table:
    """The cells of which most is drawn, then those that reach their max_epochs."""
    largest = sorted(grid.cells, key=lambda name: -grid.cells[name].share)
    names = list(dict.fromkeys([*largest[:_MOST_NAMED], *grid.exhausted[:_MOST_NAMED]]))
    rows: list[list[Cell]] = [
        [f"{source}/{name}", each.documents, each.tokens, Share(each.share), each.repeat, each.epochs, each.max_epochs]
        for name, each in ((name, grid.cells[name]) for name in names)
    ]
    title = f"{rows[0][0]} is {grid.cells[names[0]].share:.2%} of all tokens that training draws"
    if count := len(grid.exhausted):
        title += f"; {counted(count, 'cell')} {'reaches its' if count == 1 else 'reach their'} max_epochs"
    headings = ["cell", "documents", "tokens", "share", "repeat", "epochs", "max epochs"]
    return Table(title=title, headings=headings, rows=rows, note=" ".join(_borders(grid)))


def _borders(grid: Grid) -> Iterator[str]:
    for axis in grid.axes:
        if axis.bounds and len(axis.bounds) <= _MOST_BORDERS:
            yield f"{axis.column}: {'; '.join(f'{part} is {span}' for part, span in enumerate(spans(axis.bounds)))}."
