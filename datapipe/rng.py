"""Seeds from names, and random choices from keys. Nothing here keeps state, so nothing depends on order.

seed_for(17, "loader", "web", 3)  ->  one uint64, the same on every machine
keyed_hash(keys, seed)            ->  one uint64 per document, a pure function of (seed, key)
shuffle_hash(keys, 17)            ->  the one that spreads documents over shards
"""

from __future__ import annotations

import numpy as np
import xxhash

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
"""The increment of splitmix64's counter, and the multipliers of its finaliser."""


def seed_for(root: int, *names: str | int) -> int:
    """A 64-bit seed for a purpose spelled out in words.

    Every part is written with its type and length, so that ("a", "bc") and ("ab", "c") differ, as do 3 and "3".

    Args:
        root: the seed of the mixture.
        names: what the seed is for, from the general to the particular: stage, source, epoch.
    """
    parts = [f"i{root}"] + [f"i{name}" if isinstance(name, int) else f"s{len(name)}:{name}" for name in names]
    return xxhash.xxh3_64_intdigest("\x1f".join(parts).encode())


def mix64(values: np.ndarray) -> np.ndarray:
    """The splitmix64 finaliser (Steele, Lea and Flood, 2014): a bijection of uint64 that flips half the bits.

    Args:
        values: (n,) uint64.
    """
    values = (values ^ (values >> np.uint64(30))) * MIX_1
    values = (values ^ (values >> np.uint64(27))) * MIX_2
    return values ^ (values >> np.uint64(31))


def keyed_hash(halves: tuple[np.ndarray, np.ndarray], seed: int) -> np.ndarray:
    """One uniform uint64 per document key: every random choice about a document is a threshold on this.

    Args:
        halves: `columns.key_halves` of the keys, (num_docs,) uint64 each: file hash and place in the file.
        seed: from `seed_for`, named for the purpose.
    """
    file_hash, place = halves
    with np.errstate(over="ignore"):
        return mix64(mix64(mix64(file_hash ^ np.uint64(seed)) + GOLDEN + place) ^ np.uint64(seed))


def shuffle_hash(halves: tuple[np.ndarray, np.ndarray], seed: int) -> np.ndarray:
    """Where each document lies in the shuffle of its source: (num_docs,) uint64.

    A document's rows are in the shards of its source and split whose `ShardEntry.hashes` range holds this number, start
    included, stop not. So the manifest's `seed` and the document's key are enough to find them; which source a key is of stands
    in files.parquet, by its first half. The source is no part of the hash: keys of different sources differ already.

    Args:
        halves: `columns.key_halves` of the keys.
        seed: of the mixture, which is `Snapshot.seed`.
    """
    return keyed_hash(halves, seed_for(seed, "shuffle"))


def below_fraction(hashes: np.ndarray, fraction: float) -> np.ndarray:
    """Which of `hashes` (n,) uint64 fall into the first `fraction` of the hash space: (n,) bool."""
    if fraction >= 1.0:
        return np.ones(len(hashes), np.bool_)
    return hashes < np.uint64(int(fraction * 2**64))
