"""The cells of a source, which is split by columns of its documents: their names, and the order of their token rows.

    columns of a document ─▶ a part for each, by its value, or by borders between numbers ─▶ en/science/19 ─▶ a number

A cell's number is its place among the names (`grid.py`). The hash of a token row begins with the number of its cell, so the
rows of a cell are neighbours in the order of hashes, each cell by the shuffle hashes of its documents:

    bits     63 … 50     49 … 0
             cell        the first 50 bits of the shuffle hash

A cell that is repeated 2.5 times has twice the documents of all its hashes, and once more those of the lower half: so the
documents of 2.3 are among those of 2.5, on any machine, and while a source grows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.cell_names import NONE, part_of
from datapipe.columns import compute as pc
from datapipe.columns import full_schema, key_halves, numbers, numbers_in, ordered
from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.exchange.ranges import HASH_SPACE
from datapipe.exchange.tables import TableWriter, read_table
from datapipe.records.outputs import TableFile
from datapipe.rng import keyed_hash, seed_for
from datapipe.shards import schemas
from datapipe.stage.documents import DocumentBatch
from datapipe.steps.cut import SCORES_SCHEMA, Cut, is_kept
from datapipe.storage.root import Root

if TYPE_CHECKING:
    from datapipe.config.sources.split import AxisSpec

LEAST_DOCUMENT_BYTES = 64
"""The least size of a document in a pack task, which holds as much beside its ids: key, offset, and rows of its pieces. So a
bucket of documents of a few tokens takes no more memory than another one."""

MOST_CELLS = 10_000
CELL_SHIFT = 50
"""Bits of a token row's hash that are of the shuffle hash; those above are the number of its cell."""

SIZES_SCHEMA = full_schema(cell=pa.int32(), bytes=pa.int64())


Codes = tuple[NDArray[np.int64], list[str]]
"""The number of each document's name, (num_docs,), and the names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """A column by which a source is split."""

    column: str
    bounds: tuple[float, ...] = ()
    cuts: tuple[Cut, ...] = ()  # of quantiles, the lowest first; empty while they are not known
    quantiles: int = 0

    @classmethod
    def of(cls, spec: AxisSpec, cuts: tuple[Cut, ...] = ()) -> Axis:
        return cls(column=spec.column, bounds=spec.bounds, cuts=cuts, quantiles=spec.quantiles or 0)

    @property
    def borders(self) -> tuple[float, ...] | None:
        """Between numbers, as manifests have them; None where each value has its own cells."""
        if self.quantiles:
            return tuple(min(cut.threshold, np.finfo(np.float64).max) for cut in self.cuts)
        return self.bounds or None

    def scores(self, column: pa.Array, keys: pa.Array, seed: int, where: str) -> pa.RecordBatch:
        """What ranks documents in this column, as `SCORES_SCHEMA` has it. Those without a number weigh nothing."""
        values, ties = self.numbers(column, where), keyed_hash(key_halves(keys), seed_for(seed, "split", self.column))
        is_number = ~np.isnan(values)
        scores = np.where(is_number, ordered(np.where(is_number, values, 0)), np.uint64(0))
        return pa.record_batch([pa.array(scores), pa.array(ties), pa.array(is_number.astype(np.int64))], schema=SCORES_SCHEMA)

    def parts_of_scores(self, rows: pa.RecordBatch) -> Codes:
        """The parts of documents with these scores."""
        scores, ties, weights = (numbers(rows.column(name)) for name in SCORES_SCHEMA.names)
        kept = (is_kept(cut, scores, ties).astype(np.int64) for cut in self.cuts)
        return self.with_none(sum(kept, np.zeros(len(scores), np.int64)), weights == 0)

    def with_none(self, part: NDArray[np.int64], is_none: NDArray[np.bool_]) -> Codes:
        names = [*map(str, range(self.quantiles or len(self.bounds) + 1)), NONE]
        return np.where(is_none, len(names) - 1, part), names

    def numbers(self, column: pa.Array, where: str) -> NDArray[np.float64]:
        """(num_docs,) float64, NaN for documents without a number."""
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return numbers_in(column)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise UserError(f"{where}: column '{self.column}' holds {kind}, expected numbers. Leave bounds and quantiles out")
        values = numbers(column.cast(pa.float64(), safe=False).fill_null(np.nan))
        return np.where(np.isfinite(values), values, np.nan)


def column_of(axis: Axis, record: pa.RecordBatch, where: str) -> pa.Array:
    """Its column in documents. Raises UserError where they have none."""
    if axis.column not in record.schema.names:
        raise UserError(
            f"{where}: documents have no column '{axis.column}', they have "
            f"{', '.join(sorted(record.schema.names))}. If the input has it, name it under `keep`; otherwise add a stage that "
            f"writes it"
        )
    return record.column(axis.column)


def parts_of(axis: Axis, record: pa.RecordBatch, seed: int, source: str) -> Codes:
    """The parts of documents by one column."""
    column = column_of(axis, record, where := f"sources.{source}.split.by")
    if axis.quantiles:
        return axis.parts_of_scores(axis.scores(column, record.column("key"), seed, where))
    if axis.bounds:
        values = axis.numbers(column, where)
        part = np.searchsorted(np.asarray(axis.bounds), values, side="right").astype(np.int64)
        return axis.with_none(part, np.isnan(values))
    return _value_parts(axis.column, column, where)


def value_problem(name: str, kind: pa.DataType) -> str | None:
    """Why no cells are named by the values of a column of a type."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = pa.types.is_boolean, pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_null
    if any(test(kind) for test in tests):
        return None
    remedy = "Name another column"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        remedy = f"Of other numbers give bounds or quantiles: {{column: {name}, quantiles: 10}}"
    return f"column '{name}' holds {kind}, expected text, whole numbers, or true and false. {remedy}"


def _value_parts(name: str, column: pa.Array, where: str) -> Codes:
    problem = value_problem(name, column.type)
    if problem is not None:
        raise UserError(f"{where}: {problem}")
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    column = column.cast(pa.string()) if pa.types.is_boolean(column.type) else column
    values = pc.fill_null(column.cast(pa.large_string()), "").dictionary_encode()
    names = [part_of(value) for value in values.dictionary.to_pylist()]
    return numbers(values.indices).astype(np.int64), names


def joined_parts(parts: Sequence[Codes]) -> Codes:
    """The names that parts of documents make, of combinations that occur."""
    codes, names = parts[0]
    for further, others in parts[1:]:
        pairs, codes = np.unique(codes * len(others) + further, return_inverse=True)
        names = [f"{names[pair // len(others)]}/{others[pair % len(others)]}" for pair in pairs.tolist()]
    return codes, names


def check_number(cells: Collection[str], columns: Sequence[str], source: str) -> None:
    """Raises UserError for too many cells."""
    if len(cells) <= MOST_CELLS:
        return
    values = [len(set(parts)) for parts in zip(*(name.split("/") for name in cells))]
    listed = ", ".join(f"{column} has {count:,} values" for column, count in zip(columns, values))
    raise UserError(
        f"sources.{source}.split.by: found {len(cells):,} cells or more, expected at most {MOST_CELLS:,}: {listed}. Leave a "
        f"column out, or make fewer parts of numbers by bounds or quantiles. The next run goes on from the cleaned documents"
    )


@lru_cache(maxsize=4)
def cell_names(url: str, files: tuple[TableFile, ...]) -> dict[str, int]:
    """The numbers of the cells of a source by name, as an output has them."""
    read = (rows.column("cell").to_pylist() for file in files for rows in read_table(Root(url), file))
    return {name: number for number, name in enumerate(chain.from_iterable(read))}


def cells_in(axes: Sequence[Axis], batch: DocumentBatch, seed: int, source: str, known: Mapping[str, int]) -> NDArray[np.int64]:
    """(num_docs,) the cell of each document of a batch."""
    codes, names = joined_parts([parts_of(axis, batch.record, seed, source) for axis in axes])
    occurring, places = np.unique(codes, return_inverse=True)
    return np.array([known[names[code]] for code in occurring.tolist()], np.int64)[places] if len(codes) else codes


def cell_hashes(cells: NDArray[np.int64], shuffle_hashes: np.ndarray) -> np.ndarray:
    """The hashes of token rows of these cells: (num_docs,) uint64."""
    return cells.astype(np.uint64) << np.uint64(CELL_SHIFT) | shuffle_hashes >> np.uint64(64 - CELL_SHIFT)


def cell_ranges(sizes: Sequence[int], target_bytes: int, stop: int = 1 << CELL_SHIFT) -> list[tuple[int, int]]:
    """Half-open ranges that cut the space of hashes of token rows into parts of about `target_bytes`: neighbouring cells
    together, and larger ones by themselves, in even parts. `sizes`: bytes by cell. `stop`: the hash within each cell from
    which on no rows are packed."""
    borders, held = list[int](), 0
    for cell, whole in enumerate(sizes):
        size = whole * stop >> CELL_SHIFT
        parts = math.ceil(size / target_bytes)
        if cell and (held + size > target_bytes) and held:
            borders.append(cell << CELL_SHIFT)
            held = 0
        borders += [(cell << CELL_SHIFT) + part * stop // parts for part in range(1, parts)]
        held = held + size if parts <= 1 else target_bytes
    return list(zip([0, *borders], [*borders, HASH_SPACE])) if any(sizes) else []


def again_borders(repeats: Sequence[Fraction]) -> tuple[int, ...]:
    """Of each cell that is repeated a broken number of times: the hash of a token row below which its documents are drawn once
    more than the others. 2.5 is half of the hashes of the cell. A border belongs to the cell of the hash before it."""
    return tuple(
        (cell << CELL_SHIFT) + math.ceil((times - math.floor(times)) * (1 << CELL_SHIFT))
        for cell, times in enumerate(repeats)
        if times.denominator > 1
    )


def cell_of_border(border: int) -> int:
    return (border - 1) >> CELL_SHIFT


def borders_within(borders: Sequence[int], start: int, stop: int) -> tuple[int, ...]:
    """What borders of cells say of a range: of rows below a border behind it, that they all come before its end."""
    return tuple(min(border, stop) for border in borders if border > start and cell_of_border(border) << CELL_SHIFT < stop)


def ends_within(ends: Mapping[int, int], start: int, stop: int) -> tuple[tuple[int, int], ...] | None:
    """What ends of cells, hashes within each, say of a range: those before the end of the range. None where no row is left."""
    first, last = start >> CELL_SHIFT, (stop - 1) >> CELL_SHIFT
    chosen = [(cell, ends[cell]) for cell in range(first, last + 1) if cell in ends]
    if first == last and chosen and (first << CELL_SHIFT) + chosen[0][1] <= start:
        return None
    return tuple((cell, end) for cell, end in chosen if (cell << CELL_SHIFT) + end < stop)


class CellBytes:
    """The bytes that token rows take in memory, by cell; about as `ExchangeFile.row_bytes` of them. `id_bytes`: of a token."""

    def __init__(self, id_bytes: int) -> None:
        self._id_bytes, self._bytes = id_bytes, Counter[int]()

    def add(self, cells: NDArray[np.int64], rows: pa.RecordBatch) -> None:
        tokens = numbers(pc.list_value_length(rows.column("tokens"))).astype(np.int64)
        sizes = np.maximum(tokens * self._id_bytes, LEAST_DOCUMENT_BYTES)
        if schemas.UNLEARNED in rows.schema.names:
            sizes += numbers(pc.list_value_length(rows.column(schemas.UNLEARNED))).astype(np.int64) * LEAST_DOCUMENT_BYTES // 8
        occurring, places = np.unique(cells, return_inverse=True)
        total = np.zeros(len(occurring), np.int64)
        np.add.at(total, places, sizes)
        self._bytes.update(dict(zip(occurring.tolist(), total.tolist())))

    def finish(self, table: TableWriter) -> tuple[TableFile, ...]:
        cells = sorted(self._bytes)
        sizes = [self._bytes[cell] for cell in cells]
        table.add(pa.record_batch([pa.array(cells, pa.int32()), pa.array(sizes, pa.int64())], schema=SIZES_SCHEMA))
        return table.finish()
