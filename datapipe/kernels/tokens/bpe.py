"""Byte-pair encoding of pretokens: bytes to token ids. The merge of lowest rank comes first, the leftmost of equal ones.

    pretokens ── in the cache? ──▶ ids
              └─ bytes ──▶ single-byte ids ── merge, by a scan (short) or a heap (long) ──▶ ids, cached where they fit

A line of the first cache, 32 bytes, holds a pretoken of up to 15 bytes and up to 3 ids. A second cache holds other pretokens
of up to 63 bytes. Both are direct-mapped: a new pretoken replaces the old one. Cached pretokens are compared byte by byte, so
the caches change the time and nothing else, and their size is fixed.

A pretoken of n bytes costs O(n²) up to `SHORT` bytes and O(n log n) above. The merges stand in one hash table of 16-byte slots.

The algorithm is that of Hugging Face `tokenizers` (`models/bpe/word.rs`): the pair of lowest rank in the whole pretoken merges
next, the leftmost of equal ones.
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
"""Bytes up to which a scan finds the lowest rank; longer pretokens keep a heap of pairs."""

_NONE = np.uint64(0)
_K1, _K2 = GOLDEN, np.uint64(0xD6E8FEB86659FD93)
_8, _29, _32, _56 = (np.uint64(number) for number in (8, 29, 32, 56))
_LOW = np.uint64(0xFFFFFFFF)


class Tokens(NamedTuple):
    """The vocabulary of `encode_pretokens`, an input of kernels.

    Attributes:
        byte_ids: (256,) int32.
        merges: (num_slots, 2) uint64, `merge_table`.
        whole_first: whether a pretoken that is a token becomes that token, whatever its merges; else the fields below are
            unused.
        slots: (num_slots,) int32, the ids of tokens by the hash of their bytes; see `fill_vocabulary`.
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
    """Caches that `encode_pretokens` keeps between calls, and scratch.

    Attributes:
        short_lines: (num_lines, LINE_WORDS) uint64, the first cache; zeros at first. num_lines is a power of two.
        long_lines: (num_long_lines, LONG_WORDS) uint64, the second cache, likewise.
        ids, following, before: scratch, int32, as long as the longest pretoken and at least SHORT.
        pairs: scratch, uint64, of the same length: the merge of each pair.
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
    """The hash table of merges: (num_slots, 2) uint64, keys `left << 32 | right` + 1 and values `rank << 32 | id`.

    Args:
        lefts, rights, results: (num_merges,) ids, in order of rank. The last of two equal pairs counts, as in `tokenizers`.
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
    """Fills `table` (num_slots, 2), zeros at first, num_slots a power of two; see `merge_table`."""
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
    """`rank << 32 | result` of a pair; the greatest uint64 where the pair does not merge."""
    mask = np.uint64(table.shape[0] - 1)
    key = (np.uint64(left) << _32 | np.uint64(right)) + np.uint64(1)
    slot = _slot_of(key, mask)
    while True:
        stored = table[slot, 0]
        if stored == key:
            return table[slot, 1]
        if stored == _NONE:
            return ~_NONE
        slot = (slot + 1) & np.int64(mask)


@inline
def _merge_short(data, start, stop, tokens, workspace) -> Any:
    """Writes the ids of a short pretoken to the start of `workspace.ids`; returns their number."""
    byte_ids, table, ids, pairs = tokens.byte_ids, tokens.merges, workspace.ids, workspace.pairs
    num_ids = stop - start
    for index in range(num_ids):
        ids[index] = byte_ids[data[start + index]]
    for index in range(num_ids - 1):
        pairs[index] = _merged(table, ids[index], ids[index + 1])
    while num_ids > 1:
        best, least = 0, pairs[0]
        for index in range(1, num_ids - 1):
            if pairs[index] >> _32 < least >> _32:
                best, least = index, pairs[index]
        if least == ~_NONE:
            break
        ids[best] = np.int32(least & _LOW)
        num_ids -= 1
        for index in range(best + 1, num_ids):
            ids[index] = ids[index + 1]
            pairs[index] = pairs[index + 1] if index < num_ids - 1 else ~_NONE
        if best > 0:
            pairs[best - 1] = _merged(table, ids[best - 1], ids[best])
        pairs[best] = _merged(table, ids[best], ids[best + 1]) if best < num_ids - 1 else ~_NONE
    return num_ids


@inline
def _push(heap, size, entry) -> Any:
    node = size
    while node > 0:
        parent = (node - 1) >> 1
        if heap[parent] <= entry:
            break
        heap[node] = heap[parent]
        node = parent
    heap[node] = entry
    return size + 1


@inline
def _pop(heap, size) -> Any:
    """Removes the least entry, `heap[0]`; returns the new size."""
    size -= 1
    entry, node = heap[size], 0
    while True:
        child = 2 * node + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= entry:
            break
        heap[node] = heap[child]
        node = child
    heap[node] = entry
    return size


@inline
def _merge_long(data, start, stop, tokens, workspace) -> Any:
    """Like `_merge_short`, with a linked list of ids and a heap of `rank << 32 | index`; stale entries are skipped."""
    byte_ids, table, ids, pairs = tokens.byte_ids, tokens.merges, workspace.ids, workspace.pairs
    following, before, heap = workspace.following, workspace.before, workspace.heap
    num_ids, size = stop - start, 0
    for index in range(num_ids):
        ids[index] = byte_ids[data[start + index]]
        following[index], before[index] = index + 1, index - 1
    for index in range(num_ids):
        pairs[index] = _merged(table, ids[index], ids[index + 1]) if index + 1 < num_ids else ~_NONE
        if pairs[index] != ~_NONE:
            size = _push(heap, size, (pairs[index] >> _32) << _32 | np.uint64(index))
    while size > 0:
        entry = heap[0]
        size = _pop(heap, size)
        index = np.int64(entry & _LOW)
        if ids[index] < 0 or pairs[index] == ~_NONE or pairs[index] >> _32 != entry >> _32:
            continue
        gone = following[index]
        ids[index] = np.int32(pairs[index] & _LOW)
        ids[gone] = -1
        after = np.int64(following[gone])
        following[index] = after
        pairs[index] = ~_NONE
        if after < num_ids:
            before[after] = index
            pairs[index] = _merged(table, ids[index], ids[after])
            if pairs[index] != ~_NONE:
                size = _push(heap, size, (pairs[index] >> _32) << _32 | np.uint64(index))
        ahead = np.int64(before[index])
        if ahead >= 0:
            pairs[ahead] = _merged(table, ids[ahead], ids[index])
            if pairs[ahead] != ~_NONE:
                size = _push(heap, size, (pairs[ahead] >> _32) << _32 | np.uint64(ahead))
    num_kept, index = 0, np.int64(0)
    while index < num_ids:
        ids[num_kept] = ids[index]
        num_kept += 1
        index = np.int64(following[index])
    return num_kept


@inline
def _token_of_bytes(data, start, stop, tokens) -> Any:
    """The id of the token with exactly these bytes, or -1."""
    mask = len(tokens.slots) - 1
    slot = np.int64(pretoken_hash(data, start, stop) & np.uint64(mask))
    while tokens.slots[slot] >= 0:
        token = tokens.slots[slot]
        begin = tokens.offsets[token]
        same = tokens.offsets[token + 1] - begin == stop - start
        index = 0
        while same and index < stop - start:
            same = tokens.data[begin + index] == data[start + index]
            index += 1
        if same:
            return token
        slot = (slot + 1) & mask
    return np.int32(-1)


@inline
def pretoken_hash(data, start, stop) -> Any:
    """FNV-1a, finished so that high bits reach low ones."""
    hashed = fnv(data, start, stop)
    return (hashed ^ (hashed >> _29)) * _K2 >> _8


@kernel
def fill_vocabulary(token_offsets: Int64s, token_bytes: UInt8s, slots: Int32sOut) -> None:
    """Fills `slots` (num_slots,), all -1 at first, a power of two above the number of tokens: ids by the hash of their
    bytes.
    """
    mask = len(slots) - 1
    for token in range(len(token_offsets) - 1):
        if token_offsets[token + 1] == token_offsets[token]:
            continue
        slot = np.int64(pretoken_hash(token_bytes, token_offsets[token], token_offsets[token + 1]) & np.uint64(mask))
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = token


@kernel
def longest_pretoken(start: int, ends: Int64s) -> int:
    """Bytes of the longest pretoken. They end at `ends` (num_pretokens,), and the first begins at `start`; 0 for none."""
    longest = np.int64(0)
    for end in ends:
        longest = max(longest, end - start)
        start = end
    return int(longest)


@kernel
def encode_pretokens(
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

    One loop nest above 40 lines: it reads the first cache in place, since most pretokens are there and a call for each is
    slower.

    Args:
        offsets: (num_texts + 1,) int64.
        data: (num_bytes,) uint8.
        fixed: (num_texts,) int32: the id of a text that is one token, or -1.
        ends: (num_pretokens,) int64, the end of each pretoken; every text that is not empty ends with one.
        tokens: the vocabulary.
        workspace: caches and scratch.
        out_offsets: (num_texts + 1,) int64.
        out: int32, room for num_bytes: no pretoken has more ids than bytes.
    """
    lines, long_lines, ids = workspace.short_lines, workspace.long_lines, workspace.ids
    line_mask, long_mask = np.uint64(lines.shape[0] - 1), np.uint64(long_lines.shape[0] - 1)
    num_written, pretoken = np.int64(0), np.int64(0)
    out_offsets[0] = 0
    for text in range(len(offsets) - 1):
        start, text_end = offsets[text], offsets[text + 1]
        is_fixed = fixed[text] >= 0
        if is_fixed:
            out[num_written] = fixed[text]
            num_written += 1
        while start < text_end:
            stop = ends[pretoken]
            pretoken += 1
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
                    out[num_written] = np.int32(first & _LOW)
                    if num_ids > 1:
                        out[num_written + 1] = np.int32(first >> _32)
                    if num_ids > 2:
                        out[num_written + 2] = np.int32(last & _LOW)
                    num_written += num_ids
                    start = stop
                    continue
            else:
                slot = np.int64(0)
                low = high = _NONE
            num_ids = np.int64(0)
            if tokens.whole_first:
                whole = _token_of_bytes(data, start, stop, tokens)
                if whole >= 0:
                    ids[0] = whole
                    num_ids = 1
            long_slot = np.int64(-1)
            if num_ids == 0 and size <= LONG_BYTES:
                long_slot = np.int64(pretoken_hash(data, start, stop) & long_mask)
                num_ids = recall(long_lines, long_slot, data, start, size, ids)
                long_slot = long_slot if num_ids == 0 else np.int64(-1)
            if num_ids == 0:
                if size <= SHORT:
                    num_ids = np.int64(_merge_short(data, start, stop, tokens, workspace))
                else:
                    num_ids = np.int64(_merge_long(data, start, stop, tokens, workspace))
            for index in range(num_ids):
                out[num_written + index] = ids[index]
            num_written += num_ids
            if size <= LINE_BYTES and num_ids <= LINE_IDS:
                lines[slot, 0], lines[slot, 1] = low, high
                lines[slot, 2] = np.uint64(ids[0]) | (np.uint64(ids[1]) if num_ids > 1 else _NONE) << _32
                lines[slot, 3] = (np.uint64(ids[2]) if num_ids > 2 else _NONE) | np.uint64(num_ids) << _32
            elif long_slot >= 0 and num_ids <= LONG_IDS:
                keep(long_lines, long_slot, data, start, size, ids, num_ids)
            start = stop
        out_offsets[text + 1] = num_written
    return int(num_written)
