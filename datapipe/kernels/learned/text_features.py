"""Hashed n-grams of words and of characters: the features of linear models.

    text  ─ case_folding.visible_folding() ─▶  words and signs       ─▶  n-grams of words       ─▶  slots, each counted
                                           └▶  runs without blanks  ─▶  n-grams of characters  ─▶  slots, each counted

The text is in the canonical caseless form of Unicode without invisible characters. A word is a run
of letters, marks and numbers, a character of a script without spaces, or a sign, since punctuation
distinguishes prose from lists. N-grams of characters lie within runs without white space and
controls, with a blank before and after: " the ". They include signs: "f*ck".

An n-gram is hashed by a polynomial over its items, and the upper bits are its slot (feature hashing, Weinberger et al.
2009, without signs). A feature counts as often as it occurs, up to a limit. Memory: a byte a slot and a list of slots.
"""

import sys
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.dedup.word_characters import ALONE as IS_ALONE
from datapipe.kernels.dedup.word_characters import LETTER, NUMBER, known_classes, word_table
from datapipe.kernels.dedup.word_characters import MARK as IS_MARK
from datapipe.kernels.hashing import FNV_BASIS, fnv_step
from datapipe.kernels.text.unicode_classes import codes_of, decode
from datapipe.kernels.types import Int64MatrixOut, Int64s, UInt8s, UInt8sOut, UInt32sOut, read_only
from datapipe.rng import GOLDEN

BLANK, JOINED, MARK, ALONE, SIGN = range(5)
"""What a character is: between words; part of a word; part of the word before it; a word alone."""

MOST_COUNT = 255  # how often an n-gram of characters counts at most. Those of words count once.
_SPACE = 32
_FACTOR = np.uint64(0xD6E8FEB86659FD93)  # odd, of random bits: the base of the polynomial
_32 = np.uint64(32)

_BLANKS = "0-20 7F-A0 1680 2000-200A 2028-2029 202F 205F 3000"
"""White space and controls of Unicode; no version has changed them since 6.3."""


@lru_cache(maxsize=1)
def character_kinds() -> np.ndarray:
    """What every code point is, by the Unicode of `word_characters.py`: (0x110000,) uint8."""
    classes, kinds = word_table(), np.full(sys.maxunicode + 1, SIGN, np.uint8)
    kinds[(classes & (LETTER | NUMBER)) != 0] = JOINED
    kinds[(classes & IS_ALONE) != 0] = ALONE
    kinds[known_classes() == IS_MARK] = MARK
    kinds[codes_of(_BLANKS)] = BLANK
    return read_only(kinds)


class Counting(NamedTuple):
    """The features of one text, and scratch: an output of kernels."""

    # (2^bits + 1,); the first ones are those that occur, in the order of their first occurrence
    slots: UInt32sOut
    counts: UInt8sOut  # (2^bits,), how often each slot occurs; 0 between two texts


def room_for_counting(bits: int) -> Counting:
    return Counting(np.empty((1 << bits) + 1, np.uint32), np.zeros(1 << bits, np.uint8))


@inline
def count_words(data, start, stop, kinds, bits, slots, counts) -> Any:
    """Finds the words and pairs of words of a folded text; returns the number of slots that occur.
    With its inner loop in a function it does three quarters of the speed."""
    shift, num_slots, offset = np.uint64(64 - bits), np.int64(0), start
    last, is_second = np.uint64(0), np.int64(0)
    while offset < stop:
        byte, size = data[offset], np.int64(1)
        kind, hashed = kinds[byte], FNV_BASIS
        if byte >= 0x80:
            code, size = decode(data, offset, stop)
            kind = kinds[np.uint32(code)]
        if kind == BLANK:
            offset += size
            continue
        for index in range(offset, offset + size):
            hashed = fnv_step(hashed, data[index])
        offset += size
        while offset < stop and kind != SIGN:
            byte = data[offset]
            if byte < 0x80:
                if kinds[byte] != JOINED or kind == ALONE:
                    break
                hashed = fnv_step(hashed, byte)
                offset += 1
                continue
            code, size = decode(data, offset, stop)
            if kinds[np.uint32(code)] != MARK and (kinds[np.uint32(code)] != JOINED or kind == ALONE):
                break
            for index in range(offset, offset + size):
                hashed = fnv_step(hashed, data[index])
            offset += size
        num_slots = _count(_slot(hashed, shift), np.int64(1), 1, slots, counts, num_slots)
        num_slots = _count(_slot(last * _FACTOR + hashed, shift), is_second, 1, slots, counts, num_slots)
        last, is_second = hashed, np.int64(1)
    return num_slots


@inline
def count_characters(data, start, stop, kinds, bits, slots, counts) -> Any:
    """Counts the n-grams of characters of a folded text; returns the number of slots that occur."""
    shift, num_slots, offset, position = np.uint64(64 - bits), np.int64(0), start, np.int64(1)
    one, two, three, four = np.uint64(_SPACE) * GOLDEN, np.uint64(0), np.uint64(0), np.uint64(0)
    while offset <= stop:
        character, kind = np.uint64(_SPACE), np.uint8(BLANK)
        if offset < stop:
            code, size = np.int64(data[offset]), np.int64(1)
            if code >= 0x80:
                code, size = decode(data, offset, stop)
            kind = kinds[np.uint32(code)]
            character = np.uint64(code) if kind != BLANK else character
            offset += size
        else:
            offset += 1
        if kind == BLANK and position == 1:
            continue
        item = character * GOLDEN  # so that the upper bits of the sums depend on every character
        five, four = four * _FACTOR + item, three * _FACTOR + item
        three, two, one = two * _FACTOR + item, one * _FACTOR + item, item
        position += 1
        num_slots = _count(three >> shift, np.int64(position >= 3), MOST_COUNT, slots, counts, num_slots)
        num_slots = _count(four >> shift, np.int64(position >= 4), MOST_COUNT, slots, counts, num_slots)
        num_slots = _count(five >> shift, np.int64(position >= 5), MOST_COUNT, slots, counts, num_slots)
        position = np.int64(1) if kind == BLANK else position
    return num_slots


@inline
def _slot(hashed, shift) -> Any:
    return ((hashed ^ (hashed >> _32)) * GOLDEN) >> shift


@inline
def _count(slot, more, limit, slots, counts, num_slots) -> Any:
    """Counts a slot once more if `more` is 1, without a branch; returns the number of slots that occur."""
    count = np.int64(counts[slot])
    slots[num_slots] = slot
    counts[slot] = count + (more & np.int64(count < limit))
    return num_slots + (more & np.int64(count == 0))


class RowsOut(NamedTuple):
    # (num_docs, 2), where the words of each text end, and its n-grams of characters, which follow
    stops: Int64MatrixOut
    slots: UInt32sOut  # those of characters after all those of words
    counts: UInt8sOut


@kernel
def feature_rows(
    offsets: Int64s, data: UInt8s, kinds: UInt8s, word_bits: int, character_bits: int, scratch: Counting, out: RowsOut
) -> int:
    """The features of texts without case; returns their number. `kinds`, `word_bits`,
    `character_bits`: of `linear_scores.Weights`. The counts of `scratch` are 0 before and after."""
    slots, counts = scratch
    stops, out_slots, out_counts = out
    num_words, written = np.int64(1) << word_bits if word_bits else np.int64(0), np.int64(0)
    for doc in range(len(offsets) - 1):
        if word_bits:
            num_used = count_words(data, offsets[doc], offsets[doc + 1], kinds, word_bits, slots, counts)
            written = _write(slots, counts, num_used, 0, out_slots, out_counts, written)
        stops[doc, 0] = written
        if character_bits:
            num_used = count_characters(data, offsets[doc], offsets[doc + 1], kinds, character_bits, slots, counts)
            written = _write(slots, counts, num_used, num_words, out_slots, out_counts, written)
        stops[doc, 1] = written
    return int(written)


@inline
def _write(slots, counts, num_used, first_slot, out_slots, out_counts, written) -> Any:
    for index in range(num_used):
        slot = slots[index]
        out_slots[written + index], out_counts[written + index] = first_slot + slot, counts[slot]
        counts[slot] = 0
    return written + num_used
