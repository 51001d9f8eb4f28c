"""Rows of record batches as lists, found shard by shard and copied one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ListBlock:
    """A record batch: ids of each row, lengths of all chunks, the first chunk of each row, keys and starts of all chunks."""

    tokens: list[list[int]]
    offsets: list[int]
    lengths: list[int]
    keys: list[tuple[int, int]]
    starts: list[int]

    def chunks(self, row: int) -> range:
        return range(self.offsets[row], self.offsets[row + 1])

    def is_sound(self, row: int) -> bool:
        return 0 <= self.offsets[row] <= self.offsets[row + 1] <= len(self.lengths)

    def fits(self, row: int) -> bool:
        lengths = [self.lengths[chunk] for chunk in self.chunks(row)]
        return min(lengths, default=1) >= 1 and sum(lengths) <= len(self.tokens[row])


def find(address: int, counts: Sequence[int]) -> tuple[int, int]:
    """Shard and row of an address, over shards with these numbers of rows."""
    for shard, count in enumerate(counts):
        if address < count:
            return shard, address
        address -= count
    raise IndexError(address)
