"""The second cache of `bpe.encode_pretokens`: ids of pretokens of 16 to 63 bytes, one line each, the newest of a slot kept.

    | 8 words | the pretoken, padded with zeros, its length in the last byte |
    | 16 words | up to 32 ids, two per word, each plus 1; 0 ends them |

The first cache, of pretokens of up to 15 bytes, is read inside `encode_pretokens`: two words of bytes and length, two of ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.hashing import eight_bytes

LINE_BYTES, LINE_IDS, LINE_WORDS = 15, 3, 4
LONG_BYTES, LONG_IDS = 63, 32
LONG_WORDS = 8 + LONG_IDS // 2
"""Of a line of each cache: the longest pretoken, in bytes, the most ids, and the size, in words of 8 bytes."""

_NONE, _LOW = np.uint64(0), np.uint64(0xFFFFFFFF)
_32, _56 = np.uint64(32), np.uint64(56)


@inline
def packed_bytes(data, start, size) -> Any:
    """`size` bytes, at most 8, as a little-endian number; reads nothing past the end of `data`."""
    if start + 8 <= len(data):
        eight = eight_bytes(data, np.uint64(start))
        return eight & (~_NONE >> np.uint64(64 - 8 * size)) if size < 8 else eight
    number = _NONE
    for byte in range(size):
        number |= np.uint64(data[start + byte]) << np.uint64(8 * byte)
    return number


@inline
def _word_of(data, start, size, word) -> Any:
    """Word number `word`, of 8 bytes, of a pretoken padded to 64 bytes with its length in the last byte."""
    left = size - 8 * word
    number = packed_bytes(data, start + 8 * word, min(left, 8)) if left > 0 else _NONE
    return number | np.uint64(size) << _56 if word == 7 else number


@inline
def recall(long_lines, slot, data, start, size, ids) -> Any:
    """Copies the cached ids of a pretoken to `ids` and returns their number; 0 where the pretoken is not cached."""
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
def keep(long_lines, slot, data, start, size, ids, num_ids) -> None:
    """Caches the ids of a pretoken, each plus 1, so that 0 ends them."""
    for word in range(8):
        long_lines[slot, word] = _word_of(data, start, size, word)
    for pair in range(LONG_IDS // 2):
        first = np.uint64(ids[2 * pair]) + np.uint64(1) if 2 * pair < num_ids else _NONE
        second = np.uint64(ids[2 * pair + 1]) + np.uint64(1) if 2 * pair + 1 < num_ids else _NONE
        long_lines[slot, 8 + pair] = first | second << _32
