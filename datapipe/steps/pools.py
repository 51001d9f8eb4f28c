"""Pools: the documents of sorted token rows that are packed together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from datapipe.columns import dtype_of, is_first, key_matrix, numbers
from datapipe.dataclass import dataclass
from datapipe.shards import schemas
from datapipe.shards.writer import CellOfRows
from datapipe.steps.cells import CELL_SHIFT, cell_of_border


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    offsets: np.ndarray  # (num_docs + 1,) int64 into the ids
    ids: np.ndarray  # (num_tokens,) uint16 or uint32
    keys: np.ndarray  # (num_docs, 16) uint8
    # (num_runs, 2) int64, start and stop in the ids of each run that no loss counts; None where documents have no segments
    unlearned: np.ndarray | None

    @property
    def num_docs(self) -> int:
        return len(self.keys)

    @property
    def num_bytes(self) -> int:
        return sum(column.nbytes for column in (self.offsets, self.ids, self.keys, self.unlearned) if column is not None)


def pools(
    slices: Iterator[pa.RecordBatch], size: int | None, again: Iterable[int] | None, ends: Mapping[int, int]
) -> Iterator[tuple[CellOfRows | None, Pool]]:
    """The documents that are packed together: `size` of them, or all; of one cell, and drawn equally often, where there are
    cells. `again`, `ends`: as `PackTask` has them, of cells."""
    held: list[pa.RecordBatch] = []
    num_held, cell = 0, None
    for of_rows, rows in _by_cell(slices, again, ends):
        if held and of_rows != cell:
            yield cell, _joined(held)
            num_held = 0
        cell = of_rows
        held.append(rows)
        num_held += rows.num_rows
        del rows
        while size is not None and num_held >= size:
            last, rest = held.pop(), num_held - size
            held.append(last.slice(0, last.num_rows - rest))
            yield cell, _joined(held)
            held, num_held = [last.slice(last.num_rows - rest)] if rest else [], rest
    if held:
        yield cell, _joined(held)


_OF_SHUFFLE = np.uint64((1 << CELL_SHIFT) - 1)  # the bits of a token row's hash that are of the shuffle hash


def _by_cell(
    slices: Iterator[pa.RecordBatch], again: Iterable[int] | None, ends: Mapping[int, int]
) -> Iterator[tuple[CellOfRows | None, pa.RecordBatch]]:
    """Sorted rows, cut where another cell begins, and within a cell where rows end that an epoch has once more."""
    borders = {cell_of_border(border): border for border in again or ()}
    for rows in slices:
        if again is None:
            yield None, rows
            continue
        hashes = numbers(rows.column("hash"))
        cells = (hashes >> np.uint64(CELL_SHIFT)).astype(np.int64)
        starts = [*np.flatnonzero(is_first(cells)).tolist(), len(cells)]
        for start, stop in pairwise(starts):
            cell = int(cells[start])
            last = stop
            if cell in ends:
                last = start + int(np.searchsorted(hashes[start:stop] & _OF_SHUFFLE, np.uint64(ends[cell])))
            middle = min(last, start + int(np.searchsorted(hashes[start:stop], np.uint64(borders.get(cell, 0)))))
            for is_again, begin, end in ((True, start, middle), (False, middle, last)):
                if begin < end:
                    yield (cell, is_again), rows.slice(begin, end - begin)


def _joined(held: list[pa.RecordBatch]) -> Pool:
    """The pool of some rows of `schemas.tokens`. Takes them out of the list as it copies them, so that they are there once."""
    lengths = [np.diff(rows.column("tokens").offsets.to_numpy()) for rows in held]
    offsets = np.concatenate([[0], *lengths]).cumsum()
    ids = np.empty(int(offsets[-1]), dtype_of(held[0].schema.field("tokens").type.value_type))
    keys = np.concatenate([key_matrix(rows.column("key")) for rows in held])
    unlearned = _runs_of(held, offsets) if schemas.UNLEARNED in held[0].schema.names else None
    start, memory = 0, pa.default_memory_pool()
    while held:
        own = held.pop(0).column("tokens").flatten()
        ids[start : start + len(own)] = own.to_numpy()
        start += len(own)
        del own
        memory.release_unused()  # an allocator would keep what is released until later
    return Pool(offsets=offsets, ids=ids, keys=keys, unlearned=unlearned)


def _runs_of(held: Sequence[pa.RecordBatch], offsets: np.ndarray) -> np.ndarray:
    """`Pool.unlearned` of rows whose ids are at `offsets` (num_docs + 1,)."""
    lists = [rows.column(schemas.UNLEARNED) for rows in held]
    counts = np.concatenate([np.diff(of_rows.offsets.to_numpy()) for of_rows in lists])
    values = np.concatenate([of_rows.flatten().to_numpy() for of_rows in lists])
    return (values + np.repeat(offsets[:-1], counts)).reshape(-1, 2)
