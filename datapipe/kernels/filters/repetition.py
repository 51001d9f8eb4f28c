"""Measurements of `filter.gopher_repetition`: how much of a document repeats earlier text of the same document.

    Lines  ->  paragraphs  ->  unit_repetition    lines or paragraphs that are copies, and their characters
    Words  ->  ngram_repetition                   characters in the most frequent 2..4-gram, in repeated 5..10-grams

All measurements are counts; each profile divides them. The kernels compare 64-bit hashes; that of an n-gram is a polynomial
of its word hashes. An n-gram can repeat only where both (n-1)-grams inside it do, so `depth`, the length of the longest
repeated n-gram at each word so far, leaves few lookups after n = 3.

Memory: one byte per word, and a hash table of at most 2^20 slots (16 MiB). Where the distinct
n-grams of a document fill more than half of the slots, a pass covers half of the hash space, else a
quarter, and so on: all failed attempts together cost less than one more pass. Only `walk_ngrams`
needs all n-grams at once: 16 to 32 bytes for each word at which a repeated 5-gram starts.
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import find_slot, mix64, num_slots_for, table_size
from datapipe.kernels.text.words import Words
from datapipe.kernels.types import (
    Int32s,
    Int32sOut,
    Int64MatrixOut,
    Int64s,
    Int64sOut,
    UInt8s,
    UInt8sOut,
    UInt64s,
    UInt64sOut,
    input_record,
)

TOP_SIZES = (2, 3, 4)
DUPLICATE_SIZES = (5, 6, 7, 8, 9, 10)

_SHORTEST, _LONGEST_TOP, _LONGEST = 2, 4, 10
_MAX_SLOTS = 1 << 20
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Units(NamedTuple):
    """Lines, paragraphs or words, an input of kernels. Document i has the units `doc_offsets[i]:doc_offsets[i + 1]`."""

    doc_offsets: Int64s  # (num_docs + 1,)
    hashes: UInt64s  # (num_units,)
    chars: Int32s  # (num_units,), code points


NUM_UNITS, UNIT_CHARS, COPIES, COPIED_CHARS = range(4)  # columns of `unit_repetition`


def paragraphs(lines: Units, opens: np.ndarray, joint_chars: int) -> Units:
    """Runs of lines between blank lines; a newline inside counts as `joint_chars`, 0 or 1."""
    limit = int(opens.sum())
    doc_offsets, hashes, chars = np.empty_like(lines.doc_offsets), np.empty(limit, np.uint64), np.empty(limit, np.int32)
    join_lines(lines, opens, joint_chars, doc_offsets, hashes, chars)
    return input_record(Units, (doc_offsets, hashes, chars))


def unit_repetition(units: Units, every: bool, max_slots: int = _MAX_SLOTS) -> np.ndarray:
    """Copies among lines or paragraphs, (num_docs, 4): units, their characters, copies, characters
    in copies. With `every` the first occurrence of a repeated unit is a copy too."""
    slots = num_slots_for(_longest(units.doc_offsets), max_slots)
    out = np.empty((len(units.doc_offsets) - 1, 4), np.int64)
    scratch = (np.empty(slots, np.uint64), np.empty(slots, np.uint8))
    measure_units(units, every, *scratch, out)
    return out


def ngram_repetition(words: Words, joined: bool = False, max_slots: int = _MAX_SLOTS) -> np.ndarray:
    """Repeated runs of words, (num_docs, 9): characters, without the white space between words.

    Columns 0..2: of the most frequent 2, 3, 4-gram (the longest of equally frequent ones), its
    characters times its occurrences, which may overlap; 0 where none occurs twice. Columns 3..8:
    characters in words of any repeated 5..10-gram, each word once, first occurrences too.

    `joined` counts like datatrove. Columns 0..2: of equally frequent n-grams the first, also where it
    occurs once, with the spaces between its words. Columns 3..8: from the first word on, an n-gram
    that occurred before is skipped as a whole. `max_slots` of the hash table is a power of two.
    """
    out = np.zeros((len(words.doc_offsets) - 1, len(TOP_SIZES) + len(DUPLICATE_SIZES)), np.int64)
    slots = num_slots_for(_longest(words.doc_offsets), max_slots)
    table = (np.empty(slots, np.uint64), np.empty(slots, np.int32), np.empty(slots, np.int32))
    depth = np.empty(len(words.hashes), np.uint8)
    units = Units(doc_offsets=words.doc_offsets, hashes=words.hashes, chars=words.chars)
    measure_ngrams(units, joined, *table, depth, out)
    if joined:
        repeated = np.concatenate([[0], np.cumsum(depth >= DUPLICATE_SIZES[0])])
        most = int(np.diff(repeated[words.doc_offsets]).max(initial=0))
        seen = np.empty(num_slots_for(most), np.uint64)
        walk_ngrams(units, depth, seen, out)
    return out


def _longest(doc_offsets: np.ndarray) -> int:
    return int(np.diff(doc_offsets).max(initial=0))


@inline
def _part(key, num_parts) -> Any:
    """The part of the hash space that holds `key`, of `num_parts` equal parts, by bits that do not choose its slot."""
    return np.int64(((key >> np.uint64(32)) * np.uint64(num_parts)) >> np.uint64(32))


@kernel
def join_lines(
    lines: Units, opens: UInt8s, joint_chars: int, out_offsets: Int64sOut, out_hashes: UInt64sOut, out_chars: Int32sOut
) -> None:
    """The paragraphs of lines: their offsets (num_docs + 1,), and hashes and characters (num_paragraphs,)."""
    doc_offsets, hashes, chars = lines
    paragraph = np.int64(-1)
    out_offsets[0] = 0
    for doc in range(len(doc_offsets) - 1):
        for line in range(doc_offsets[doc], doc_offsets[doc + 1]):
            if opens[line]:
                paragraph += 1
                out_hashes[paragraph] = 0
                out_chars[paragraph] = -joint_chars
            out_hashes[paragraph] = mix64(out_hashes[paragraph] * _FACTOR + hashes[line])
            out_chars[paragraph] += chars[line] + joint_chars
        out_offsets[doc + 1] = paragraph + 1


@kernel
def measure_units(units: Units, every: bool, keys: UInt64sOut, marks: UInt8sOut, out: Int64MatrixOut) -> None:
    """Fills `out` (num_docs, 4); see `unit_repetition`. `keys`, `marks`: of a power of two."""
    doc_offsets, hashes, chars = units
    for doc in range(len(doc_offsets) - 1):
        start, stop = doc_offsets[doc], doc_offsets[doc + 1]
        num_chars = np.int64(0)
        for unit in range(start, stop):
            num_chars += chars[unit]
        size = table_size(stop - start, len(keys))
        num_parts = np.int64(1)
        num_copies, copied_chars = _copies(start, stop, hashes, chars, every, keys, marks, size, num_parts)
        while num_copies < 0:
            num_parts *= 2
            num_copies, copied_chars = _copies(start, stop, hashes, chars, every, keys, marks, size, num_parts)
        out[doc, NUM_UNITS], out[doc, UNIT_CHARS] = stop - start, num_chars
        out[doc, COPIES], out[doc, COPIED_CHARS] = num_copies, copied_chars


@inline
def _copies(start, stop, hashes, chars, every, keys, marks, size, num_parts) -> tuple[Any, Any]:
    """Copies among the units [start, stop), and their characters; (-1, 0) where a part overflows the table."""
    num_copies, copied_chars = np.int64(0), np.int64(0)
    for part in range(num_parts):
        keys[:size] = 0
        marks[:size] = 0
        room = size // 2
        for unit in range(start, stop):
            key = hashes[unit] | np.uint64(hashes[unit] == 0)
            if _part(key, num_parts) != part:
                continue
            slot = find_slot(keys, size, key)
            if keys[slot] == key:
                firsts = np.int64(every and not marks[slot])
                marks[slot] = 1
                num_copies += 1 + firsts
                copied_chars += (1 + firsts) * chars[unit]
                continue
            if room == 0:
                return np.int64(-1), np.int64(0)
            room -= 1
            keys[slot] = key
    return num_copies, copied_chars


@kernel
def measure_ngrams(
    words: Units, joined: bool, keys: UInt64sOut, firsts: Int32sOut, counts: Int32sOut, depth: UInt8sOut, out: Int64MatrixOut
) -> None:
    """Fills `out` (num_docs, 9), zeros at first; see `ngram_repetition`. `joined` leaves the last six columns to `walk_ngrams`.

    `keys`, `firsts`, `counts`: the hash table, of a power of two: hash, first word and occurrences
    of an n-gram. `depth`: (num_words,) uint8 output, the longest repeated n-gram at each word, at
    most 10; 1 for none."""
    doc_offsets, hashes, chars = words
    for doc in range(len(doc_offsets) - 1):
        start, stop = doc_offsets[doc], doc_offsets[doc + 1]
        document, lengths, deep = hashes[start:stop], chars[start:stop], depth[start:stop]
        deep[:] = 1
        for n in range(_SHORTEST, _LONGEST_TOP + 1):
            if joined and stop - start >= n:
                out[doc, n - _SHORTEST] = _joined_chars(lengths, 0, n)
        for n in range(_SHORTEST, _LONGEST + 1):
            num_candidates = _num_candidates(deep, stop - start, n)
            if num_candidates < 2:
                break
            size = table_size(num_candidates, len(keys))
            num_parts = np.int64(1)
            top = _repeated(document, lengths, n, joined, keys, firsts, counts, size, num_parts, deep)
            while top < 0:
                num_parts *= 2
                top = _repeated(document, lengths, n, joined, keys, firsts, counts, size, num_parts, deep)
            if n <= _LONGEST_TOP:
                out[doc, n - _SHORTEST] = top if top > 0 else out[doc, n - _SHORTEST]
            elif not joined:
                out[doc, n - _SHORTEST] = _covered(deep, lengths, n)


@kernel
def walk_ngrams(words: Units, depth: UInt8s, keys: UInt64sOut, out: Int64MatrixOut) -> None:
    """Fills columns 3..8 of `out` (num_docs, 9) like datatrove: an n-gram that occurred before is skipped as a whole.
    `depth`: (num_words,) of `measure_ngrams`: only n-grams that repeat can have occurred before. `keys`: scratch, a power
    of two, at least twice the words of any document at which a repeated 5-gram starts."""
    doc_offsets, hashes, chars = words
    for doc in range(len(doc_offsets) - 1):
        start, stop = doc_offsets[doc], doc_offsets[doc + 1]
        document, lengths, deep = hashes[start:stop], chars[start:stop], depth[start:stop]
        for n in range(_LONGEST_TOP + 1, _LONGEST + 1):
            num_candidates = np.int64(0)
            for word in range(stop - start):
                num_candidates += np.int64(deep[word] >= n)
            size = table_size(num_candidates, len(keys))
            keys[:size] = 0
            num_chars, word = np.int64(0), np.int64(0)
            while num_candidates > 1 and word < stop - start - n + 1:
                step = 1
                if deep[word] >= n:
                    key = _ngram(document, word, n)
                    slot = find_slot(keys, size, key)
                    if keys[slot] == key:
                        num_chars += _joined_chars(lengths, word, n) - (n - 1)
                        step = n
                    keys[slot] = key
                word += step
            out[doc, n - _SHORTEST] = num_chars


@inline
def _joined_chars(lengths, word, n) -> Any:
    num_chars = np.int64(n - 1)
    for index in range(word, word + n):
        num_chars += lengths[index]
    return num_chars


@inline
def _num_candidates(depth, num_words, n) -> Any:
    """Number of n-grams that may repeat: those whose two (n-1)-grams do."""
    count = np.int64(0)
    for word in range(num_words - n + 1):
        count += np.int64((depth[word] >= n - 1) & (depth[word + 1] >= n - 1))
    return count


@inline
def _ngram(document, word, n) -> Any:
    """The hash of the `n` words from `word` on, never 0."""
    key = document[word]
    for index in range(word + 1, word + n):
        key = key * _FACTOR + document[index]
    key = mix64(key)
    return key | np.uint64(key == 0)


@inline
def _repeated(document, lengths, n, joined, keys, firsts, counts, size, num_parts, depth) -> Any:
    """Raises `depth` to `n` at every word where a repeated n-gram starts. Returns the characters of the most frequent
    n-gram in all its occurrences: the longest of equally frequent ones or, where `joined`, the first; 0 where none occurs
    twice, -1 where a part of the hash space overflows the table."""
    most, most_chars, first = np.int64(1), np.int64(0), np.int64(0)
    for part in range(num_parts):
        keys[:size] = 0
        room = size // 2
        for word in range(len(document) - n + 1):
            if depth[word] < n - 1 or depth[word + 1] < n - 1:
                continue
            key = _ngram(document, word, n)
            if _part(key, num_parts) != part:
                continue
            slot = find_slot(keys, size, key)
            if keys[slot] == 0:
                if room == 0:
                    return np.int64(-1)
                room -= 1
                keys[slot], firsts[slot], counts[slot] = key, word, 1
                continue
            counts[slot] += 1
            depth[word] = n
            depth[firsts[slot]] = n
            if counts[slot] >= most:
                num_chars = _joined_chars(lengths, word, n) - (0 if joined else n - 1)
                is_more = counts[slot] > most
                if is_more or (firsts[slot] < first if joined else num_chars > most_chars):
                    most_chars, first = num_chars, np.int64(firsts[slot])
                most = np.int64(counts[slot])
    return most * most_chars


@inline
def _covered(depth, lengths, n) -> Any:
    """Characters of the words inside any repeated n-gram, each word once."""
    num_chars, until = np.int64(0), np.int64(0)
    for word in range(len(lengths)):
        if depth[word] >= n:
            until = word + n
        if word < until:
            num_chars += lengths[word]
    return num_chars
