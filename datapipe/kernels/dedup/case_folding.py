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

ASCII goes in runs, which LLVM vectorises, or eight bytes at a time. Most other characters have a form of at most six bytes
(`packed_forms.py`), which is written at once. No form has more than `GROWTH` times the bytes.
"""

import sys
from typing import Any, NamedTuple
from unicodedata import combining, is_normalized, normalize

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import bits_before, first_byte
from datapipe.kernels.dedup.packed_forms import (
    ALONE_FLAG,
    ANY_MARK,
    CLASS_MASK,
    CLASS_SHIFT,
    CODE_MASK,
    EXTENDS_FLAG,
    FIRST_JAMO,
    INSIDE,
    IOTA_CLASS,
    LAST_JAMO,
    LONE,
    ORDERED,
    OUTSIDE,
    form_kind,
    form_size,
    is_letter_form,
    marks_at_end,
    packed_forms,
)
from datapipe.kernels.dedup.utf8_steps import (
    HIGHS,
    ascii_stop,
    eight_until,
    fold_ascii,
    folded_eight,
    short_character,
    write_eight,
)
from datapipe.kernels.dedup.word_characters import (
    ALONE,
    IGNORED,
    MARK,
    UNASSIGNED,
    invisible_characters,
    known_classes,
    word_table,
)
from datapipe.kernels.tables import stored_table
from datapipe.kernels.text.unicode_classes import REPLACEMENT, codes_of, decode, decode_before, write_character
from datapipe.kernels.types import Int32s, Int64s, Int64sOut, UInt8s, UInt8sOut, UInt64s, input_record

GROWTH = 3
"""The most bytes of a folded character for each of its bytes; a test checks every character."""

MOST_MARKS = 32
_NOTHING = -1  # In `Folding.codes`: no character at all
_HANGUL, _LEADS, _VOWELS, _TAILS = 0xAC00, 0x1100, 0x1161, 0x11A7
_NUM_LEADS, _NUM_VOWELS, _NUM_TAILS = 19, 21, 28
"""Syllables of Hangul and the jamo that they consist of (Unicode, chapter 3.12). The first tail stands for none."""

JOINING_JAMO = (slice(_VOWELS, _VOWELS + _NUM_VOWELS), slice(_TAILS + 1, _TAILS + _NUM_TAILS))
"""Jamo that join the jamo or the syllable before them."""

_UNCHANGED = "3400-9FFF AC00-D7A3 E000-F8FF 17000-18CFF 20000-2F7FF 2FA20-10FFFF"
"""Syllables of Hangul; ideographs and private use, which have neither case nor decompositions. A test checks each."""

_RUN = np.uint64(16)
_0, _1, _2, _3, _8, _HIGH = (np.uint64(number) for number in (0, 1, 2, 3, 8, 0x80))
_OUTSIDE, _LONE, _MOST = (np.uint64(number) for number in (OUTSIDE, LONE, MOST_MARKS))
_APART = np.uint64(sum(1 << (before << 2 | after) for before, after in ((INSIDE, LONE), (LONE, INSIDE), (LONE, LONE))))
"""A bit for each state and following kind with a 0 between them."""


class Folding(NamedTuple):
    """The folded characters of every code point: an input of kernels."""

    # (0x110000,), the folded character, or -p where their number is at `expansions[p]` and they follow
    codes: Int32s
    expansions: Int32s
    forms: UInt64s  # (0x10000,), those of `packed_forms.py`
    words: bool  # whether only words are kept, with 0 between them and after the last of a document


@stored_table
def text_folding() -> Folding:
    """The tables of whole texts."""
    codes, expansions = np.arange(sys.maxunicode + 1, dtype=np.int32), [0, 0]
    changed = known_classes() != UNASSIGNED
    changed[codes_of(_UNCHANGED)] = False
    for code in np.flatnonzero(changed).tolist():
        character = chr(code)
        if character.casefold() == character and is_normalized("NFD", character) and not combining(character):
            continue
        folded = folded_characters(character)
        codes[code] = folded[0] if len(folded) == 1 else -len(expansions)
        if len(folded) > 1:
            expansions += [len(folded), *folded]
    return _folding(codes, np.array(expansions, np.int32), words=False)


def _folding(codes: np.ndarray, expansions: np.ndarray, words: bool) -> Folding:
    return input_record(Folding, (codes, expansions, packed_forms(codes, expansions, words), words))


def folded_characters(character: str) -> list[int]:
    """The folded characters of one: of each part of its decomposition, with the combining class of that part."""
    return [ord(folded) | combining(part) << CLASS_SHIFT for part in normalize("NFD", character) for folded in part.casefold()]


@stored_table
def visible_folding() -> Folding:
    """The tables of whole texts without their invisible characters."""
    codes, expansions = text_folding()[:2]
    codes = codes.copy()
    codes[invisible_characters()] = _NOTHING
    return _folding(codes, expansions, words=False)


@stored_table
def word_folding(by_spaces: bool = False) -> Folding:
    """The tables of words: what ends a word becomes 0, and what is ignored becomes nothing. `by_spaces`: in no script a
    character is a word by itself."""
    folding, table = text_folding(), word_table()
    table = table & np.uint8(~ALONE & 0xFF) if by_spaces else table
    codes, is_one = folding.codes.copy(), folding.codes >= 0
    codes[is_one] = _as_part_of_word(codes[is_one], table)
    codes[table == IGNORED] = _NOTHING
    expansions, position = folding.expansions.copy(), 1
    while position < len(expansions):
        start = position + 1
        position = start + int(expansions[position])
        expansions[start:position] = _as_part_of_word(expansions[start:position], table)
    return _folding(codes, expansions, words=True)


def _as_part_of_word(characters: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Folded characters with `ALONE_FLAG` and `EXTENDS_FLAG`, or 0 where they end a word; (num_characters,) int32."""
    kinds = table[characters & CODE_MASK]
    flagged = characters | np.where(kinds & ALONE, ALONE_FLAG, 0) | np.where(kinds & MARK, EXTENDS_FLAG, 0)
    return np.where(kinds == 0, 0, flagged).astype(np.int32)


def fold_texts(offsets: np.ndarray, data: np.ndarray, folding: Folding) -> tuple[np.ndarray, np.ndarray]:
    """The folded texts, or their words, as offsets and bytes; at least 64 bytes follow the last text."""
    out_offsets = np.empty(len(offsets), np.int64)
    most = GROWTH * int(offsets[-1] - offsets[0]) + len(offsets) + 64
    out = np.empty(most, np.uint8)  # pages that are never written cost no memory
    fold_case(offsets, data, folding, out_offsets, out)
    return out_offsets, out


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
def _insert_mark(codes, out, written, num_marks, mark) -> Any:
    """Writes a mark among the last `num_marks` characters, behind those of its combining class or a
    lower one; returns the number of bytes written by then."""
    position = written
    while num_marks > 0:
        code, size = decode_before(out, position, 0)
        own = np.int64(codes[code]) >> CLASS_SHIFT & CLASS_MASK
        if (own if own else IOTA_CLASS) <= mark >> CLASS_SHIFT & CLASS_MASK:
            break
        position, num_marks = position - size, num_marks - 1
    stop = write_character(mark & CODE_MASK, out, written)
    for index in range(written - 1, position - 1, -1):
        out[index + stop - written] = out[index]
    write_character(mark & CODE_MASK, out, position)
    return stop


@inline
def _fold_character(code, codes, expansions, words, start, state, num_marks, last, out, written) -> tuple[Any, Any, Any, Any]:
    """Writes the folded parts of any character. Returns the number of bytes written by then, the
    state, the number of marks in a row, and the combining class of the last."""
    character, count, part = np.int64(codes[code]), np.int64(1), np.int64(0)
    if character < 0:
        count, part = np.int64(expansions[-character]), 1 - character
    for index in range(part, part + count):
        character = np.int64(expansions[index]) if part else character
        if character & ANY_MARK and state == OUTSIDE:
            continue  # a mark belongs to the character before it
        if character & ORDERED:
            own, num_marks = character >> CLASS_SHIFT & CLASS_MASK, num_marks if num_marks < MOST_MARKS else np.int64(0)
            written = _insert_mark(codes, out, written, num_marks, character)
            num_marks, last = num_marks + 1, max(last, own) if num_marks else own
            continue
        num_marks, last = np.int64(0), np.int64(0)
        if words and character & EXTENDS_FLAG == 0:
            following = np.int64(OUTSIDE if character == 0 else (LONE if character & ALONE_FLAG else INSIDE))
            if state > OUTSIDE and following > OUTSIDE and max(state, following) == LONE:
                out[written] = 0
                written += 1
            state = following
        code = character & CODE_MASK
        if FIRST_JAMO <= code <= LAST_JAMO:
            code, written = _with_syllable(code, out, start, written)
        written = write_character(code, out, written)
    return written, state, num_marks, last


@kernel
def fold_case(offsets: Int64s, data: UInt8s, folding: Folding, out_offsets: Int64sOut, out: UInt8sOut) -> None:
    """Writes the folded texts, or their words, and at most eight bytes more.

    One loop nest above 40 lines: its steps share their state. `out` has room for GROWTH * bytes of
    the texts + num_docs + 8 bytes.
    """
    codes, expansions, forms, words = folding
    written = _0
    out_offsets[0] = 0
    for doc in range(len(offsets) - 1):
        position, end, start = np.uint64(offsets[doc]), np.uint64(offsets[doc + 1]), written
        state, num_marks, last = np.uint64(OUTSIDE if words else INSIDE), _0, _0
        while position < end:
            eight = eight_until(data, position, end)
            if eight & _HIGH == _0:  # ASCII
                num_marks, last = _0, _0
                out[written] = 0
                written += np.uint64(state == _LONE)
                highs = eight & HIGHS
                stop = ascii_stop(data, position, end) if highs == _0 else position
                if stop >= position + _RUN:
                    size = stop - position
                    fold_ascii(data[position:stop], out[written : written + size], words)
                else:
                    size = min(first_byte(highs), end - position)
                    write_eight(out, written, folded_eight(eight & bits_before(highs), words))
                written, position = written + size, position + size
                if words:
                    state = np.uint64(out[written - _1] != 0)
                continue
            code, size = short_character(eight)
            form = forms[code]
            if is_letter_form(form):
                apart = _APART >> (state << _2 | form_kind(form)) & _1
                write_eight(out, written, form << (apart << _3))
                written, position = written + apart + form_size(form), position + size
                state, (num_marks, last) = form_kind(form), marks_at_end(form)
                continue
            own = marks_at_end(form)[1]
            if form != _0 and state != _OUTSIDE and num_marks < _MOST and (own == _0 or own >= last):
                write_eight(out, written, form)
                written, position = written + form_size(form), position + size
                num_marks, last = num_marks + _1 if own != _0 else _0, own
                continue
            whole, num_bytes = decode(data, np.int64(position), np.int64(end))
            position += np.uint64(num_bytes)
            if whole == REPLACEMENT and num_bytes == 1:  # no UTF-8
                out[written] = 0 if words else data[position - _1]
                written, num_marks, last, state = written + _1, _0, _0, _OUTSIDE if words else state
                continue
            facts = np.int64(state), np.int64(num_marks), np.int64(last), out, np.int64(written)
            after, state, num_marks, last = _fold_character(whole, codes, expansions, words, np.int64(start), *facts)
            written, state, num_marks, last = np.uint64(after), np.uint64(state), np.uint64(num_marks), np.uint64(last)
        if words:
            out[written] = 0
            written += _1
        out_offsets[doc + 1] = written
