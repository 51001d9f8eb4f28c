"""Addresses of samples: each lies in a window of its source, whose rows one permutation puts in order.

    (source, ordinal) ──▶ window that holds the ordinal ──▶ permuted position in it ──▶ shard of the position ──▶ address

A source has room for `WINDOWS_PER_SOURCE` windows, each described by `WINDOW_WIDTH` int64. A missing window is reported;
`loader/order/grown_order.py` lays it out. Large windows go through the Feistel rounds of `permute.py` in lanes, each
with the keys of its window: 8 to 15 ns a sample instead of 20 to 54.
"""

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import mix64
from datapipe.kernels.tokens.memory import int64_at, uint16_at, uint64_at
from datapipe.kernels.tokens.permute import LANES, NUM_ROUNDS, halves
from datapipe.kernels.types import Int64Matrix, Int64s, Int64sOut

WINDOWS_PER_SOURCE = 2
"""Samples of a batch lie in the window in use, and where it ends in the next one."""

WINDOW_WIDTH = 7
FIRST, STOP, PERMUTATION, IS_TABLE, BASE, NUM_ENTRIES, ENTRIES = range(WINDOW_WIDTH)
"""A window: its ordinals FIRST to STOP - 1, 0 and 0 for none; the memory address of its shuffled table (uint16), with IS_TABLE
1, or of its round keys, 0 without a permutation; the address of its first row where its rows follow each other, else 0; its
number of entries, 0 where its rows follow each other; and the memory address of the entries: NUM_ENTRIES first positions,
ascending from 0, then for each entry the address of its first row minus the position."""


@inline
def _window_of(windows: Any, source: Any, ordinal: Any) -> Any:
    """The line of `windows` that holds a sample; -1 if none does."""
    for window in range(source * WINDOWS_PER_SOURCE, (source + 1) * WINDOWS_PER_SOURCE):
        if windows[window, FIRST] <= ordinal < windows[window, STOP]:
            return window
    return -1


@inline
def _address_of(window: Any, position: Any) -> Any:
    count = window[NUM_ENTRIES]
    if count == 0:
        return window[BASE] + position
    entries = int64_at(window[ENTRIES], 2 * count)
    below, above = 0, count
    while above - below > 1:
        middle = (below + above) // 2
        if entries[middle] <= position:
            below = middle
        else:
            above = middle
    return window[BASE] + position + entries[count + below]


@inline
def _rounds(values: Any, num_lanes: Any, shapes: Any, keys: Any) -> None:
    """`permute._forward` with low bits, masks (3, LANES) and keys (NUM_ROUNDS, LANES) for each lane."""
    for number in range(0, NUM_ROUNDS, 2):
        for lane in range(num_lanes):
            mixed = mix64((values[lane] & shapes[1, lane]) ^ keys[number, lane]) & shapes[2, lane]
            values[lane] ^= mixed << shapes[0, lane]
        for lane in range(num_lanes):
            values[lane] ^= mix64((values[lane] >> shapes[0, lane]) ^ keys[number + 1, lane]) & shapes[1, lane]


@inline
def _keep_walking(values: Any, origins: Any, lines: Any, num_lanes: Any, shapes: Any, keys: Any, windows: Any, out: Any) -> Any:
    """Writes the lanes that arrived to `out`; returns the number of the others, which move to the front."""
    kept = 0
    for lane in range(num_lanes):
        window = windows[lines[lane]]
        if values[lane] < np.uint64(window[STOP] - window[FIRST]):
            out[origins[lane]] = _address_of(window, np.int64(values[lane]))
            continue
        values[kept], origins[kept], lines[kept] = values[lane], origins[lane], lines[lane]
        for number in range(3):
            shapes[number, kept] = shapes[number, lane]
        for number in range(NUM_ROUNDS):
            keys[number, kept] = keys[number, lane]
        kept += 1
    return kept


@inline
def _begin_walk(window: Any, lane: Any, shapes: Any, keys: Any) -> None:
    shapes[0, lane], shapes[1, lane], shapes[2, lane] = halves(window[STOP] - window[FIRST])
    round_keys = uint64_at(window[PERMUTATION], NUM_ROUNDS)
    for number in range(NUM_ROUNDS):
        keys[number, lane] = round_keys[number]


@kernel
def find_addresses(sources: Int64s, ordinals: Int64s, windows: Int64Matrix, out: Int64sOut) -> int:
    """The address of each sample; returns the number of samples whose window is not there.

    `sources`, `ordinals`: (n,) int64, and the samples of the source before it. `windows`:
    (num_sources * WINDOWS_PER_SOURCE, WINDOW_WIDTH) int64. `out`: (n,) int64, set where it is -1
    and the window is there."""
    values, origins, lines = np.empty(LANES, np.uint64), np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    shapes, keys = np.empty((3, LANES), np.uint64), np.empty((NUM_ROUNDS, LANES), np.uint64)
    missing = num_lanes = following = 0
    while num_lanes > 0 or following < len(sources):
        while num_lanes < LANES and following < len(sources):
            i = following
            following += 1
            if out[i] >= 0:
                continue
            line = _window_of(windows, sources[i], ordinals[i])
            if line < 0:
                missing += 1
                continue
            window = windows[line]
            size, index = window[STOP] - window[FIRST], ordinals[i] - window[FIRST]
            if window[PERMUTATION] == 0:
                out[i] = _address_of(window, index)
                continue
            if window[IS_TABLE]:
                out[i] = _address_of(window, np.int64(uint16_at(window[PERMUTATION], size)[index]))
                continue
            values[num_lanes], origins[num_lanes], lines[num_lanes] = np.uint64(index), i, line
            _begin_walk(window, num_lanes, shapes, keys)
            num_lanes += 1
        _rounds(values, num_lanes, shapes, keys)
        num_lanes = _keep_walking(values, origins, lines, num_lanes, shapes, keys, windows, out)
    return missing
