"""Rows from many blocks of many shards in one call: each row is known by the memory address of its block.

    addresses (n,) ── find_rows ──▶ block, row in it (n,) ── copy_rows ──▶ tokens (n, S)
                                                          ── copy_with_next ──▶ tokens, next tokens (n, S)
                                                          ── count_chunks ──▶ first chunk (n,), chunk_offsets (n + 1,)
                                                                             ── gather_* ──▶ lengths, starts, keys (num_chunks,)

A block is a record batch, described by `BLOCK_WIDTH` int64: addresses of its columns and its number of chunks. Offsets and
lengths from a file are compared with those numbers before they become an address or an index, so a damaged file is found
and never followed. A file that was cut short reads as zeros from there on, so copies of tokens come last and end with the
search of `find_cut`.

Arguments stay flat: a NamedTuple of six arrays adds 2.4 us to a call, and all calls of a batch take 28 us together.
"""

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import copy_into
from datapipe.kernels.tokens.batch import IGNORED
from datapipe.kernels.tokens.memory import int32_at, int64_at, prefetch, uint8_at, uint16_at, uint32_at, uint64_at
from datapipe.kernels.types import (
    Int32MatrixOut,
    Int32sOut,
    Int64MatrixOut,
    Int64s,
    Int64sOut,
    UInt16MatrixOut,
    UInt32MatrixOut,
    UInt64MatrixOut,
)

BLOCK_WIDTH = 10
TOKENS, OFFSETS, LENGTHS, KEYS, STARTS, NUM_CHUNKS, END, RUN_OFFSETS, RUNS, NUM_BORDERS = range(BLOCK_WIDTH)
"""The items of a block: five addresses (of tokens 0: absent), a number, and the address of the last byte of the mapped file, or
0; then of the runs that no loss counts two addresses (0 where there are none in any row) and the number of their borders."""

BLOCK_BYTES = 8 * BLOCK_WIDTH

CACHE_LINE = 64
STRETCH = 256
"""Tokens that are copied while the same part of the next row is loaded, since the processor does
not foresee it: 16 rows of 2,048 ids take 10 us instead of 13. Stretches of 64 take as long."""


@kernel
def find_rows(
    addresses: Int64s,  # (n,), in 0..shard_starts[-1] - 1
    shard_starts: Int64s,  # (num_shards + 1,), ascending from 0
    # (num_shards,): address of the table of each shard, or 0. A table is rows of `BLOCK_WIDTH`
    # int64: the first begins with the number of rows per block, and the others are the blocks.
    tables: Int64s,
    now: int,  # int64, the new `last_used` of the shards of these rows
    last_used: Int64sOut,  # (num_shards,)
    shards: Int64sOut,  # (n,), the shard of each row
    rows: Int64sOut,  # (n,), the row in its block, or in its shard where the block is absent
    blocks: Int64sOut,  # (n,), the address of the block; 0 where it is absent
) -> int:
    """Finds the block of each row; returns the number of rows without one, or -1 for an address outside the shards."""
    missing = 0
    for i in range(addresses.shape[0]):
        if not 0 <= addresses[i] < shard_starts[-1]:
            return -1
        # the last shard that starts at or before the address: an empty shard shares its start with the next
        below, above = 0, shard_starts.shape[0] - 1
        while above - below > 1:
            middle = (below + above) // 2
            if shard_starts[middle] <= addresses[i]:
                below = middle
            else:
                above = middle
        shards[i] = below
        rows[i] = addresses[i] - shard_starts[below]
        blocks[i] = 0
        last_used[below] = now
        if tables[below] != 0:
            rows_per_block = int64_at(tables[below], 1)[0]
            number = rows[i] // rows_per_block
            block = tables[below] + (number + 1) * BLOCK_BYTES
            if int64_at(block, BLOCK_WIDTH)[TOKENS] != 0:
                blocks[i] = block
                rows[i] -= number * rows_per_block
        if blocks[i] == 0:
            missing += 1
    return missing


@inline
def _copy_stretches(row: Any, following: Any, out: Any) -> None:
    """Copies a row, and prefetches the row at the address `following` at the same pace."""
    length, id_bytes = len(out), row.itemsize
    for start in range(0, length, STRETCH):
        stop = min(start + STRETCH, length)
        for line in range(start * id_bytes, stop * id_bytes, CACHE_LINE):
            prefetch(following + line)
        source, target = row[start:stop], out[start:stop]
        for token in range(stop - start):
            target[token] = source[token]


@inline
def _tokens_at(blocks: Any, rows: Any, i: Any, row_bytes: Any) -> Any:
    return int64_at(blocks[i], BLOCK_WIDTH)[TOKENS] + rows[i] * row_bytes


@inline
def _first_cut(blocks: Any) -> Any:
    for i in range(blocks.shape[0]):
        end = int64_at(blocks[i], BLOCK_WIDTH)[END]
        if end != 0 and uint8_at(end, 1)[0] == 0:
            return i
    return -1


@inline
def _list_at(block_at: Any, row: Any, offsets_at: Any, count_at: Any) -> Any:
    """Start and stop of a row's list in the items of its block; -1 and 0 where they lie outside, 0 and 0 without a column."""
    block = int64_at(block_at, BLOCK_WIDTH)
    if block[offsets_at] == 0:
        return 0, 0
    offsets = int32_at(block[offsets_at] + row * 4, 2)
    first, stop = np.int64(offsets[0]), np.int64(offsets[1])
    if first < 0 or first > stop or stop > block[count_at]:
        return -1, 0
    return first, stop


@kernel
def copy_rows(
    blocks: Int64s, rows: Int64s, id_bytes: int, out: UInt16MatrixOut | UInt32MatrixOut | Int32MatrixOut | Int64MatrixOut
) -> int:
    """Copies row `rows[i]` of block `blocks[i]`, both (n,) int64, whose ids have 2 or 4 bytes, to row i of `out` (n, S).
    Returns as `find_cut`."""
    last, length = out.shape[0] - 1, out.shape[1]
    for i in range(out.shape[0]):
        here = _tokens_at(blocks, rows, i, length * id_bytes)
        following = _tokens_at(blocks, rows, min(i + 1, last), length * id_bytes)
        if id_bytes == 2:
            _copy_stretches(uint16_at(here, length), following, out[i])
        else:
            _copy_stretches(uint32_at(here, length), following, out[i])
    return _first_cut(blocks)


@kernel
def copy_with_next(
    blocks: Int64s,
    rows: Int64s,
    id_bytes: int,
    out: Int32MatrixOut | Int64MatrixOut,  # (n, S)
    next_out: Int32MatrixOut | Int64MatrixOut,  # (n, S), of each token the next one of its chunk, else IGNORED
) -> int:
    """`copy_rows`, and from each row while it is in the processor's nearest cache its labels. Returns the first row that points
    outside its block, or whose chunks do not fit into it; else as `find_cut`."""
    last, length = out.shape[0] - 1, out.shape[1]
    for i in range(out.shape[0]):  # no row waits for the offsets and lengths of another
        prefetch(int64_at(blocks[i], BLOCK_WIDTH)[LENGTHS] + _list_at(blocks[i], rows[i], OFFSETS, NUM_CHUNKS)[0] * 4)
    for i in range(out.shape[0]):
        here = _tokens_at(blocks, rows, i, length * id_bytes)
        following = _tokens_at(blocks, rows, min(i + 1, last), length * id_bytes)
        if id_bytes == 2:
            _copy_stretches(uint16_at(here, length), following, out[i])
            copy_into(next_out[i, : length - 1], uint16_at(here, length)[1:])
        else:
            _copy_stretches(uint32_at(here, length), following, out[i])
            copy_into(next_out[i, : length - 1], uint32_at(here, length)[1:])
        first, stop = _list_at(blocks[i], rows[i], OFFSETS, NUM_CHUNKS)
        if first < 0:
            return i
        chunk_lengths, position = int32_at(int64_at(blocks[i], BLOCK_WIDTH)[LENGTHS] + first * 4, stop - first), 0
        for chunk in range(stop - first):
            chunk_length = np.int64(chunk_lengths[chunk])  # read once: the file may change
            if chunk_length < 1 or chunk_length > length - position:
                return i
            position += chunk_length
            next_out[i, position - 1] = IGNORED
        for token in range(position, length):
            next_out[i, token] = IGNORED
    return _first_cut(blocks)


@inline
def _count_lists(blocks: Any, rows: Any, offsets_at: Any, count_at: Any, firsts: Any, out_offsets: Any) -> Any:
    out_offsets[0] = 0
    for i in range(blocks.shape[0]):
        first, stop = _list_at(blocks[i], rows[i], offsets_at, count_at)
        if first < 0:
            return i
        firsts[i] = first
        out_offsets[i + 1] = out_offsets[i] + stop - first
    return -1


@kernel
def count_chunks(blocks: Int64s, rows: Int64s, firsts: Int64sOut, chunk_offsets: Int64sOut) -> int:
    """Finds the chunks of each row; returns the first row that points outside its block, or -1.

    Args:
        blocks, rows: (n,) int64.
        firsts: (n,) int64, the number in its block of the row's first chunk.
        chunk_offsets: (n + 1,) int64, the running sum of the rows' chunks.
    """
    return _count_lists(blocks, rows, OFFSETS, NUM_CHUNKS, firsts, chunk_offsets)


@kernel
def count_borders(blocks: Int64s, rows: Int64s, firsts: Int64sOut, run_offsets: Int64sOut) -> int:
    """Finds the runs of each row that no loss counts, two borders each; otherwise as `count_chunks`."""
    return _count_lists(blocks, rows, RUN_OFFSETS, NUM_BORDERS, firsts, run_offsets)


@kernel
def gather_runs(blocks: Int64s, firsts: Int64s, run_offsets: Int64s, sequence_length: int, out: Int32sOut) -> int:
    """The borders of the runs of each row, into `out` (num_borders,) int32; returns the first row in which they are no starts
    and stops that ascend to `sequence_length`, or -1. Other arguments: of `count_borders`."""
    for i in range(blocks.shape[0]):
        count = run_offsets[i + 1] - run_offsets[i]
        if count % 2 != 0:
            return i
        if count > 0:
            borders = int32_at(int64_at(blocks[i], BLOCK_WIDTH)[RUNS] + firsts[i] * 4, count)
            last = 0
            for number in range(count):
                border = borders[number]
                if border < last or border > sequence_length:
                    return i
                last = border
                out[run_offsets[i] + number] = border
    return -1


@kernel
def gather_lengths(blocks: Int64s, firsts: Int64s, chunk_offsets: Int64s, sequence_length: int, out: Int32sOut) -> int:
    """Lengths of the chunks of each row, into `out` (num_chunks,) int32; returns the first row that they do not fit, or -1.
    `blocks`, `firsts`, `chunk_offsets`: as for `count_chunks`. `sequence_length`: the chunks of a
    row have at least one token each and at most this many together."""
    for i in range(blocks.shape[0]):
        count = chunk_offsets[i + 1] - chunk_offsets[i]
        lengths = int32_at(int64_at(blocks[i], BLOCK_WIDTH)[LENGTHS] + firsts[i] * 4, count)
        left = sequence_length
        for chunk in range(count):
            length = lengths[chunk]
            if length < 1 or length > left:
                return i
            left -= length
            out[chunk_offsets[i] + chunk] = length
    return -1


@kernel
def gather_starts(blocks: Int64s, firsts: Int64s, chunk_offsets: Int64s, out: Int64sOut) -> None:
    """The start of each chunk in its document, into `out` (num_chunks,) int64; other arguments as for `gather_lengths`."""
    for i in range(blocks.shape[0]):
        count = chunk_offsets[i + 1] - chunk_offsets[i]
        starts = int64_at(int64_at(blocks[i], BLOCK_WIDTH)[STARTS] + firsts[i] * 8, count)
        for chunk in range(count):
            out[chunk_offsets[i] + chunk] = starts[chunk]


@kernel
def gather_keys(blocks: Int64s, firsts: Int64s, chunk_offsets: Int64s, out: UInt64MatrixOut) -> None:
    """The key of each chunk's document, into `out` (num_chunks, 2) uint64; other arguments as for `gather_lengths`."""
    for i in range(blocks.shape[0]):
        count = chunk_offsets[i + 1] - chunk_offsets[i]
        keys = uint64_at(int64_at(blocks[i], BLOCK_WIDTH)[KEYS] + firsts[i] * 16, 2 * count)
        for chunk in range(count):
            out[chunk_offsets[i] + chunk, 0] = keys[2 * chunk]
            out[chunk_offsets[i] + chunk, 1] = keys[2 * chunk + 1]


@kernel
def find_cut(blocks: Int64s) -> int:
    """The first of `blocks` (n,) int64 whose mapped file, which never ends with a zero, was cut short; or -1."""
    return _first_cut(blocks)
