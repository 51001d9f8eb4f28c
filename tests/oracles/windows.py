"""The address of one sample, from windows written as lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.oracles.permute import feistel


@dataclass(frozen=True)
class ListWindow:
    """Ordinals `first` to `stop - 1` of a source; the addresses of its rows before they are permuted; and the permutation."""

    source: int
    first: int
    stop: int
    addresses: list[int] | range
    table: list[int] | None
    keys: list[int]

    def address(self, ordinal: int) -> int:
        index = ordinal - self.first
        return self.addresses[feistel(index, self.stop - self.first, self.keys) if self.table is None else self.table[index]]


def find(source: int, ordinal: int, windows: Sequence[ListWindow]) -> int | None:
    """The address of a sample; None where no window holds it."""
    for window in windows:
        if window.source == source and window.first <= ordinal < window.stop:
            return window.address(ordinal)
    return None
