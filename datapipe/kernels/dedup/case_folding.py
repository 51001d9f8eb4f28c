"""Texts without case, in one of the forms that Unicode holds to be equal: texts are compared in this form.

    bytes  ─▶  characters  ─▶  decomposed, without case  ─▶  marks in canonical order  ─▶  bytes

This is the canonical caseless form of Unicode (chapter 3.13, definition D145), NFD(casefold(NFD(text))), except that
syllables of Hangul are composed. So "É" equals "é" in one code point or two, "STRASSE" equals "straße", "Σίσυφος" equals
"ΣΊΣΥΦΟΣ", and "ﬁ" is "fi", but "²" is not "2". The dotted İ is "i" with a dot above, and the dotless ı stays.

`visible_folding()` leaves out invisible characters (`word_characters.py`). `word_folding()` keeps
words alone, with at least one 0 between them and after the last of a document.

The tables cover Unicode 14.0; newer characters stay as they are. Decompositions, combining classes and case folding of an
assigned character never change, so the tables are the same on every version of Python. Marks in a row are put in canonical
order, `MOST_MARKS` at a time: Unicode's stream-safe format has at most 30. Bytes that are not UTF-8 stay.

ASCII goes in runs, which LLVM vectorises. No form has more than `GROWTH` times the bytes.
"""

import sys
from functools import lru_cache
from typing import Any, NamedTuple
from unicodedata import combining, normalize

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import eight_bytes
from datapipe.kernels.dedup.word_characters import (
    ALONE,
    IGNORED,
    MARK,
    UNASSIGNED,
    invisible_characters,
    known_classes,
    word_table,
)
from datapipe.kernels.text.unicode_classes import REPLACEMENT, codes_of, decode, write_character
from datapipe.kernels.types import Int32s, Int64s, Int64sOut, UInt8s, UInt8sOut, input_record

GROWTH = 3
"""The most bytes of a folded character for each of its bytes; a test checks every character."""

MOST_MARKS = 32
CODE_MASK, CLASS_SHIFT, CLASS_MASK = 0x1FFFFF, 21, 0xFF
"""A folded character: its code point in the lower 21 bits, the canonical combining class of its origin above them."""

_ALONE, _EXTENDS = 1 << 29, 1 << 30
"""Set where words are kept: a character that is a word, and a mark."""

_ORDERED = CLASS_MASK << CLASS_SHIFT
_ANY_MARK = _ORDERED | _EXTENDS

_NOTHING = -1  # In `Folding.codes`: no character at all
_OUTSIDE, _INSIDE, _LONE = range(3)  # Between words; in a word; in a word of one character
_HANGUL, _LEADS, _VOWELS, _TAILS = 0xAC00, 0x1100, 0x1161, 0x11A7
_NUM_LEADS, _NUM_VOWELS, _NUM_TAILS = 19, 21, 28
"""Syllables of Hangul and the jamo that they consist of (Unicode, chapter 3.12). The first tail stands for none."""

JOINING_JAMO = (slice(_VOWELS, _VOWELS + _NUM_VOWELS), slice(_TAILS + 1, _TAILS + _NUM_TAILS))
"""Jamo that join the jamo or the syllable before them."""

_UNCHANGED = "3400-9FFF AC00-D7A3 E000-F8FF 17000-18CFF 20000-2F7FF 2FA20-10FFFF"
"""Syllables of Hangul; ideographs and private use, which have neither case nor decompositions. A test checks each."""

_RUN = 16
_HIGHS = np.uint64(0x8080808080808080)


class Folding(NamedTuple):
    """The folded characters of every code point: an input of kernels."""

    # (0x110000,), the folded character, or -p where their number is at `expansions[p]` and they follow
    codes: Int32s
    expansions: Int32s
    words: bool  # whether only words are kept, with 0 between them and after the last of a document


@lru_cache(maxsize=1)
def text_folding() -> Folding:
    """The tables of whole texts, built once per process, in about 0.1 s."""
    codes, expansions = np.arange(sys.maxunicode + 1, dtype=np.int32), [0, 0]
    changed = known_classes() != UNASSIGNED
    changed[codes_of(_UNCHANGED)] = False
    for code in np.flatnonzero(changed).tolist():
        folded = folded_characters(chr(code))
        codes[code] = folded[0] if len(folded) == 1 else -len(expansions)
        if len(folded) > 1:
            expansions += [len(folded), *folded]
    return input_record(Folding, (codes, np.array(expansions, np.int32), False))


def folded_characters(character: str) -> list[int]:
    """The folded characters of one: of each part of its decomposition, with the combining class of that part."""
    return [ord(folded) | combining(part) << CLASS_SHIFT for part in normalize("NFD", character) for folded in part.casefold()]


@lru_cache(maxsize=1)
def visible_folding() -> Folding:
    """The tables of whole texts without their invisible characters."""
    codes, expansions, _ = text_folding()
    codes = codes.copy()
    codes[invisible_characters()] = _NOTHING
    return input_record(Folding, (codes, expansions, False))


@lru_cache(maxsize=1)
def word_folding() -> Folding:
    """The tables of words: what ends a word becomes 0, and what is ignored becomes nothing."""
    folding, table = text_folding(), word_table()
    codes, is_one = folding.codes.copy(), folding.codes >= 0
    codes[is_one] = _as_part_of_word(codes[is_one], table)
    codes[table == IGNORED] = _NOTHING
    expansions, position = folding.expansions.copy(), 1
    while position < len(expansions):
        start = position + 1
        position = start + int(expansions[position])
        expansions[start:position] = _as_part_of_word(expansions[start:position], table)
    return input_record(Folding, (codes, expansions, True))


def _as_part_of_word(characters: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Folded characters with `_ALONE` and `_EXTENDS`, or 0 where they end a word; (num_characters,) int32."""
    kinds = table[characters & CODE_MASK]
    flagged = characters | np.where(kinds & ALONE, _ALONE, 0) | np.where(kinds & MARK, _EXTENDS, 0)
    return np.where(kinds == 0, 0, flagged).astype(np.int32)


def fold_texts(offsets: np.ndarray, data: np.ndarray, folding: Folding) -> tuple[np.ndarray, np.ndarray]:
    """The folded texts, or their words, as offsets and bytes; at least eight bytes follow the last text."""
    out_offsets = np.empty(len(offsets), np.int64)
    most = GROWTH * int(offsets[-1] - offsets[0]) + len(offsets) + 8
    out = np.empty(most, np.uint8)  # pages that are never written cost no memory
    fold_case(offsets, data, folding, out_offsets, out)
    return out_offsets, out


@inline
def _ascii_stop(data, start, stop) -> Any:
    """Where a run of ASCII ends, in whole steps of eight bytes from `start` on."""
    position = start
    while position + 8 <= stop and eight_bytes(data, np.uint64(position)) & _HIGHS == 0:
        position += 8
    return position


@inline
def _fold_ascii(source, target, words) -> None:
    """Writes ASCII bytes in lower case; with `words`, 0 where a byte is no letter and no digit."""
    for i in range(len(source)):
        byte = source[i]
        lowered = np.uint8(byte | np.uint8(0x20))
        is_letter = (lowered >= np.uint8(97)) & (lowered <= np.uint8(122))
        is_digit = (byte >= np.uint8(48)) & (byte <= np.uint8(57))
        other = byte if is_digit or not words else np.uint8(0)
        target[i] = lowered if is_letter else other


@inline
def joined_syllable(before, code) -> Any:
    """The syllable of Hangul that a jamo makes of the jamo or syllable before it; 0 where it makes none."""
    if 0 <= code - _VOWELS < _NUM_VOWELS and 0 <= before - _LEADS < _NUM_LEADS:
        return _HANGUL + ((before - _LEADS) * _NUM_VOWELS + code - _VOWELS) * _NUM_TAILS
    is_open = 0 <= before - _HANGUL < _NUM_LEADS * _NUM_VOWELS * _NUM_TAILS and (before - _HANGUL) % _NUM_TAILS == 0
    return before + code - _TAILS if is_open and 0 < code - _TAILS < _NUM_TAILS else 0


@inline
def _with_syllable(code, out, start, written) -> tuple[Any, Any]:
    """A jamo, or the syllable it makes with the last character; and the bytes before it."""
    if written >= start + 3:
        before, size = decode(out, written - 3, written)
        syllable = joined_syllable(before, code)
        if size == 3 and syllable:
            return syllable, written - 3
    return code, written


@inline
def _write_marks(marks, num_marks, out, written) -> Any:
    """Writes the marks that wait; returns the number of bytes written by then."""
    for i in range(num_marks):
        written = write_character(np.int64(marks[i]) & CODE_MASK, out, written)
    return written


@inline
def insert_mark(marks, num_marks, mark) -> None:
    """Puts a mark after those of its combining class or a lower one."""
    place, own = num_marks, mark >> CLASS_SHIFT & CLASS_MASK
    while place > 0 and marks[place - 1] >> CLASS_SHIFT & CLASS_MASK > own:
        marks[place] = marks[place - 1]
        place -= 1
    marks[place] = mark


@kernel
def fold_case(offsets: Int64s, data: UInt8s, folding: Folding, out_offsets: Int64sOut, out: UInt8sOut) -> None:
    """Writes the folded texts, or their words; bytes past `out_offsets[-1]` are not written.

    One loop nest above 40 lines: with its parts in functions that take `marks` and `out`, most
    scripts go at half the speed. `out` has room for GROWTH * bytes of the texts + num_docs bytes.
    """
    codes, expansions, words = folding
    marks, written = np.zeros(MOST_MARKS, np.int32), np.int64(0)
    out_offsets[0] = 0
    for doc in range(len(offsets) - 1):
        position, end, start, num_marks, state = offsets[doc], offsets[doc + 1], written, np.int64(0), np.int64(_OUTSIDE)
        while position < end:
            code, size, stop = np.int64(data[position]), np.int64(1), position
            if code >= 0x80:
                code, size = decode(data, position, end)
            else:
                stop = _ascii_stop(data, position, end)
            if stop >= position + _RUN or (code == REPLACEMENT and size == 1):
                stop = max(stop, position + 1)
                if num_marks:
                    written, num_marks = _write_marks(marks, num_marks, out, written), np.int64(0)
                if state == _LONE:
                    out[written] = 0
                    written += 1
                if words:
                    last = data[stop - 1]
                    state = np.int64(_INSIDE if last < 0x80 and codes[last] else _OUTSIDE)
                _fold_ascii(data[position:stop], out[written : written + stop - position], words)
                written, position = written + stop - position, stop
                continue
            position += size
            character, count, part = np.int64(codes[code]), np.int64(1), np.int64(0)
            is_plain = 0 < character <= CODE_MASK and not _VOWELS <= character < _TAILS + _NUM_TAILS
            if is_plain and num_marks == 0 and (state == _INSIDE or not words):
                written = write_character(character, out, written)  # by far the most: one letter inside a word
                continue
            if character < 0:
                count, part = np.int64(expansions[-character]), 1 - character
            for index in range(part, part + count):
                character = np.int64(expansions[index]) if part else character
                if character & _ANY_MARK and words and state == _OUTSIDE:
                    continue  # a mark belongs to the character before it
                if num_marks and (character & _ORDERED == 0 or num_marks == MOST_MARKS):
                    written, num_marks = _write_marks(marks, num_marks, out, written), np.int64(0)
                if character & _ORDERED:
                    insert_mark(marks, num_marks, character)
                    num_marks += 1
                    continue
                if words and character & _EXTENDS == 0:
                    following = np.int64(_OUTSIDE if character == 0 else (_LONE if character & _ALONE else _INSIDE))
                    if state > _OUTSIDE and following > _OUTSIDE and max(state, following) == _LONE:
                        out[written] = 0
                        written += 1
                    state = following
                code = character & CODE_MASK
                if _VOWELS <= code < _TAILS + _NUM_TAILS:
                    code, written = _with_syllable(code, out, start, written)
                written = write_character(code, out, written)
        if num_marks:
            written = _write_marks(marks, num_marks, out, written)
        if words:
            out[written] = 0
            written += 1
        out_offsets[doc + 1] = written
