"""A keyed permutation of 0..size-1, evaluated index by index: nothing is shuffled, nothing is stored.

    permute(key, size, indices)  ->  positions          invert(key, size, positions)  ->  indices

From 2^16 on it is a Feistel network on the bits of `size - 1`: eight alternating rounds XOR one half with the 64-bit
finaliser of the other half and a round key. The halves may differ by one bit, so the domain is below twice the size, and a
result outside 0..size-1 goes through again (cycle walking), less than twice on average. Below 2^16 a Feistel network cannot
be uniform over permutations: a keyed Fisher-Yates table is made instead.

Published loaders use four or five weak rounds, with a serial correlation of 0.45 between neighbours at 2^20; the tests hold
a battery that detects it. Indices go through the rounds in lanes that the compiler vectorises, five times as fast.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from datapipe import rng
from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import mix64
from datapipe.kernels.types import Int64s, Int64sOut, UInt16sOut, UInt64s
from datapipe.rng import GOLDEN

TABLE_SIZE = 1 << 16  # the largest size that uses a table: its entries fit uint16, 128 KiB at most
NUM_ROUNDS = 8
"""The battery rejects two rounds at every size and accepts four with this finaliser; four more are the margin."""

LANES = 64  # Indices that go through the rounds together: 32 are a seventh slower, 256 no faster
_LOW_32 = np.uint64(0xFFFFFFFF)


def permute(key: int, size: int, indices: np.ndarray, most_shuffled: int = TABLE_SIZE) -> np.ndarray:
    """The position of each index in 0..size-1: (n,) int64, distinct for distinct indices. `key`: any uint64; each is one
    permutation. `size`: at most 2^62. `most_shuffled`: the largest size that uses a table, at least 1."""
    if size <= most_shuffled:
        return _shuffled(key, size)[indices].astype(np.int64)
    out = np.empty(len(indices), np.int64)
    feistel(np.ascontiguousarray(indices, np.int64), size, round_keys(key), False, out)
    return out


def invert(key: int, size: int, positions: np.ndarray, most_shuffled: int = TABLE_SIZE) -> np.ndarray:
    """The indices that `permute` maps to `positions`: (n,) int64."""
    if size <= most_shuffled:
        return np.argsort(_shuffled(key, size))[positions].astype(np.int64)
    out = np.empty(len(positions), np.int64)
    feistel(np.ascontiguousarray(positions, np.int64), size, round_keys(key), True, out)
    return out


def permutation(key: int, size: int, most_shuffled: int = TABLE_SIZE) -> np.ndarray:
    """What kernels permute with: the position of each index, (size,) uint16, up to `most_shuffled`; else the round keys,
    uint64."""
    return _shuffled(key, size) if size <= most_shuffled else round_keys(key)


@lru_cache(maxsize=512)  # 64 MiB at most
def _shuffled(key: int, size: int) -> np.ndarray:
    table = np.empty(size, np.uint16)
    shuffle_table(np.uint64(key), table)
    return table


@lru_cache(maxsize=4096)
def round_keys(key: int) -> np.ndarray:
    """(NUM_ROUNDS,) uint64, each a finalised step of a splitmix64 counter that starts at `key`."""
    return rng.mix64(np.uint64(key) + np.arange(1, NUM_ROUNDS + 1, dtype=np.uint64) * GOLDEN)


@inline
def halves(size: Any) -> Any:
    """Number of bits of the low half of an index below `size`, which has the odd bit if any, and masks of both halves."""
    bits = 0
    while (size - 1) >> bits > 0:
        bits += 1
    low_bits = np.uint64(bits - bits // 2)
    bit = np.uint64(1)
    return low_bits, (bit << low_bits) - bit, (bit << np.uint64(bits // 2)) - bit


@inline
def _forward(values: Any, num_lanes: Any, low_bits: Any, low_mask: Any, high_mask: Any, keys: Any) -> None:
    """All rounds, each over all lanes, which is vectorised. An index is `high` above `low`."""
    for number in range(0, len(keys), 2):
        for lane in range(num_lanes):
            mixed = mix64((values[lane] & low_mask) ^ keys[number]) & high_mask
            values[lane] ^= mixed << low_bits
        for lane in range(num_lanes):
            values[lane] ^= mix64((values[lane] >> low_bits) ^ keys[number + 1]) & low_mask


@inline
def _backward(values: Any, num_lanes: Any, low_bits: Any, low_mask: Any, high_mask: Any, keys: Any) -> None:
    for number in range(len(keys) - 1, 0, -2):
        for lane in range(num_lanes):
            values[lane] ^= mix64((values[lane] >> low_bits) ^ keys[number]) & low_mask
        for lane in range(num_lanes):
            mixed = mix64((values[lane] & low_mask) ^ keys[number - 1]) & high_mask
            values[lane] ^= mixed << low_bits


@inline
def _refill(given: Any, size: Any, values: Any, origins: Any, num_lanes: Any, following: Any, out: Any) -> Any:
    """Writes the lanes below `size` to `out` and gives them the next of `given`; returns the number of lanes in use, and
    how many indices have had a lane. `origins`: the index in `given` of each lane."""
    kept = 0
    for lane in range(num_lanes):
        value, origin = values[lane], origins[lane]
        if value < np.uint64(size):
            out[origin] = np.int64(value)
            if following == len(given):
                continue
            value, origin = np.uint64(given[following]), following
            following += 1
        values[kept], origins[kept] = value, origin
        kept += 1
    return kept, following


@kernel
def feistel(indices: Int64s, size: int, keys: UInt64s, inverse: bool, out: Int64sOut) -> None:
    """The permutation by a Feistel network of `indices` (n,) int64 in 0..size-1, or its inverse, into `out` (n,) int64.

    `size`: at least 2. `keys`: (rounds,) uint64, from `round_keys`; an even number. `inverse`:
    whether `indices` are positions, and the rounds go from the last to the first."""
    low_bits, low_mask, high_mask = halves(size)
    values, origins = np.empty(LANES, np.uint64), np.empty(LANES, np.int64)
    num_lanes = min(LANES, len(indices))
    for lane in range(num_lanes):
        values[lane], origins[lane] = np.uint64(indices[lane]), lane
    following = num_lanes
    while num_lanes > 0:
        if inverse:
            _backward(values, num_lanes, low_bits, low_mask, high_mask, keys)
        else:
            _forward(values, num_lanes, low_bits, low_mask, high_mask, keys)
        num_lanes, following = _refill(indices, size, values, origins, num_lanes, following, out)


@inline
def shuffle(key: Any, size: Any, least: Any, out: Any) -> None:
    """Fills `out[:size]`, at most 2^16 items, with 0..size-1 by a keyed Fisher-Yates shuffle: every permutation is equally
    likely over keys. It goes from the last item down, and stops where those from `least` on are done. Lemire's multiply-high
    turns 32-bit words of a splitmix64 counter into numbers below n; biased words are drawn again."""
    for i in range(size):
        out[i] = i
    counter = mix64(key)
    for i in range(size - 1, max(0, least - 1), -1):
        choices = np.uint64(i + 1)
        while True:
            counter += GOLDEN
            product = (mix64(counter) >> np.uint64(32)) * choices
            low = product & _LOW_32
            if low >= choices or low >= (_LOW_32 + np.uint64(1)) % choices:  # the division is rarely needed
                break
        chosen = np.int64(product >> np.uint64(32))
        held = out[i]
        out[i] = out[chosen]
        out[chosen] = held


@kernel
def shuffle_table(key: np.uint64, out: UInt16sOut) -> None:
    """`shuffle` of all items of `out`."""
    shuffle(key, len(out), 0, out)
