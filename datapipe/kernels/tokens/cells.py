"""Addresses of samples of cells, of which there may be thousands with a few rows each: computed, with nothing kept.

    (cell, ordinal) ──▶ epoch, block of the epoch ──▶ key of block and epoch ──▶ permuted position ──▶ run of rows ──▶ address

A block is what is mixed in an epoch: the rows of one generation of a cell. Its position p counts the rows of its runs, each as
often as an epoch has it. Up to `MOST_SHUFFLED` rows, the shuffled table of a block is made for each sample, which takes 0.1 µs;
larger blocks go through the rounds of `permute.py`, 0.1 µs, too. `windows.py` keeps tables, which pays for few, large sources.
"""

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import mix64
from datapipe.kernels.tokens.permute import NUM_ROUNDS, halves, shuffle
from datapipe.kernels.types import Int64Matrix, Int64s, Int64sOut
from datapipe.rng import GOLDEN

MOST_SHUFFLED = 64
"""The most rows of a cell whose shuffle is a table: the rounds of `permute.py` are uneven for fewer, and as fast for more."""

CELL_WIDTH, BLOCK_WIDTH = 4, 8
ORIGIN, SIZE, FIRST, STOP = range(CELL_WIDTH)
"""A cell: the ordinal at which an epoch begins and from which on the others hold; the rows of an epoch, 0 for a source that is
not here; and its blocks, FIRST to STOP - 1."""

START, KEY, EPOCHS, TIMES, ONCE, MORE, ONCE_ROWS, MORE_ROWS = range(BLOCK_WIDTH)
"""A block: its first index in an epoch; its key; its epochs before the origin of its cell; how often an epoch has the runs
ONCE to MORE - 1 of the entries; the runs that it has once more, from MORE to the ONCE of the next block; the rows of both."""


@inline
def _feistel(value: Any, size: Any, key: Any) -> Any:
    """`permute.permute` of one index below `size`, at least 2, by rounds."""
    low_bits, low_mask, high_mask = halves(size)
    value = np.uint64(value)
    while True:
        for number in range(0, NUM_ROUNDS, 2):
            mixed = mix64((value & low_mask) ^ mix64(key + np.uint64(number + 1) * GOLDEN)) & high_mask
            value ^= mixed << low_bits
            value ^= mix64((value >> low_bits) ^ mix64(key + np.uint64(number + 2) * GOLDEN)) & low_mask
        if value < np.uint64(size):
            return np.int64(value)


@inline
def _address_of(block: Any, end: Any, position: Any, entries: Any) -> Any:
    """The address at a position of a block, whose last run is `end` - 1."""
    below, above = block[ONCE], block[MORE]
    whole = block[ONCE_ROWS] * block[TIMES]
    if position < whole:
        position %= block[ONCE_ROWS]
    else:
        below, above = block[MORE], end
        position = (position - whole) % block[MORE_ROWS]
    while above - below > 1:
        middle = (below + above) // 2
        if entries[middle, 0] <= position:
            below = middle
        else:
            above = middle
    return entries[below, 1] + position - entries[below, 0]


@kernel
def find_in_cells(
    sources: Int64s,
    ordinals: Int64s,
    cells: Int64Matrix,
    blocks: Int64Matrix,
    entries: Int64Matrix,
    is_shuffled: bool,
    out: Int64sOut,
) -> int:
    """The address of each sample of a cell, into `out` (n,) int64; returns the number of other samples.

    Args:
        sources, ordinals: (n,) int64, and the samples of the source before it.
        cells: (num_sources, CELL_WIDTH) int64.
        blocks: (num_blocks + 1, BLOCK_WIDTH) int64; of the last one, only ONCE counts.
        entries: (num_runs, 2) int64, of each run the rows of its kind before it in the block, and its first address.
        is_shuffled: whether the rows of a block are mixed, or come in the order of its runs.
    """
    table = np.empty(MOST_SHUFFLED, np.uint16)
    others = 0
    for i in range(len(sources)):
        cell = cells[sources[i]]
        ordinal = ordinals[i] - cell[ORIGIN]
        if cell[SIZE] == 0 or ordinal < 0:
            others += 1
            continue
        epoch, position = ordinal // cell[SIZE], ordinal % cell[SIZE]
        number = cell[FIRST]
        while number + 1 < cell[STOP] and blocks[number + 1, START] <= position:
            number += 1
        block = blocks[number]
        position -= block[START]
        size = block[ONCE_ROWS] * block[TIMES] + block[MORE_ROWS] * (block[TIMES] + 1)
        key = mix64(np.uint64(block[KEY]) + np.uint64(block[EPOCHS] + epoch + 1) * GOLDEN)
        if is_shuffled and size > MOST_SHUFFLED:
            position = _feistel(position, size, key)
        elif is_shuffled:
            shuffle(key, size, position, table)
            position = np.int64(table[position])
        out[i] = _address_of(block, blocks[number + 1, ONCE], position, entries)
    return others
