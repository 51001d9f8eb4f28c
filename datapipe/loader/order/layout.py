"""The address of every sequence of a split: one number line over all shards, sorted by source, generation and path.

    address   0 1 2 3 4 5 6 7 8 9        shard_starts    0 . . 3 . . 6 . 8 .
    shard     0 0 0 1 1 1 2 2 3 3
    source    a a a b b a b b b b        runs   a: 0 to 2, 5      b: 3 to 4, 6 to 7, 8 to 9

A shard's row r is `shard_starts[shard] + r`. A source of the order is a source of the mixture, or a cell of one: a leaf. It has
runs of addresses: whole shards, or the rows of shards that belong to the cell. Validation rows have no cells.
"""

from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.shards.leaves import leaves_of
from datapipe.shards.manifest import Snapshot
from datapipe.shards.shard_table import ShardTable
from datapipe.shards.source_entry import SourceEntry

Split = Literal["train", "validation"]


class Runs(NamedTuple):
    """Rows that belong together, in the order of their addresses: (num_runs,) int64 each."""

    starts: np.ndarray  # address of the first row
    rows: np.ndarray
    shards: np.ndarray
    # stratum of a source with strata; in a cell, 1 for rows that an epoch has once more than its others
    groups: np.ndarray

    def part(self, part: slice | np.ndarray) -> "Runs":
        return Runs(*(column[part] for column in self))


class Repeats(NamedTuple):
    """How often an epoch has the runs of each group; as `Strata`, without what draws nothing."""

    repeats: tuple[int, ...]
    order: Literal["shuffled"] = "shuffled"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The shards of one split in the order of their rows, and the runs of each source."""

    sources: tuple[str, ...]  # names of leaves, sorted; those without a row in this split included
    is_cell: np.ndarray  # (num_sources,) bool
    shards: ShardTable  # sorted by source, then by generation, then by path
    shard_starts: np.ndarray  # (num_shards + 1,) int64
    runs: Runs  # sorted by source, then by generation, then by address
    parts: np.ndarray  # (num_runs,) int64, the generation of each run
    times: np.ndarray  # (num_runs,) int64, how often an epoch has a run
    source_runs: np.ndarray  # (num_sources + 1,) int64; source i has the runs source_runs[i] to source_runs[i + 1] - 1

    @property
    def num_sequences(self) -> int:
        return int(self.shard_starts[-1])

    @cached_property
    def sizes(self) -> list[int]:
        """Samples in an epoch of each source."""
        return self._by_source(self.runs.rows * self.times).tolist()

    @cached_property
    def num_rows(self) -> np.ndarray:
        """(num_sources,) int64."""
        return self._by_source(self.runs.rows)

    def _by_source(self, counts: np.ndarray) -> np.ndarray:
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return np.diff(sums[self.source_runs])

    def generations_of(self, source: int) -> list[slice]:
        """The runs of each generation of a source."""
        start, stop, last = *self._borders[source : source + 2], self._last_parts[source]
        if not last:
            return [slice(start, stop)]
        begins = np.searchsorted(self.parts[start:stop], np.arange(1 + last))
        return [slice(*borders) for borders in pairwise([*(start + begins).tolist(), stop])]

    @cached_property
    def _borders(self) -> list[int]:
        return self.source_runs.tolist()

    @cached_property
    def _last_parts(self) -> list[int]:
        """The last generation of each source."""
        last = np.zeros(len(self.sources), np.int64)
        np.maximum.at(last, np.repeat(np.arange(len(last)), np.diff(self.source_runs)), self.parts)
        return last.tolist()

    def find(self, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Shard number and row of each address: (n,) int64 each."""
        # side="right" skips empty shards, which share their start with the next
        shards = np.searchsorted(self.shard_starts, addresses, side="right") - 1
        return shards, addresses - self.shard_starts[shards]

    def source_of(self, addresses: np.ndarray) -> np.ndarray:
        """The source of each address: (n,) int64."""
        starts, sources = self._by_address
        return sources[np.searchsorted(starts, addresses, side="right") - 1]

    @cached_property
    def _by_address(self) -> tuple[np.ndarray, np.ndarray]:
        """The first address of each run with rows, ascending, and its source."""
        sources = np.repeat(np.arange(len(self.sources)), np.diff(self.source_runs))
        filled = np.flatnonzero(self.runs.rows)
        order = filled[np.argsort(self.runs.starts[filled])]
        return self.runs.starts[order], sources[order]


def plan_layout(snapshot: Snapshot, split: Split) -> Layout:
    """The layout of a split. It depends on the set of shards in the manifest, not on their order."""
    by_source, shards = sorted(snapshot.sources), ShardTable.of(snapshot.shards).in_order(split)
    entries = {name: _of_split(snapshot.sources[name], split) for name in by_source}
    leaves = leaves_of(entries)
    shard_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(shards.sequences)])
    owners, (counts, cells) = shards.sources_among(by_source), shards.cell_runs()
    # is_cut: (num_runs,) whether a run is a cell's; else it is a whole shard
    run_shards = np.repeat(np.arange(len(shards)), np.where(counts < 0, 1, counts))
    is_cut, run_owners = (counts >= 0)[run_shards], owners[run_shards]
    rows, groups, numbers = shards.sequences[run_shards], shards.strata[run_shards], np.zeros(len(run_shards), np.int64)
    rows[is_cut], groups[is_cut], numbers[is_cut] = cells.rows, cells.again, cells.cells
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows)])[:-1]  # the runs of a shard are all its rows
    first_leaf = np.cumsum([0, *(1 if (own := entries[name].cells) is None else len(own.names) for name in by_source)])[:-1]
    listed = [(owner, cell or 0) for owner, cell in leaves.values()]
    number_of = {name: number for number, name in enumerate(by_source)}
    rank = np.empty(len(leaves), np.int64)
    rank[[int(first_leaf[number_of[owner]]) + cell for owner, cell in listed]] = np.arange(len(leaves))
    run_leaves = rank[first_leaf[run_owners] + numbers] if len(run_shards) else run_shards
    parts = shards.parts[run_shards]
    order = np.lexsort((starts, parts, run_leaves))
    times = _times(entries, run_owners, groups, numbers)
    return Layout(
        sources=tuple(leaves),
        is_cell=np.array([cell is not None for _, cell in leaves.values()], np.bool_),
        shards=shards,
        shard_starts=shard_starts,
        runs=Runs(starts[order], rows[order], run_shards[order], groups[order]),
        parts=parts[order],
        times=times[order],
        source_runs=np.searchsorted(run_leaves[order], np.arange(len(leaves) + 1)),
    )


def _of_split(entry: SourceEntry, split: Split) -> SourceEntry:
    if split == "train":
        return entry
    return entry.model_copy(update={"cells": None, "strata": None})


def _times(entries: dict[str, SourceEntry], owners: np.ndarray, groups: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """How often an epoch has each run; 1 for a stratum that does not exist."""
    times = np.ones(len(owners), np.int64)
    for number, entry in enumerate(entries.values()):
        if entry.cells is not None:
            own = owners == number
            times[own] = np.array(entry.cells.least_times, np.int64)[cells[own]] + groups[own]
        elif entry.strata is not None:
            own = (owners == number) & (groups >= 0) & (groups < len(entry.strata.repeats))
            times[own] = np.array(entry.strata.repeats, np.int64)[groups[own]]
    return times
