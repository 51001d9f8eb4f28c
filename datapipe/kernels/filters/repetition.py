"""Measurements of `filter.gopher_repetition`: how much of a document repeats earlier text of the same document.

    Lines  ->  paragraphs  ->  unit_repetition    lines or paragraphs that are copies, and their characters
    Words  ->  ngram_repetition                   characters in the most frequent 2..4-gram, in repeated 5..10-grams

All measurements are counts; each profile divides them. The kernels compare 64-bit hashes; that of an n-gram is a polynomial
of its word hashes. An n-gram can repeat only where both (n-1)-grams inside it do: a list of candidates, each with its hash,
gets shorter with n, and few lookups are left after n = 3.

Memory: 17 bytes per word or line of the longest document, and a hash table of at most 2^20 slots (16 MiB).
Where the distinct n-grams of a document fill more than half of the slots, a pass covers half of the
hash space, else a quarter, and so on: all failed attempts together cost less than one more pass.
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import mix64, num_slots_for, table_size
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
    room_for,
)

TOP_SIZES = (2, 3, 4)
DUPLICATE_SIZES = (5, 6, 7, 8, 9, 10)

_SHORTEST, _LONGEST_TOP, _LONGEST = 2, 4, 10
_MAX_SLOTS = 1 << 20
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_0, _1, _2, _32, _OCCURRENCES = (np.uint64(number) for number in (0, 1, 2, 32, 0xFFFFFFFF))


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
    out = np.empty((len(units.doc_offsets) - 1, 4), np.int64)
    measure_units(units, every, room_for_repeats(units, max_slots), out)
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
    units = Units(doc_offsets=words.doc_offsets, hashes=words.hashes, chars=words.chars)
    measure_ngrams(units, joined, room_for_repeats(units, max_slots), out)
    return out


class RepeatsOut(NamedTuple):
    """What is known of the n-grams of one document: scratch of kernels, (units of the longest document,) each but `entries`."""

    entries: UInt64sOut  # the hash table, twice a power of two: of each n-gram its hash, then its first unit and occurrences
    # candidates, grams: where an n-gram may repeat, ascending, and its hash
    candidates: Int32sOut
    grams: UInt64sOut
    firsts: Int32sOut  # by unit: where the repeated n-gram at it occurs first
    depth: UInt8sOut  # by unit: the longest repeated n-gram at it


def room_for_repeats(units: Units, max_slots: int) -> RepeatsOut:
    longest = int(np.diff(units.doc_offsets).max(initial=0))
    return room_for(RepeatsOut, longest)._replace(entries=np.empty(2 * num_slots_for(longest, max_slots), np.uint64))


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
def measure_units(units: Units, every: bool, repeats: RepeatsOut, out: Int64MatrixOut) -> None:
    """Fills `out` (num_docs, 4); see `unit_repetition`."""
    doc_offsets, hashes, chars = units
    entries, candidates, grams, firsts, depth = repeats
    for doc in range(len(doc_offsets) - 1):
        start, count = doc_offsets[doc], doc_offsets[doc + 1] - doc_offsets[doc]
        for unit in range(count):
            candidates[unit], grams[unit], depth[unit] = unit, hashes[start + unit], 0
        lengths = chars[start : start + count]
        _mark_repeated(candidates[:count], grams[:count], lengths, 1, False, entries, firsts, depth)
        num_chars, num_copies, copied_chars = np.int64(0), np.int64(0), np.int64(0)
        for unit in range(count):
            is_copy = np.int64(depth[unit] == 1 and (every or firsts[unit] != unit))
            num_chars, num_copies = num_chars + lengths[unit], num_copies + is_copy
            copied_chars += is_copy * lengths[unit]
        out[doc, NUM_UNITS], out[doc, UNIT_CHARS] = count, num_chars
        out[doc, COPIES], out[doc, COPIED_CHARS] = num_copies, copied_chars


@kernel
def measure_ngrams(words: Units, joined: bool, repeats: RepeatsOut, out: Int64MatrixOut) -> None:
    """Fills `out` (num_docs, 9), zeros at first; see `ngram_repetition`."""
    doc_offsets, hashes, chars = words
    entries, candidates, grams, firsts, depth = repeats
    for doc in range(len(doc_offsets) - 1):
        start, stop = doc_offsets[doc], doc_offsets[doc + 1]
        document, lengths = hashes[start:stop], chars[start:stop]
        count = max(stop - start - 1, 0)
        for word in range(count):
            candidates[word], depth[word] = word, 1
            grams[word] = document[word] * _FACTOR + document[word + 1]
        count = _may_repeat(candidates, grams, count, entries.view(np.uint8))
        for n in range(_SHORTEST, _LONGEST_TOP + 1):
            if joined and stop - start >= n:
                out[doc, n - _SHORTEST] = _joined_chars(lengths, 0, n)
        for n in range(_SHORTEST, _LONGEST + 1):
            if count < 2:
                break
            top = _mark_repeated(candidates[:count], grams[:count], lengths, n, joined, entries, firsts, depth)
            count = _where_repeated(candidates, grams, count, depth, n)
            if n <= _LONGEST_TOP:
                out[doc, n - _SHORTEST] = top if top > 0 else out[doc, n - _SHORTEST]
            elif joined:
                out[doc, n - _SHORTEST] = _walked(candidates[:count], firsts, lengths, n)
            else:
                out[doc, n - _SHORTEST] = _covered(candidates[:count], lengths, n)
            count = _followed(candidates, grams, count, document, n)


@inline
def _may_repeat(candidates, grams, count, seen) -> Any:
    """Keeps the words whose 2-gram shares a slot of `seen`, which is nearer than the hash table, and returns their number."""
    size, kept = table_size(4 * count, len(seen)), np.int64(0)
    mask = np.uint64(size - 1)
    seen[:size] = 0
    for index in range(count):
        number = grams[index] & mask
        seen[number] += np.uint8(seen[number] < 2)
    for index in range(count):
        candidates[kept], grams[kept] = candidates[index], grams[index]
        kept += np.int64(seen[grams[index] & mask] > 1)
    return kept


@inline
def _joined_chars(lengths, word, n) -> Any:
    num_chars = np.int64(n - 1)
    for index in range(word, word + n):
        num_chars += lengths[index]
    return num_chars


@inline
def _where_repeated(candidates, grams, count, depth, n) -> Any:
    """Keeps the words where a repeated n-gram starts, and returns their number."""
    kept = np.int64(0)
    for index in range(count):
        word = candidates[index]
        candidates[kept], grams[kept] = word, grams[index]
        kept += np.int64(depth[word] == n)
    return kept


@inline
def _followed(candidates, grams, count, document, n) -> Any:
    """Keeps the words whose next one is a candidate too, each with its (n+1)-gram, and returns their number."""
    kept = np.int64(0)
    for index in range(count - 1):
        word = candidates[index]
        candidates[kept], following = word, candidates[index + 1]
        grams[kept] = grams[index] * _FACTOR + document[following + n - 1]
        kept += np.int64(following == word + 1)
    return kept


@inline
def _mark_repeated(candidates, grams, lengths, n, joined, entries, firsts, depth) -> Any:
    """Sets `depth` to `n` and `firsts` at every candidate where a repeated n-gram starts. Returns the characters of the most
    frequent n-gram in all its occurrences: the longest of equally frequent ones or, where `joined`, the first; 0 where none
    occurs twice."""
    size, num_parts, top = table_size(len(candidates), len(entries) // 2), np.int64(1), np.int64(-1)
    while top < 0:
        top = _mark_in_parts(candidates, grams, lengths, n, joined, entries, size, num_parts, firsts, depth)
        num_parts *= 2
    return top


@inline
def _mark_in_parts(candidates, grams, lengths, n, joined, entries, size, num_parts, firsts, depth) -> Any:
    """As `_mark_repeated`; -1 where a part of the hash space overflows the table."""
    most, most_chars, first_of_most, mask = np.int64(1), np.int64(0), np.int64(0), np.uint64(2 * size - 1)
    for part in range(num_parts):
        entries[: 2 * size] = 0
        room = size // 2
        for index in range(len(candidates)):
            word, key = candidates[index], grams[index] | np.uint64(grams[index] == _0)
            if _part(key, num_parts) != part:
                continue
            slot = (key + key) & mask
            while entries[slot] != _0 and entries[slot] != key:
                slot = (slot + _2) & mask
            entry = entries[slot + _1]
            if entry == _0:
                if room == 0:
                    return np.int64(-1)
                room -= 1
                entries[slot], entries[slot + _1] = key, np.uint64(word) << _32 | _1
                continue
            entries[slot + _1] = entry + _1
            first, occurrences = np.int64(entry >> _32), np.int64(entry & _OCCURRENCES) + 1
            depth[word], depth[first], firsts[word], firsts[first] = n, n, first, first
            if occurrences >= most:
                num_chars = _joined_chars(lengths, word, n) - (0 if joined else n - 1)
                if occurrences > most or (first < first_of_most if joined else num_chars > most_chars):
                    most_chars, first_of_most = num_chars, first
                most = occurrences
    return most * most_chars


@inline
def _walked(repeated, firsts, lengths, n) -> Any:
    """Characters of the n-grams that occurred before, from left to right, like datatrove: each of them is skipped as a whole.
    `repeated`: the words where a repeated n-gram starts; only there one can have occurred before."""
    num_chars, until = np.int64(0), np.int64(0)
    for word in repeated:
        if word < until:
            continue
        first = firsts[word]
        if firsts[first] < 0:
            num_chars += _joined_chars(lengths, word, n) - (n - 1)
            until = np.int64(word) + n
        firsts[first] = -1
    return num_chars


@inline
def _covered(repeated, lengths, n) -> Any:
    """Characters of the words inside any repeated n-gram, each word once."""
    num_chars, until = np.int64(0), np.int64(0)
    for word in repeated:
        for inside in range(max(until, np.int64(word)), word + n):
            num_chars += lengths[inside]
        until = np.int64(word) + n
    return num_chars
