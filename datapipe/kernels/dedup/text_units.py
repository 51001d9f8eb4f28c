"""Lines, paragraphs and spans of three sentences of documents, each with a 128-bit hash of its normal form.

    bytes  ->  units: start and size of each  ->  normal form, hashed while it is made

A unit owns the bytes up to the next unit of its document, so cutting units leaves the others unchanged. The hash covers the
unit without white space around it, as it is or folded as CCNet (Wenzek et al. 2020) folds paragraphs: no case, decimal
digits of any script as 0, no Unicode punctuation, no control or invisible characters (`word_characters.py`), each run of
white space as one space, in the form of `case_folding.py`. CCNet's program drops 34 marks only.

The length of a unit counts canonical characters that are no marks, and Hangul syllables as one.

A sentence ends at a newline; at a sentence-final mark and the signs that follow it, before white space; and at a
sentence-final mark of East Asian scripts. Abbreviations are not recognized: duplicates only need the same rule everywhere.
"""

import sys
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from unicodedata import combining, normalize

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import BLOCK_BYTES, sum_of_flags
from datapipe.kernels.dedup.case_folding import JOINING_JAMO, MOST_MARKS, joined_syllable, text_folding
from datapipe.kernels.dedup.packed_forms import CLASS_MASK, CLASS_SHIFT, CODE_MASK
from datapipe.kernels.dedup.word_characters import invisible_characters
from datapipe.kernels.hashing import mix64
from datapipe.kernels.text.marks import END, PUNCT, WHITE, mark_at, mark_table
from datapipe.kernels.text.unicode_classes import NUMBER, SPACE, class_table, decode
from datapipe.kernels.types import (
    Int32s,
    Int64s,
    Int64sOut,
    UInt8s,
    UInt16s,
    UInt32sOut,
    UInt64sOut,
    first_rows,
    input_record,
    room_for,
)

Unit = Literal["line", "paragraph", "three_sentences"]

_DROPPED, _SPACE = -1, -2
_NO_WHITE, _NOTHING_YET = np.int64(-1), np.int64(-2)
_JOINS = 1 << 30
_LAST_CODE = np.uint64(CODE_MASK)
_NUM_MASK, _COUNTED_SHIFT = 0xFF, 8
_NEWLINE = 0x0A
_WIDE = 0x3000  # From this code point on a mark ends a sentence even if no white space follows
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_BLANK, _ZERO = 0x20, ord("0")
_PRIME_1, _PRIME_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3, _PRIME_4 = np.uint64(0x165667B19E3779F9), np.uint64(0xD6E8FEB86659FD93)
_29, _32 = np.uint64(29), np.uint64(32)


class NormalForm(NamedTuple):
    """How units are folded before they are hashed: an input of kernels."""

    # (0x110000,), the folded character as in `case_folding.py`, with `_JOINS` for a jamo that joins
    # the character before it; `_DROPPED`; `_SPACE`; or -p where `expansions[p]` is their number,
    # with those that count towards the length above `_COUNTED_SHIFT`, and they follow
    fold: Int32s
    expansions: Int32s
    squeezed: bool  # whether a run of white space becomes one space


class TextUnits(NamedTuple):
    """Units of a batch, in the order of the texts, (num_units,) each: an output of kernels."""

    documents: Int64sOut  # the document of each unit
    starts: Int64sOut  # the unit's first byte in the batch's data
    sizes: UInt32sOut  # the bytes that the unit owns
    # hashes, digests: the two halves of the unit's hash
    hashes: UInt64sOut
    digests: UInt64sOut


def find_units(
    unit: Unit, offsets: np.ndarray, data: np.ndarray, normalize: Literal["none", "ccnet"], min_chars: int
) -> TextUnits:
    """The units of documents whose normal form has at least `min_chars` characters, and at least one."""
    out = room_for(TextUnits, most_units(offsets, data, unit == "three_sentences"))
    form = normal_form(normalize)
    if unit == "three_sentences":
        num_units = find_three_sentences(offsets, data, form, mark_table(), min_chars, out)
    else:
        num_units = find_lines(offsets, data, form, min_chars, unit == "paragraph", out)
    return first_rows(out, num_units)


@lru_cache(maxsize=2)
def normal_form(name: Literal["none", "ccnet"]) -> NormalForm:
    fold, expansions = np.arange(sys.maxunicode + 1, dtype=np.int32), np.zeros(1, np.int32)
    if name == "ccnet":
        codes, parts = text_folding()[:2]
        # codes of several characters move up, past the numbers that mark dropped characters and white space
        fold = np.where(codes < 0, codes + _SPACE, codes).astype(np.int32)
        expansions = np.concatenate([np.zeros(-_SPACE, np.int32), parts])
        for code in np.flatnonzero(codes < 0).tolist():
            expansions[-fold[code]] |= _num_counted(chr(code)) << _COUNTED_SHIFT
        for jamo in JOINING_JAMO:
            fold[jamo] |= _JOINS
        fold[[code for code in np.flatnonzero(class_table() == NUMBER).tolist() if chr(code).isdecimal()]] = _ZERO
        fold[(mark_table() & PUNCT) != 0] = _DROPPED
        fold[invisible_characters()] = _DROPPED
        fold[_CONTROLS] = _DROPPED
    fold[class_table() == SPACE] = _SPACE
    return input_record(NormalForm, (fold, expansions, name == "ccnet"))


def _num_counted(character: str) -> int:
    return sum(combining(part) == 0 for part in normalize("NFD", character))


@kernel
def most_units(offsets: Int64s, data: UInt8s, sentences: bool) -> int:
    """An upper bound of the number of units: newlines, documents, and for sentences the bytes that may end one."""
    count, flags, stop = np.int64(len(offsets) - 1), np.zeros(BLOCK_BYTES, np.uint8), offsets[len(offsets) - 1]
    for first in range(offsets[0], stop, BLOCK_BYTES):
        size = min(BLOCK_BYTES, stop - first)
        block = data[first : first + size]
        for i in range(size):
            byte = block[i]
            ends = (byte == 0x21) | (byte == 0x2E) | (byte == 0x3F) | (byte >= 0xC0)
            flags[i] = (byte == _NEWLINE) | (sentences & ends)
        count += sum_of_flags(flags, size)
    return int(count)


@inline
def _absorb(hashed, digest, code) -> tuple[Any, Any]:
    """Both halves after one more character: each is a bijection of the character, and of the half before it."""
    hashed, digest = (hashed ^ code) * _PRIME_2, (digest + code) * _PRIME_4
    return hashed ^ (hashed >> _29), digest ^ (digest >> _32)


@inline
def _hash_unit(data, start, stop, fold, expansions, squeezed, waiting) -> tuple[Any, Any, Any]:
    """Both halves of the hash of a unit's normal form, and its length; white space at the ends is left out.

    A unit with marks out of canonical order, or with jamo, begins again in `_hash_ordered`. Unsigned indices save a tenth
    of the time. One loop nest above 40 lines: cut into functions, it is slower.
    """
    hashed, digest, length, white, position = _PRIME_3, _PRIME_1, np.int64(0), _NOTHING_YET, start
    last, ordered = np.int64(0), True  # the combining class of the character before; whether all are in order
    while position < stop:
        code, size = np.int64(data[np.uint64(position)]), np.int64(1)
        if code >= 0x80:
            code, size = decode(data, position, stop)
        folded = np.int64(fold[np.uint64(code)])
        if folded >= 0 or folded < _SPACE:
            if white >= 0:
                last = np.int64(0)
                if squeezed:
                    hashed, digest = _absorb(hashed, digest, np.uint64(_BLANK))
                    length += 1
                else:
                    while white < position:
                        code, step = decode(data, white, position)
                        hashed, digest = _absorb(hashed, digest, np.uint64(code))
                        length += 1
                        white += step
            white = _NO_WHITE
            if np.uint64(folded) <= _LAST_CODE:  # by far the most
                hashed, digest = _absorb(hashed, digest, np.uint64(folded))
                length, last = length + 1, np.int64(0)
            elif folded < 0:
                number = np.int64(expansions[-folded])
                length += number >> _COUNTED_SHIFT
                for index in range(1 - folded, 1 - folded + (number & _NUM_MASK)):
                    part = np.int64(expansions[index])
                    ordered = ordered and (part <= CODE_MASK or part >> CLASS_SHIFT >= last)
                    last = part >> CLASS_SHIFT
                    hashed, digest = _absorb(hashed, digest, np.uint64(part & CODE_MASK))
            else:
                ordered = ordered and folded & _JOINS == 0 and folded >> CLASS_SHIFT >= last
                last = folded >> CLASS_SHIFT
                hashed, digest = _absorb(hashed, digest, np.uint64(folded & CODE_MASK))
        elif folded == _SPACE and white == _NO_WHITE:
            white = position
        position += size
    if not ordered:
        return _hash_ordered(data, start, stop, fold, expansions, waiting)
    return mix64(hashed), mix64(digest), length


@inline
def _absorb_all(hashed, digest, waiting, num_waiting) -> tuple[Any, Any]:
    for i in range(num_waiting):
        hashed, digest = _absorb(hashed, digest, np.uint64(np.int64(waiting[i]) & CODE_MASK))
    return hashed, digest


@inline
def _insert_mark(marks, num_marks, mark) -> None:
    """Puts a mark after those of its combining class or a lower one."""
    place, own = num_marks, mark >> CLASS_SHIFT & CLASS_MASK
    while place > 0 and marks[place - 1] >> CLASS_SHIFT & CLASS_MASK > own:
        marks[place] = marks[place - 1]
        place -= 1
    marks[place] = mark


@inline
def _hash_ordered(data, position, stop, fold, expansions, waiting) -> tuple[Any, Any, Any]:
    """`_hash_unit` in canonical order, Hangul composed. `waiting`: (MOST_MARKS,) scratch."""
    hashed, digest, length, white = _PRIME_3, _PRIME_1, np.int64(0), _NOTHING_YET
    num_waiting = np.int64(0)
    while position < stop:
        code, size = decode(data, position, stop)
        folded = np.int64(fold[code])
        if folded == _SPACE and white == _NO_WHITE:
            white = position
        position += size
        if folded == _SPACE or folded == _DROPPED:
            continue
        if white >= 0:
            hashed, digest = _absorb_all(hashed, digest, waiting, num_waiting)
            hashed, digest = _absorb(hashed, digest, np.uint64(_BLANK))
            length, num_waiting = length + 1, np.int64(0)
        white = _NO_WHITE
        number = np.int64(1) if folded >= 0 else np.int64(expansions[-folded])
        length += number >> _COUNTED_SHIFT
        for index in range(1 - folded, 1 - folded + (number & _NUM_MASK)):
            character = folded & ~_JOINS if folded >= 0 else np.int64(expansions[index])
            is_mark = character >> CLASS_SHIFT != 0
            if not is_mark and num_waiting == 1 and joined_syllable(np.int64(waiting[0]), character):
                waiting[0] = joined_syllable(np.int64(waiting[0]), character)
                continue
            if not is_mark or num_waiting == MOST_MARKS:
                hashed, digest = _absorb_all(hashed, digest, waiting, num_waiting)
                num_waiting = np.int64(0)
            _insert_mark(waiting, num_waiting, character)
            num_waiting += 1
            length += np.int64(folded >= 0 and not is_mark)
    hashed, digest = _absorb_all(hashed, digest, waiting, num_waiting)
    return mix64(hashed), mix64(digest), length


@inline
def _is_blank(data, position, stop, fold) -> Any:
    while position < stop:
        code, size = decode(data, position, stop)
        if fold[code] != _SPACE:
            return False
        position += size
    return True


@inline
def _next_newline(data, position, stop) -> Any:
    rest = data[position:stop]
    for i in range(len(rest)):
        if rest[i] == _NEWLINE:
            return position + i
    return stop


@kernel
def find_lines(offsets: Int64s, data: UInt8s, form: NormalForm, min_chars: int, paragraphs: bool, out: TextUnits) -> int:
    """Writes the lines that are not blank, or with `paragraphs` the runs of such lines; returns the
    number of units. `min_chars`: least characters of the normal form; at least one is required."""
    (fold, expansions, squeezed), (documents, starts, sizes, hashes, digests) = form, out
    count, waiting = np.int64(0), np.zeros(MOST_MARKS, np.int32)
    for doc in range(len(offsets) - 1):
        position, end = offsets[doc], offsets[doc + 1]
        begin, content, apart = np.int64(-1), position, True
        while position <= end:
            line_stop = _next_newline(data, position, end)
            blank = position < end and _is_blank(data, position, line_stop, fold)
            if begin >= 0 and not blank and (apart or not paragraphs or position == end):
                hashed, digest, length = _hash_unit(data, begin, content, fold, expansions, squeezed, waiting)
                if length >= max(min_chars, 1):
                    documents[count], starts[count], sizes[count] = doc, begin, position - begin
                    hashes[count], digests[count] = hashed, digest
                    count += 1
                begin = np.int64(-1)
            if position == end:
                break
            if not blank:
                begin = position if begin < 0 else begin
                content = line_stop
            apart = blank
            position = min(line_stop + 1, end)
    return int(count)


@inline
def _sentence_stop(data, position, stop, marks) -> Any:
    """The stop of the sentence that begins at `position`: the next character after it that is no white space, or `stop`."""
    ended, wide, broken = False, False, False
    while position < stop:
        mark, size = mark_at(data, position, stop, marks)
        if mark & WHITE:
            broken = broken or ended or data[position] == _NEWLINE
        elif broken or (wide and mark & (END | PUNCT) == 0):
            return position
        elif mark & END:
            ended = True
            wide = size == 3 and decode(data, position, stop)[0] >= _WIDE
        elif mark & PUNCT == 0:
            ended = wide = False
        position += size
    return stop


@kernel
def find_three_sentences(
    offsets: Int64s, data: UInt8s, form: NormalForm, marks: UInt16s, min_chars: int, out: TextUnits
) -> int:
    """Writes every three consecutive sentences that together have `min_chars` characters; returns
    the number of units. A sentence whose normal form is empty belongs to the one before it."""
    (fold, expansions, squeezed), (documents, starts, sizes, hashes, digests) = form, out
    count, waiting = np.int64(0), np.zeros(MOST_MARKS, np.int32)
    begins, lengths, halves = np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros((3, 2), np.uint64)
    for doc in range(len(offsets) - 1):
        position, end, seen = offsets[doc], offsets[doc + 1], np.int64(0)
        while position < end:
            begin, position = position, _sentence_stop(data, position, end, marks)
            hashed, digest, length = _hash_unit(data, begin, position, fold, expansions, squeezed, waiting)
            if length:
                slot = seen % 3
                begins[slot], lengths[slot], halves[slot, 0], halves[slot, 1] = begin, length, hashed, digest
                seen += 1
                if seen >= 3 and lengths.sum() >= min_chars:
                    first, second = (slot + 1) % 3, (slot + 2) % 3
                    documents[count], starts[count] = doc, begins[first]
                    hashes[count] = mix64(mix64(halves[first, 0] + halves[second, 0] * _PRIME_1) + hashed * _PRIME_2)
                    digests[count] = mix64(mix64(halves[first, 1] + halves[second, 1] * _PRIME_3) + digest * _PRIME_4)
                    sizes[count] = position - begins[first]
                    count += 1
            elif count and documents[count - 1] == doc and starts[count - 1] + np.int64(sizes[count - 1]) == begin:
                sizes[count - 1] = position - starts[count - 1]
    return int(count)
