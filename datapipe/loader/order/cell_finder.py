"""Addresses of the samples of all cells, by one kernel call: what `kernels/tokens/cells.py` reads, made from a layout at once.

`GrownOrder` gives the same addresses, one window at a time, and the inverse. A cell is left to it whose rows lie in more shards
than the order mixes at a time: it has several windows an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from datapipe.dataclass import dataclass, replace
from datapipe.kernels.tokens import cells as kernels
from datapipe.loader.order.layout import Layout


class LastEra(Protocol):
    """The `SourceEra` of a cell that has no end."""

    @property
    def origin(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def epochs(self) -> Sequence[int]: ...


@dataclass(frozen=True, kw_only=True)
class CellFinder:
    """What the kernel reads."""

    # cells, blocks, entries, is_shuffled: as `kernels.find_in_cells` takes them
    cells: np.ndarray
    blocks: np.ndarray
    entries: np.ndarray
    part_of: np.ndarray  # (num_blocks,) int64, the generation of each block
    is_shuffled: bool

    def find(self, sources: np.ndarray, ordinals: np.ndarray, out: np.ndarray) -> int:
        """Writes the addresses of samples of cells to `out`; returns the number of the other samples. All (n,) int64."""
        return kernels.find_in_cells(sources, ordinals, self.cells, self.blocks, self.entries, self.is_shuffled, out)

    def moved(self, eras: Mapping[int, LastEra]) -> CellFinder:
        """The finder of a run in which some sources have moved to more generations: their last eras."""
        cells, blocks = self.cells.copy(), self.blocks.copy()
        for source, era in eras.items():
            if cells[source, kernels.SIZE]:
                own = np.arange(*cells[source, [kernels.FIRST, kernels.STOP]])
                own = own[self.part_of[own] < len(era.epochs)]
                blocks[own, kernels.EPOCHS] = np.array(era.epochs, np.int64)[self.part_of[own]]
                cells[source] = era.origin, era.size, cells[source, kernels.FIRST], cells[source, kernels.FIRST] + len(own)
        return replace(self, cells=cells, blocks=blocks)


def cell_finder(layout: Layout, window_shards: int, is_shuffled: bool, keys: Mapping[tuple[int, int], int]) -> CellFinder:
    """The finder of a new run. `keys`: by source and generation, the seed of the cells' rows."""
    sources = np.repeat(np.arange(len(layout.sources)), np.diff(layout.source_runs))
    order = np.flatnonzero(layout.is_cell[sources] & (layout.runs.rows > 0))
    # order: (num_entries,) runs by source, generation, group and address
    order = order[
        np.lexsort((*(column[order] for column in (layout.runs.starts, layout.runs.groups, layout.parts)), sources[order]))
    ]
    runs, parts, sources = layout.runs.part(order), layout.parts[order], sources[order]
    first = np.flatnonzero(np.diff(sources, prepend=-1) | np.diff(parts, prepend=-1))  # entry of each block
    block_of = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    rows = np.zeros((len(first), 2), np.int64)
    np.add.at(rows, (block_of, runs.groups), runs.rows)
    times = (layout.times[order] - runs.groups)[first]
    sizes = rows[:, 0] * times + rows[:, 1] * (times + 1)
    blocks = np.zeros((len(first) + 1, kernels.BLOCK_WIDTH), np.int64)
    own = np.searchsorted(sources[first], np.arange(len(layout.sources) + 1))  # the blocks of each source
    passed = np.append(0, np.cumsum(sizes))
    numbers = list(zip(sources[first].tolist(), parts[first].tolist()))
    blocks[:-1, kernels.START] = passed[:-1] - passed[own[sources[first]]]
    blocks[:-1, kernels.KEY] = np.array([keys[number] for number in numbers], np.uint64).view(np.int64)
    blocks[:-1, kernels.TIMES] = times
    blocks[:, kernels.ONCE] = np.append(first, len(order))
    blocks[:-1, kernels.MORE] = first + np.bincount(block_of, runs.groups == 0, minlength=len(first)).astype(np.int64)
    blocks[:-1, kernels.ONCE_ROWS], blocks[:-1, kernels.MORE_ROWS] = rows.T
    before = np.cumsum(runs.rows) - runs.rows
    kinds = np.flatnonzero(np.append(True, (np.diff(block_of) != 0) | (np.diff(runs.groups) != 0))) if len(order) else first
    before -= np.repeat(before[kinds], np.diff(np.append(kinds, len(order))))
    is_wide = np.zeros(len(layout.sources), np.bool_)
    if window_shards and is_shuffled:
        pairs = np.unique(block_of * max(1, len(layout.shards)) + runs.shards) // max(1, len(layout.shards))
        is_wide[sources[first][np.bincount(pairs, minlength=len(first)) > window_shards]] = True
    cells = np.zeros((len(layout.sources), kernels.CELL_WIDTH), np.int64)
    cells[:, kernels.SIZE] = np.where(layout.is_cell & ~is_wide, layout.sizes, 0)
    cells[:, kernels.FIRST], cells[:, kernels.STOP] = own[:-1], own[1:]
    entries = np.stack([before, runs.starts], axis=1)
    return CellFinder(cells=cells, blocks=blocks, entries=entries, part_of=parts[first], is_shuffled=is_shuffled)
