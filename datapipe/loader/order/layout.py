"""The address of every sequence of a split: one number line over all shards, sorted by source and then by path.

    address   0 1 2 3 4 5 6 7 8 9        source_starts  0 . . . 6 . .
    source    a a a a a a b b b b        shard_starts    0 . . 3 . . 6 …
    shard     0 0 0 1 1 1 2 2 3 3

A source's position p is the address `source_starts[source] + p`; a shard's row r is `shard_starts[shard] + r`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from datapipe.shards.manifest import ShardEntry, Snapshot

Split = Literal["train", "validation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The shards of one split in the order of their rows.

    Attributes:
        sources: names, sorted; sources without a shard in this split included.
        shards: sorted by source, then by path.
        source_starts: (num_sources + 1,) int64.
        shard_starts: (num_shards + 1,) int64.
        source_shards: (num_sources + 1,) int; source i has the shards source_shards[i]:source_shards[i + 1].
    """

    sources: tuple[str, ...]
    shards: tuple[ShardEntry, ...]
    source_starts: np.ndarray
    shard_starts: np.ndarray
    source_shards: tuple[int, ...]

    @property
    def num_sequences(self) -> int:
        return int(self.shard_starts[-1])

    def size(self, source: int) -> int:
        """Number of sequences of a source."""
        return int(self.source_starts[source + 1] - self.source_starts[source])

    def find(self, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Shard number and row of each address: (n,) int64 each."""
        # side="right" skips empty shards, which share their start with the next
        shards = np.searchsorted(self.shard_starts, addresses, side="right") - 1
        return shards, addresses - self.shard_starts[shards]

    def source_of(self, addresses: np.ndarray) -> np.ndarray:
        """Source number of each address: (n,) int64."""
        return np.searchsorted(self.source_starts, addresses, side="right") - 1


def plan_layout(snapshot: Snapshot, split: Split) -> Layout:
    """The layout of a split. It depends on the set of shards in the manifest, not on their order."""
    sources = tuple(sorted(snapshot.sources))
    by_source: dict[str, list[ShardEntry]] = {source: [] for source in sources}
    for shard in sorted((shard for shard in snapshot.shards if shard.split == split), key=lambda shard: shard.numbered_path):
        by_source[shard.source].append(shard)
    per_source = list(by_source.values())
    shards = tuple(shard for entries in per_source for shard in entries)
    return Layout(
        sources=sources,
        shards=shards,
        source_starts=_starts([sum(shard.sequences for shard in entries) for entries in per_source]),
        shard_starts=_starts([shard.sequences for shard in shards]),
        source_shards=tuple(_starts([len(entries) for entries in per_source]).tolist()),
    )


def _starts(counts: list[int]) -> np.ndarray:
    """(n + 1,) int64: 0, then the running sum."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))])
