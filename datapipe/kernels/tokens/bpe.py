"""Byte-pair encoding of pieces: bytes to token ids by merges of the lowest rank first, the leftmost of equals.

    pieces ── in the cache? ──▶ ids
           └─ bytes ──▶ single-byte ids ── merge, by a scan (short) or a heap (long) ──▶ ids, kept in the cache where they fit

A line of 32 bytes holds a piece of up to 15 bytes and up to 3 ids; a second cache holds other pieces of up to 63 bytes. Both
are direct-mapped: a new piece takes the place of an old one. What is found is compared byte by byte, so the cache shows in
nothing but the time, and its size is fixed.

A piece of n bytes costs O(n²) up to `SHORT` bytes and O(n log n) above. The merges stand in one hash table of 16-byte slots.

The algorithm is that of Hugging Face `tokenizers` (`models/bpe/word.rs`): the pair with the lowest rank in the whole piece
merges next, the leftmost of equal ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import fnv, num_slots_for
from datapipe.kernels.tokens.bpe_cache import (
    LINE_BYTES,
    LINE_IDS,
    LONG_BYTES,
    LONG_IDS,
    keep,
    packed_bytes,
    recall,
)
from datapipe.kernels.types import Int32s, Int32sOut, Int64s, Int64sOut, UInt8s, UInt64Matrix, UInt64MatrixOut, UInt64sOut
from datapipe.rng import GOLDEN

SHORT = 40
"""Bytes up to which the least rank is found by looking at all; above, a heap of pairs is kept."""

NO_RANK = 0x7FFFFFFF
_NONE = np.uint64(0)
_K1, _K2 = GOLDEN, np.uint64(0xD6E8FEB86659FD93)
_8, _29, _32, _56 = (np.uint64(number) for number in (8, 29, 32, 56))
_LOW = np.uint64(0xFFFFFFFF)


class Tokens(NamedTuple):
    """What `encode_pieces` looks up, an input of kernels.

    Attributes:
        byte_ids: (256,) int32.
        merges: (num_slots, 2) uint64, `merge_table`.
        whole_first: whether a piece that is a token is that token, whatever its merges say; else the rest is not read.
        slots: (num_slots,) int32, the ids of tokens by the hash of their bytes, see `fill_vocabulary`.
        offsets: (num_tokens + 1,) int64.
        data: the bytes of all tokens, uint8.
    """

    byte_ids: Int32s
    merges: UInt64Matrix
    whole_first: bool
    slots: Int32s
    offsets: Int64s
    data: UInt8s


class Workspace(NamedTuple):
    """What `encode_pieces` keeps from call to call, and scratch.

    Attributes:
        short_lines: (num_lines, LINE_WORDS) uint64, the cache; zeros at first. num_lines is a power of two.
        long_lines: (num_long_lines, LONG_WORDS) uint64, the second cache, likewise.
        ids, following, before: scratch, int32, as long as the longest piece and at least SHORT.
        pairs: scratch, uint64, likewise: what each pair merges to.
        heap: scratch, uint64, three times as long.
    """

    short_lines: UInt64MatrixOut
    long_lines: UInt64MatrixOut
    ids: Int32sOut
    following: Int32sOut
    before: Int32sOut
    pairs: UInt64sOut
    heap: UInt64sOut


def merge_table(lefts: np.ndarray, rights: np.ndarray, results: np.ndarray) -> np.ndarray:
    """Merges in the order of their ranks as a hash table: (num_slots, 2) uint64, `left << 32 | right` + 1, `rank << 32 | id`.

    Args:
        lefts, rights, results: (num_merges,) ids. Of a pair that comes twice the last counts, as in `tokenizers`.
    """
    table = np.zeros((num_slots_for(len(lefts)), 2), np.uint64)
    fill_merges(np.asarray(lefts, np.int64), np.asarray(rights, np.int64), np.asarray(results, np.int64), table)
    return table


@inline
def _slot_of(key, mask) -> Any:
    hashed = key * _K1
    return np.int64((hashed ^ (hashed >> _32)) & mask)


@kernel
def fill_merges(lefts: Int64s, rights: Int64s, results: Int64s, table: UInt64MatrixOut) -> None:
    """Fills the zeros of `table` (num_slots, 2), num_slots a power of two; see `merge_table`."""
    mask = np.uint64(table.shape[0] - 1)
    for rank in range(len(lefts)):
        key = (np.uint64(lefts[rank]) << _32 | np.uint64(rights[rank])) + np.uint64(1)
        slot = _slot_of(key, mask)
        while table[slot, 0] != _NONE and table[slot, 0] != key:
            slot = (slot + 1) & np.int64(mask)
        table[slot, 0] = key
        table[slot, 1] = np.uint64(rank) << _32 | np.uint64(results[rank])


@inline
def _merged(table, left, right) -> Any:
    """`rank << 32 | result` of a pair; the greatest uint64 where it does not merge."""
    mask = np.uint64(table.shape[0] - 1)
    key = (np.uint64(left) << _32 | np.uint64(right)) + np.uint64(1)
    slot = _slot_of(key, mask)
    while True:
        found = table[slot, 0]
        if found == key:
            return table[slot, 1]
        if found == _NONE:
            return ~_NONE
        slot = (slot + 1) & np.int64(mask)


@inline
def _merge_short(data, start, stop, tokens, workspace) -> Any:
    """Puts the ids of a short piece at the start of `workspace.ids`; returns their number."""
    byte_ids, table, ids, pairs = tokens.byte_ids, tokens.merges, workspace.ids, workspace.pairs
    num_ids = stop - start
    for place in range(num_ids):
        ids[place] = byte_ids[data[start + place]]
    for place in range(num_ids - 1):
        pairs[place] = _merged(table, ids[place], ids[place + 1])
    while num_ids > 1:
        best, least = 0, pairs[0]
        for place in range(1, num_ids - 1):
            if pairs[place] >> _32 < least >> _32:
                best, least = place, pairs[place]
        if least == ~_NONE:
            break
        ids[best] = np.int32(least & _LOW)
        num_ids -= 1
        for place in range(best + 1, num_ids):
            ids[place] = ids[place + 1]
            pairs[place] = pairs[place + 1] if place < num_ids - 1 else ~_NONE
        if best > 0:
            pairs[best - 1] = _merged(table, ids[best - 1], ids[best])
        pairs[best] = _merged(table, ids[best], ids[best + 1]) if best < num_ids - 1 else ~_NONE
    return num_ids


@inline
def _push(heap, size, entry) -> Any:
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if heap[parent] <= entry:
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = entry
    return size + 1


@inline
def _pop(heap, size) -> Any:
    """Takes the least entry, `heap[0]`, out; returns the new size."""
    size -= 1
    entry, place = heap[size], 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= entry:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = entry
    return size


@inline
def _merge_long(data, start, stop, tokens, workspace) -> Any:
    """As `_merge_short`, by a linked list of ids and a heap of `rank << 32 | place`, entries gone stale passed over."""
    byte_ids, table, ids, pairs = tokens.byte_ids, tokens.merges, workspace.ids, workspace.pairs
    following, before, heap = workspace.following, workspace.before, workspace.heap
    num_ids, size = stop - start, 0
    for place in range(num_ids):
        ids[place] = byte_ids[data[start + place]]
        following[place], before[place] = place + 1, place - 1
    for place in range(num_ids):
        pairs[place] = _merged(table, ids[place], ids[place + 1]) if place + 1 < num_ids else ~_NONE
        if pairs[place] != ~_NONE:
            size = _push(heap, size, (pairs[place] >> _32) << _32 | np.uint64(place))
    while size > 0:
        entry = heap[0]
        size = _pop(heap, size)
        place = np.int64(entry & _LOW)
        if ids[place] < 0 or pairs[place] == ~_NONE or pairs[place] >> _32 != entry >> _32:
            continue
        gone = following[place]
        ids[place] = np.int32(pairs[place] & _LOW)
        ids[gone] = -1
        after = np.int64(following[gone])
        following[place] = after
        pairs[place] = ~_NONE
        if after < num_ids:
            before[after] = place
            pairs[place] = _merged(table, ids[place], ids[after])
            if pairs[place] != ~_NONE:
                size = _push(heap, size, (pairs[place] >> _32) << _32 | np.uint64(place))
        ahead = np.int64(before[place])
        if ahead >= 0:
            pairs[ahead] = _merged(table, ids[ahead], ids[place])
            if pairs[ahead] != ~_NONE:
                size = _push(heap, size, (pairs[ahead] >> _32) << _32 | np.uint64(ahead))
    found, place = 0, np.int64(0)
    while place < num_ids:
        ids[found] = ids[place]
        found += 1
        place = np.int64(following[place])
    return found


@inline
def _whole(data, start, stop, tokens) -> Any:
    """The id of the token with just these bytes, or -1."""
    mask = len(tokens.slots) - 1
    slot = np.int64(piece_hash(data, start, stop) & np.uint64(mask))
    while tokens.slots[slot] >= 0:
        token = tokens.slots[slot]
        begin = tokens.offsets[token]
        same = tokens.offsets[token + 1] - begin == stop - start
        place = 0
        while same and place < stop - start:
            same = tokens.data[begin + place] == data[start + place]
            place += 1
        if same:
            return token
        slot = (slot + 1) & mask
    return np.int32(-1)


@inline
def piece_hash(data, start, stop) -> Any:
    """FNV-1a with a finish that mixes high bits into low ones."""
    hashed = fnv(data, start, stop)
    return (hashed ^ (hashed >> _29)) * _K2 >> _8


@kernel
def fill_vocabulary(token_offsets: Int64s, token_bytes: UInt8s, slots: Int32sOut) -> None:
    """Fills `slots` (num_slots,), all -1, a power of two above the number of tokens: ids by the hash of their bytes."""
    mask = len(slots) - 1
    for token in range(len(token_offsets) - 1):
        if token_offsets[token + 1] == token_offsets[token]:
            continue
        slot = np.int64(piece_hash(token_bytes, token_offsets[token], token_offsets[token + 1]) & np.uint64(mask))
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = token


@kernel
def longest_piece(start: int, ends: Int64s) -> int:
    """Bytes of the longest of the pieces that end at `ends` (num_pieces,), the first of which begins at `start`; 0 for none."""
    longest = np.int64(0)
    for end in ends:
        longest = max(longest, end - start)
        start = end
    return int(longest)


@kernel
def encode_pieces(
    offsets: Int64s,
    data: UInt8s,
    fixed: Int32s,
    ends: Int64s,
    tokens: Tokens,
    workspace: Workspace,
    out_offsets: Int64sOut,
    out: Int32sOut,
) -> int:
    """Token ids of every text; returns their number.

    Args:
        offsets: (num_texts + 1,) int64.
        data: (num_bytes,) uint8.
        fixed: (num_texts,) int32: the one id that a text is, or -1.
        ends: (num_pieces,) int64, where each piece ends; every text that is not empty ends with a piece.
        tokens: what is looked up.
        workspace: caches and scratch.
        out_offsets: (num_texts + 1,) int64.
        out: (num_bytes,) int32 at least: no piece has more ids than bytes.
    """
    lines, long_lines, ids = workspace.short_lines, workspace.long_lines, workspace.ids
    line_mask, long_mask = np.uint64(lines.shape[0] - 1), np.uint64(long_lines.shape[0] - 1)
    to, piece = np.int64(0), np.int64(0)
    out_offsets[0] = 0
    for text in range(len(offsets) - 1):
        start, text_end = offsets[text], offsets[text + 1]
        is_fixed = fixed[text] >= 0
        if is_fixed:
            out[to] = fixed[text]
            to += 1
        while start < text_end:
            stop = ends[piece]
            piece += 1
            size = stop - start
            if is_fixed:
                start = stop
                continue
            if size <= LINE_BYTES:
                low = packed_bytes(data, start, min(size, 8))
                high = np.uint64(size) << _56
                if size > 8:
                    high |= packed_bytes(data, start + 8, size - 8)
                mixed = (low ^ (high * _K2)) * _K1
                slot = np.int64((mixed >> _32) & line_mask)
                if lines[slot, 0] == low and lines[slot, 1] == high:
                    first, last = lines[slot, 2], lines[slot, 3]
                    num_ids = np.int64(last >> _32)
                    out[to] = np.int32(first & _LOW)
                    if num_ids > 1:
                        out[to + 1] = np.int32(first >> _32)
                    if num_ids > 2:
                        out[to + 2] = np.int32(last & _LOW)
                    to += num_ids
                    start = stop
                    continue
            else:
                slot = np.int64(0)
                low = high = _NONE
            num_ids = np.int64(0)
            if tokens.whole_first:
                whole = _whole(data, start, stop, tokens)
                if whole >= 0:
                    ids[0] = whole
                    num_ids = 1
            long_slot = np.int64(-1)
            if num_ids == 0 and size <= LONG_BYTES:
                long_slot = np.int64(piece_hash(data, start, stop) & long_mask)
                num_ids = recall(long_lines, long_slot, data, start, size, ids)
                long_slot = long_slot if num_ids == 0 else np.int64(-1)
            if num_ids == 0:
                if size <= SHORT:
                    num_ids = np.int64(_merge_short(data, start, stop, tokens, workspace))
                else:
                    num_ids = np.int64(_merge_long(data, start, stop, tokens, workspace))
            for place in range(num_ids):
                out[to + place] = ids[place]
            to += num_ids
            if size <= LINE_BYTES and num_ids <= LINE_IDS:
                lines[slot, 0], lines[slot, 1] = low, high
                lines[slot, 2] = np.uint64(ids[0]) | (np.uint64(ids[1]) if num_ids > 1 else _NONE) << _32
                lines[slot, 3] = (np.uint64(ids[2]) if num_ids > 2 else _NONE) | np.uint64(num_ids) << _32
            elif long_slot >= 0 and num_ids <= LONG_IDS:
                keep(long_lines, long_slot, data, start, size, ids, num_ids)
            start = stop
        out_offsets[text + 1] = to
    return int(to)
