"""Seeds from names, and random choices from document keys. Nothing here has state, so nothing depends on order.

seed_for(17, "loader", "web", 3)  ->  one uint64, the same on every machine
keyed_hash(keys, seed)            ->  one uint64 per document, a pure function of (seed, key)
shuffle_hash(keys, 17)            ->  the keyed hash that orders documents over shards
"""

import numpy as np
import xxhash

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
"""The increment of splitmix64's counter, and the multipliers of its finaliser."""


def seed_for(root: int, *names: str | int) -> int:
    """A 64-bit seed for a purpose: `names`, from general to specific, below the seed `root` of the mixture. Every name is
    hashed with its type and length, so ("a", "bc") and ("ab", "c") differ, and so do 3 and "3"."""
    parts = [f"i{root}"] + [f"i{name}" if isinstance(name, int) else f"s{len(name)}:{name}" for name in names]
    return xxhash.xxh3_64_intdigest("\x1f".join(parts).encode())


def epoch_key(seed: int, epoch: int) -> int:
    """The seed of an epoch below `seed`, as kernels compute it: a finalised step of a splitmix64 counter."""
    counter = np.array([(seed + (epoch + 1) * int(GOLDEN)) % (1 << 64)], np.uint64)
    return int(mix64(counter)[0])


def mix64(values: np.ndarray) -> np.ndarray:
    """The splitmix64 finaliser (Steele, Lea and Flood, 2014): a bijection of uint64 that flips half
    of the bits on average. `values`: (n,) uint64."""
    values = (values ^ (values >> np.uint64(30))) * MIX_1
    values = (values ^ (values >> np.uint64(27))) * MIX_2
    return values ^ (values >> np.uint64(31))


def keyed_hash(halves: tuple[np.ndarray, np.ndarray], seed: int) -> np.ndarray:
    """One uniform uint64 per document key: (num_docs,). Every random choice about a document is a
    threshold on such a hash. `halves`: file hashes and positions, of `columns.key_halves`."""
    file_hash, position = halves
    with np.errstate(over="ignore"):
        return mix64(mix64(mix64(file_hash ^ np.uint64(seed)) + GOLDEN + position) ^ np.uint64(seed))


def shuffle_hash(halves: tuple[np.ndarray, np.ndarray], seed: int) -> np.ndarray:
    """The hash that orders documents in the shuffle of their source: (num_docs,) uint64.

    The rows of a document lie in those shards of its source and split whose `ShardEntry.hashes` range, half-open, contains
    its hash. So the manifest's `seed` and the key are enough to find them; files.parquet maps the first half of a key to
    its source. `halves`: `columns.key_halves` of the keys.
    """
    return keyed_hash(halves, seed_for(seed, "shuffle"))


def sample_hash(halves: tuple[np.ndarray, np.ndarray], seed: int) -> np.ndarray:
    """The hash that samples documents: (num_docs,) uint64. A sample has those below a fraction, so it is part of every larger
    one. `seed`: of the mixture; `halves`: `columns.key_halves` of the keys."""
    return keyed_hash(halves, seed_for(seed, "sample"))


def below_fraction(hashes: np.ndarray, fraction: float) -> np.ndarray:
    """Whether each of `hashes` (n,) uint64 falls into the first `fraction` of the hash space: (n,) bool."""
    if fraction >= 1.0:
        return np.ones(len(hashes), np.bool_)
    return hashes < np.uint64(int(fraction * 2**64))
