"""The address of every sequence of a split: one number line over all shards, sorted by source, part and path.

    address   0 1 2 3 4 5 6 7 8 9        source_starts  0 . . . 6 . .
    source    a a a a a a b b b b        shard_starts    0 . . 3 . . 6 …
    shard     0 0 0 1 1 1 2 2 3 3

A source's position p is the address `source_starts[source] + p`; a shard's row r is `shard_starts[shard] + r`.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from datapipe.shards.manifest import Snapshot
from datapipe.shards.shard_table import ShardTable

Split = Literal["train", "validation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The shards of one split in the order of their rows."""

    sources: tuple[str, ...]  # names, sorted; sources without a shard in this split included
    shards: ShardTable  # sorted by source, then by part, then by path
    source_starts: np.ndarray  # (num_sources + 1,) int64
    shard_starts: np.ndarray  # (num_shards + 1,) int64
    # (num_sources + 1,) int; source i has the shards source_shards[i]:source_shards[i + 1]
    source_shards: tuple[int, ...]
    # of each source, (num_parts + 1,) shards: the first of each part, and the end
    part_shards: tuple[tuple[int, ...], ...]

    @property
    def num_sequences(self) -> int:
        return int(self.shard_starts[-1])

    def find(self, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Shard number and row of each address: (n,) int64 each."""
        # side="right" skips empty shards, which share their start with the next
        shards = np.searchsorted(self.shard_starts, addresses, side="right") - 1
        return shards, addresses - self.shard_starts[shards]

    def source_of(self, addresses: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.source_starts, addresses, side="right") - 1


def plan_layout(snapshot: Snapshot, split: Split) -> Layout:
    """The layout of a split. It depends on the set of shards in the manifest, not on their order."""
    sources = tuple(sorted(snapshot.sources))
    shards = ShardTable.of(snapshot.shards).in_order(split)
    source_shards = np.searchsorted(shards.sources_among(sources), np.arange(len(sources) + 1))
    shard_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(shards.sequences)])
    parts = shards.parts
    borders = [
        (*(start + np.searchsorted(parts[start:stop], np.arange(1 + parts[start:stop].max(initial=0)))).tolist(), stop)
        for start, stop in pairwise(source_shards.tolist())
    ]
    return Layout(
        sources=sources,
        shards=shards,
        source_starts=shard_starts[source_shards],
        shard_starts=shard_starts,
        source_shards=tuple(source_shards.tolist()),
        part_shards=tuple(borders),
    )
