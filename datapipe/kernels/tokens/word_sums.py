"""Sums up the counts of equal words.

    words, counts ──▶ table of hashes ──▶ each word once, in the order in which they came first, with the sum of its counts

Words are hashed and compared eight bytes at a time: most have no more. A slot has the first eight bytes of a word, its length
and its number, so the words of a text before are read only where longer ones are compared. The slots of the next words are
fetched meanwhile: a table of many words is in no cache.
"""

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import eight_bytes
from datapipe.kernels.hashing import mix64
from datapipe.kernels.tokens.memory import prefetch
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s

_FIRST_SLOTS = 1 << 14
_AHEAD = 16  # words whose hashes are known before they are looked up
_LONGEST = np.uint64(255)
_NUMBERS = np.uint64(0xFFFFFFFF)
"""The bits of a slot with the number of its word, from 1 on; 0: a free slot. Above them is the length, at most `_LONGEST`."""

_PRIME = np.uint64(0x9E3779B185EBCA87)
_0, _1, _8 = np.uint64(0), np.uint64(1), np.uint64(8)


@inline
def _up_to_eight(data, start, stop) -> Any:
    """The first eight of the bytes [start, stop) of `data` as one number; both are uint64."""
    if start < stop and start + _8 <= np.uint64(len(data)):
        return eight_bytes(data, start) & ~_0 >> (np.uint64(64) - (min(stop - start, _8) << np.uint64(3)))
    number, shift = _0, _0
    while start < stop and shift < np.uint64(64):
        number |= np.uint64(data[start]) << shift
        start, shift = start + _1, shift + _8
    return number


@inline
def _hash_of(data, start, stop) -> Any:
    hashed = (stop - start) * _PRIME
    while start < stop:
        hashed = (hashed ^ _up_to_eight(data, start, stop)) * _PRIME
        hashed ^= hashed >> np.uint64(32)
        start += _8
    return mix64(hashed)


@inline
def _length_in_slot(start, stop) -> Any:
    return min(stop - start, _LONGEST) << np.uint64(32)


@inline
def _ends_equally(data, start, stop, other, other_stop) -> Any:
    """Whether two words whose first eight bytes are equal are equal."""
    if stop - start != other_stop - other:
        return False
    start, other = start + _8, other + _8
    while start < stop:
        if _up_to_eight(data, start, stop) != _up_to_eight(data, other, other_stop):
            return False
        start, other = start + _8, other + _8
    return True


@inline
def _next_hash(word, offsets, data, slots, hashes) -> Any:
    """The hash of a word; fetches the slot of a word behind, whose hash it notes."""
    hashed, behind = hashes[word % _AHEAD], word + _AHEAD
    if behind < len(offsets) - 1:
        ahead = _hash_of(data, np.uint64(offsets[behind]), np.uint64(offsets[behind + 1]))
        hashes[word % _AHEAD] = ahead
        prefetch(slots.ctypes.data + 2 * slots.itemsize * np.int64(ahead & np.uint64(len(slots) - 1)))
    return hashed


@inline
def _more_slots(slots, firsts, num_distinct, offsets, data) -> Any:
    more = np.zeros((4 * len(slots), 2), np.uint64)
    mask = np.uint64(len(more) - 1)
    for number in range(num_distinct):
        start, stop = np.uint64(offsets[firsts[number]]), np.uint64(offsets[firsts[number] + 1])
        slot = _hash_of(data, start, stop) & mask
        while more[slot, 1]:
            slot = (slot + _1) & mask
        more[slot, 0], more[slot, 1] = _up_to_eight(data, start, stop), _length_in_slot(start, stop) | np.uint64(number + 1)
    return more


@kernel
def sum_words(offsets: Int64s, data: UInt8s, counts: Int64s, firsts: Int64sOut, sums: Int64sOut) -> int:
    """Returns the number of different words, fewer than 2^32.

    Args:
        offsets: (num_words + 1,) int64, of the words in `data`.
        counts: (num_words,) int64, how often each occurs.
        firsts: (num_words,) int64 output: the first of each group of equal words.
        sums: (num_words,) int64 output: the sum of their counts.
    """
    slots, num_distinct, mask = np.zeros((_FIRST_SLOTS, 2), np.uint64), 0, np.uint64(_FIRST_SLOTS - 1)
    hashes = np.empty(_AHEAD, np.uint64)
    for word in range(min(_AHEAD, len(counts))):
        hashes[word] = _hash_of(data, np.uint64(offsets[word]), np.uint64(offsets[word + 1]))
    for word in range(len(counts)):
        start, stop = np.uint64(offsets[word]), np.uint64(offsets[word + 1])
        begin, length = _up_to_eight(data, start, stop), _length_in_slot(start, stop)
        slot, is_new = _next_hash(word, offsets, data, slots, hashes) & mask, True
        while is_new and slots[slot, 1]:
            if slots[slot, 0] == begin and slots[slot, 1] & ~_NUMBERS == length:
                number = np.int64(slots[slot, 1] & _NUMBERS) - 1
                first = firsts[number] if stop - start > _8 else word
                if _ends_equally(data, start, stop, np.uint64(offsets[first]), np.uint64(offsets[first + 1])):
                    sums[number] += counts[word]
                    is_new = False
            slot = (slot + _1) & mask
        if is_new:
            firsts[num_distinct], sums[num_distinct] = word, counts[word]
            num_distinct += 1
            slots[slot, 0], slots[slot, 1] = begin, length | np.uint64(num_distinct)
            if 2 * num_distinct > len(slots):
                slots = _more_slots(slots, firsts, num_distinct, offsets, data)
                mask = np.uint64(len(slots) - 1)
    return num_distinct
