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

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.mixing import eight_bytes

SHORT = 40
"""Bytes up to which the least rank is found by looking at all; above, a heap of pairs is kept."""

LINE_BYTES, LINE_IDS, LINE_WORDS = 15, 3, 4
LONG_BYTES, LONG_IDS = 63, 32
LONG_WORDS = 8 + LONG_IDS // 2
"""A line of the second cache: the piece (its length in the last byte), then its ids, two a word, their number at the end."""

NO_RANK = 0x7FFFFFFF
_NONE = np.uint64(0)
_K1, _K2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_8, _29, _32, _56 = (np.uint64(number) for number in (8, 29, 32, 56))
_LOW = np.uint64(0xFFFFFFFF)


def merge_table(lefts: np.ndarray, rights: np.ndarray, results: np.ndarray) -> np.ndarray:
    """Merges in the order of their ranks as a hash table: (num_slots, 2) uint64, `left << 32 | right` + 1, `rank << 32 | id`.

    Args:
        lefts, rights, results: (num_merges,) ids. Of a pair that comes twice the last counts, as in `tokenizers`.
    """
    num_slots = 1 << max(1, (2 * len(lefts)).bit_length())
    table = np.zeros((num_slots, 2), np.uint64)
    fill_merges(np.asarray(lefts, np.int64), np.asarray(rights, np.int64), np.asarray(results, np.int64), table)
    return table


@inline
def _slot_of(key, mask) -> Any:
    hashed = key * _K1
    return np.int64((hashed ^ (hashed >> _32)) & mask)


@kernel("void(int64[::1], int64[::1], int64[::1], uint64[:, ::1])")
def fill_merges(lefts, rights, results, table) -> None:
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
def _merge_short(data, start, stop, byte_ids, table, ids, pairs) -> Any:
    """The ids of a short piece, at the start of `ids`, and their number. `pairs`: scratch, what each pair merges to."""
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
def _merge_long(data, start, stop, byte_ids, table, ids, following, before, pairs, heap) -> Any:
    """As `_merge_short`, by a linked list of ids and a heap of `rank << 32 | place`, entries gone stale passed over.

    `following`, `before`, `pairs`: scratch as long as the piece; `heap`: three times as long.
    """
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
def _bytes_at(data, at, size) -> Any:
    """`size` bytes, at most 8, as a little-endian number; nothing is read past the end of `data`."""
    if at + 8 <= len(data):
        eight = eight_bytes(data, np.uint64(at))
        return eight & (~_NONE >> np.uint64(64 - 8 * size)) if size < 8 else eight
    number = _NONE
    for place in range(size):
        number |= np.uint64(data[at + place]) << np.uint64(8 * place)
    return number


@inline
def _whole(data, start, stop, vocab_slots, token_offsets, token_bytes) -> Any:
    """The id of the token with just these bytes, or -1."""
    mask = len(vocab_slots) - 1
    slot = np.int64(piece_hash(data, start, stop) & np.uint64(mask))
    while vocab_slots[slot] >= 0:
        token = vocab_slots[slot]
        begin = token_offsets[token]
        same = token_offsets[token + 1] - begin == stop - start
        place = 0
        while same and place < stop - start:
            same = token_bytes[begin + place] == data[start + place]
            place += 1
        if same:
            return token
        slot = (slot + 1) & mask
    return np.int32(-1)


@inline
def piece_hash(data, start, stop) -> Any:
    """FNV-1a with a finish that mixes high bits into low ones."""
    hashed = np.uint64(0xCBF29CE484222325)
    for at in range(start, stop):
        hashed = (hashed ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
    return (hashed ^ (hashed >> _29)) * _K2 >> _8


@kernel("void(int64[::1], Array(uint8, 1, 'C', True), int32[::1])")
def fill_vocabulary(token_offsets, token_bytes, vocab_slots) -> None:
    """Fills `vocab_slots` (num_slots,), all -1, a power of two above the number of tokens: ids by the hash of their bytes."""
    mask = len(vocab_slots) - 1
    for token in range(len(token_offsets) - 1):
        if token_offsets[token + 1] == token_offsets[token]:
            continue
        slot = np.int64(piece_hash(token_bytes, token_offsets[token], token_offsets[token + 1]) & np.uint64(mask))
        while vocab_slots[slot] >= 0:
            slot = (slot + 1) & mask
        vocab_slots[slot] = token


@kernel("int64(int64, int64[::1])")
def longest_piece(start, ends) -> Any:
    """Bytes of the longest of the pieces that end at `ends` (num_pieces,), the first of which begins at `start`; 0 for none."""
    longest = np.int64(0)
    for end in ends:
        longest = max(longest, end - start)
        start = end
    return longest


_TEXT = "Array(int64, 1, 'C', True), Array(uint8, 1, 'C', True)"
_TABLES = "int32[::1], uint64[:, ::1], boolean, int32[::1], int64[::1], Array(uint8, 1, 'C', True)"
_SCRATCH = "uint64[:, ::1], uint64[:, ::1], int32[::1], int32[::1], int32[::1], uint64[::1], uint64[::1]"


@kernel(f"int64({_TEXT}, int32[::1], int64[::1], {_TABLES}, {_SCRATCH}, int64[::1], int32[::1])")
def encode_pieces(
    offsets, data, fixed, ends,
    byte_ids, table, whole_first, vocab_slots, token_offsets, token_bytes,
    lines, long_lines, ids, following, before, pairs, heap,
    out_offsets, out,
) -> Any:  # fmt: skip
    """Token ids of every text; returns their number.

    Args:
        offsets: (num_texts + 1,) int64.
        data: (num_bytes,) uint8.
        fixed: (num_texts,) int32: the one id that a text is, or -1.
        ends: (num_pieces,) int64, where each piece ends; every text that is not empty ends with a piece.
        byte_ids: (256,) int32.
        table: `merge_table`.
        whole_first: whether a piece that is a token is that token, whatever its merges say.
        vocab_slots, token_offsets, token_bytes: `fill_vocabulary`; only read where `whole_first`.
        lines: (num_lines, LINE_WORDS) uint64, the cache, kept from call to call; zeros at first. num_lines is a power of two.
        long_lines: (num_long_lines, LONG_WORDS) uint64, the second cache, likewise.
        ids, following, before, pairs: scratch, as long as the longest piece and at least SHORT.
        heap: scratch, three times as long.
        out_offsets: (num_texts + 1,) int64.
        out: (num_bytes,) int32 at least: no piece has more ids than bytes.
    """
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
                low = _bytes_at(data, start, min(size, 8))
                high = np.uint64(size) << _56
                if size > 8:
                    high |= _bytes_at(data, start + 8, size - 8)
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
            if whole_first:
                whole = _whole(data, start, stop, vocab_slots, token_offsets, token_bytes)
                if whole >= 0:
                    ids[0] = whole
                    num_ids = 1
            long_slot = np.int64(-1)
            if num_ids == 0 and size <= LONG_BYTES:
                long_slot = np.int64(piece_hash(data, start, stop) & long_mask)
                num_ids = _recall_long(long_lines, long_slot, data, start, size, ids)
                long_slot = long_slot if num_ids == 0 else np.int64(-1)
            if num_ids == 0:
                if size <= SHORT:
                    num_ids = np.int64(_merge_short(data, start, stop, byte_ids, table, ids, pairs))
                else:
                    num_ids = np.int64(_merge_long(data, start, stop, byte_ids, table, ids, following, before, pairs, heap))
            for place in range(num_ids):
                out[to + place] = ids[place]
            to += num_ids
            if size <= LINE_BYTES and num_ids <= LINE_IDS:
                lines[slot, 0], lines[slot, 1] = low, high
                lines[slot, 2] = np.uint64(ids[0]) | (np.uint64(ids[1]) if num_ids > 1 else _NONE) << _32
                lines[slot, 3] = (np.uint64(ids[2]) if num_ids > 2 else _NONE) | np.uint64(num_ids) << _32
            elif long_slot >= 0 and num_ids <= LONG_IDS:
                _keep_long(long_lines, long_slot, data, start, size, ids, num_ids)
            start = stop
        out_offsets[text + 1] = to
    return to


@inline
def _word_of(data, start, size, word) -> Any:
    """Word `word` of 8 bytes of a piece padded to 64 with its length in the last byte."""
    left = size - 8 * word
    number = _bytes_at(data, start + 8 * word, min(left, 8)) if left > 0 else _NONE
    return number | np.uint64(size) << _56 if word == 7 else number


@inline
def _recall_long(long_lines, slot, data, start, size, ids) -> Any:
    """The number of ids kept for a piece, which are put into `ids`; 0 where it is not there."""
    for word in range(7, -1, -1):
        if long_lines[slot, word] != _word_of(data, start, size, word):
            return np.int64(0)
    num_ids = np.int64(0)
    while num_ids < LONG_IDS:
        both = long_lines[slot, 8 + (num_ids >> 1)]
        entry = (both >> _32) if num_ids & 1 else (both & _LOW)
        if entry == 0:
            break
        ids[num_ids] = np.int32(entry - np.uint64(1))
        num_ids += 1
    return num_ids


@inline
def _keep_long(long_lines, slot, data, start, size, ids, num_ids) -> None:
    """Keeps the ids of a piece, each with 1 added, so that 0 ends them."""
    for word in range(8):
        long_lines[slot, word] = _word_of(data, start, size, word)
    for pair in range(LONG_IDS // 2):
        first = np.uint64(ids[2 * pair]) + np.uint64(1) if 2 * pair < num_ids else _NONE
        second = np.uint64(ids[2 * pair + 1]) + np.uint64(1) if 2 * pair + 1 < num_ids else _NONE
        long_lines[slot, 8 + pair] = first | second << _32
