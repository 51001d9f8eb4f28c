"""Counts the sentences of a line, like spaCy's English tokenizer with its rule-based sentencizer.

    line  ->  chunks between white space  ->  tokens END, OTHER or punctuation  ->  a new sentence at each OTHER after an END

An END is a token that is one of . ! ? or a similar sign of another script. Most chunks hold no such sign and are skipped. In a
chunk that does, marks are cut off its front and back in turn, like spaCy's prefixes and suffixes:

- A full stop at the back is cut off after a small letter, a digit, a mark, or two capitals: "it." ends a sentence, "J." and
  "U.S." do not. Neither do the abbreviations of `abbreviations.py` or a single small letter ("a.").
- Two or more dots are punctuation and end no sentence; neither does "…".
- Inside a word a full stop is cut out between a small letter and a capital ("end.Begin", "année.Étienne"), and an icon anywhere
  ("5°.", "Acme™."), so that a full stop behind it is a token. A word that is an address stays whole ("www.Example.com").

The cost is linear in the bytes of a line.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.text.abbreviations import (
    MOST_BYTES,
    abbreviation_table,
    ends_in_abbreviation,
    is_alnum,
    is_digit,
    is_exception,
)
from datapipe.kernels.text.english_signs import is_address, sign_table
from datapipe.kernels.text.marks import (
    BACK,
    BEFORE_DOT,
    END,
    FRONT,
    ICON,
    LARGE,
    PUNCT,
    QUOTE,
    SMALL,
    WHITE,
    mark_at,
    mark_before,
    mark_table,
)
from datapipe.kernels.types import Int32s, Int64s, Int64sOut, UInt8s, UInt16s

_OTHER = -1
_DOT, _PLUS, _SPACE, _DOLLAR = (ord(sign) for sign in ".+ $")
_IS_SIGN = np.ones(256, np.uint8)
"""Bytes that may belong to a sentence end: . ! ? and all bytes that are not ASCII."""
_IS_SIGN[:128] = 0
_IS_SIGN[np.frombuffer(b".!?", np.uint8)] = 1
_IS_WHITE = np.zeros(256, np.uint8)
_IS_WHITE[[9, 10, 11, 12, 13, 28, 29, 30, 31, 32]] = 1


def count_sentences(starts: np.ndarray, lengths: np.ndarray, wanted: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Sentences of every line that is `wanted` (num_lines,) bool, 0 for other lines: (num_lines,) int64."""
    out = np.zeros(len(starts), np.int64)
    split_sentences(starts, lengths, wanted.view(np.uint8), data, mark_table(), sign_table(), abbreviation_table(), out)
    return out


@kernel
def split_sentences(
    starts: Int64s,
    lengths: Int32s,
    wanted: UInt8s,
    data: UInt8s,
    marks: UInt16s,
    signs: UInt16s,
    abbreviations: Int64s,
    out: Int64sOut,
) -> None:
    """Fills `out` (num_lines,) where `wanted` is not 0. `marks`: `marks.mark_table`; `signs`: `english_signs.sign_table`."""
    for line in range(len(starts)):
        if wanted[line]:
            out[line] = sentences_between(data, starts[line], starts[line] + lengths[line], marks, signs, abbreviations)


@inline
def sentences_between(data, start, stop, marks, signs, abbreviations) -> Any:
    """Number of sentences in [start, stop) that are not blank."""
    count, ended, blank, offset = np.int64(0), False, True, start
    while offset < stop:
        if ended or blank:
            offset, token = _after_white(data, offset, stop, marks)
            if offset == stop:
                break
            if blank or token or is_alnum(data[offset]):  # white space other than one space is a token, and begins a sentence
                count, ended, blank = count + 1, False, False
                continue
            chunk = offset
        else:
            chunk, offset = _next_end(data, offset, stop, marks)
            if offset == stop:
                break
            if _is_plain_end(data, chunk, offset, stop):
                ended = not ends_in_abbreviation(data, chunk, offset, abbreviations)
                offset += 1
                continue
            offset = chunk
        while offset < stop:
            mark, size = mark_at(data, offset, stop, marks)
            if mark & WHITE:
                break
            offset += size
        ended, more = _step_chunk(data, chunk, offset, marks, signs, abbreviations, ended)
        count += more
    return count


@inline
def _next_end(data, offset, stop, marks) -> tuple[Any, Any]:
    """Start of the next chunk with a character that may end a sentence, and that character's offset; `stop` where there is
    none.
    """
    chunk = offset
    while offset < stop:
        offset = _next_sign(data, offset, stop)
        if offset == stop:
            break
        mark, size = mark_at(data, offset, stop, marks)
        if mark & END:
            first = offset
            while first > chunk and not _IS_WHITE[data[first - 1]]:
                first -= 1
            return first, offset
        offset += size
        chunk = offset if mark & WHITE else chunk
    return offset, offset


@inline
def _next_sign(data, offset, stop) -> Any:
    """Offset of the next byte of a possible sentence end. Loops over a view: NumPy's negative indices cost a third of the
    time.
    """
    rest = data[offset:stop]
    for index in range(len(rest)):
        if _IS_SIGN[rest[index]]:
            return offset + index
    return stop


@inline
def _is_plain_end(data, chunk, offset, stop) -> Any:
    """Whether the mark at `offset` is a full stop that ends a chunk after ASCII letters, the last of them small.

    The letters are the whole chunk, or at least the last eight bytes of it.
    """
    if data[offset] != _DOT or (offset + 1 < stop and not _IS_WHITE[data[offset + 1]]):
        return False
    first = offset
    while first > chunk and offset - first < MOST_BYTES and 0x61 <= data[first - 1] | 0x20 <= 0x7A:
        first -= 1
    return offset > first and data[offset - 1] & 0x20 != 0 and (first == chunk or offset - first == MOST_BYTES)


@inline
def _after_white(data, offset, stop, marks) -> tuple[Any, Any]:
    """The stop of the white space at `offset`, and whether it is anything but a single space."""
    start = offset
    while offset < stop:
        mark, size = mark_at(data, offset, stop, marks)
        if mark & WHITE == 0:
            break
        offset += size
    return offset, offset > start and (offset - start > 1 or data[start] != _SPACE)


@inline
def _step_token(kind, ended, more) -> tuple[Any, Any]:
    """Updates (whether a sentence has ended, number of new sentences) for one token."""
    if kind == END:
        return True, more
    if kind == _OTHER and ended:
        return False, more + 1
    return ended, more


@inline
def _step_chunk(data, start, stop, marks, signs, abbreviations, ended) -> tuple[Any, Any]:
    """`_step_token` for all tokens of a chunk that holds an END mark."""
    first, last = _core(data, start, stop, marks, abbreviations)
    ended, more = _step_marks(data, start, first, marks, ended, np.int64(0))
    if first < last and is_exception(data, first, last, abbreviations):
        ended, more = _step_token(_OTHER, ended, more)
    elif first < last:
        ended, more, word = _step_core(data, start, first, last, marks, signs, abbreviations, ended, more)
        if _num_dots(data, last, stop) == 1 and not _is_cut(data, start, word, last, abbreviations):
            last += 1  # that full stop belongs to the word before it
    return _step_marks(data, last, stop, marks, ended, more)


@inline
def _step_marks(data, offset, stop, marks, ended, more) -> tuple[Any, Any]:
    """`_step_token` for the marks cut off a chunk: single characters and runs of dots."""
    while offset < stop:
        dots = _num_dots(data, offset, stop)
        if dots > 1:
            offset += dots
            continue
        mark, size = mark_at(data, offset, stop, marks)
        kind = END if mark & END else (_OTHER if mark & PUNCT == 0 else 0)
        ended, more = _step_token(kind, ended, more)
        offset += size
    return ended, more


@inline
def _step_core(data, chunk, first, last, marks, signs, abbreviations, ended, more) -> tuple[Any, Any, Any]:
    """`_step_token` for the core of a chunk, split at full stops, ellipses and icons inside; also returns the start of its last
    word.
    """
    offset, word, before, checked = first, first, np.int64(0), False
    while offset < last:
        mark, size = mark_at(data, offset, last, marks)
        cut = _inner_cut(data, offset, last, marks, before, mark, size) if offset > first else 0
        before = mark
        if cut and not checked:
            checked = True
            if is_address(data, first, last, signs):
                break
        if cut == 0:
            offset += size
            continue
        ended, more = _step_token(_token(data, word, offset, marks), ended, more)
        if mark & ICON:
            ended = ended or _is_degree_stop(data, chunk, word, offset)
            ended, more = _step_token(_token(data, offset, offset + cut, marks), ended, more)
        elif cut == 1 and _is_cut(data, chunk, word, offset, abbreviations):
            ended = True
        offset += cut
        word = offset
    ended, more = _step_token(_token(data, word, last, marks), ended, more)
    return ended, more, word


@inline
def _is_cut(data, chunk, word, dot, abbreviations) -> Any:
    """Whether the full stop at `dot` is a token beside the word before it: behind a unit of temperature, and wherever the word
    is no abbreviation.
    """
    is_unit = dot - word == 1 and _is_degree(data[word]) and _follows_degree(data, chunk, word)
    return is_unit or not ends_in_abbreviation(data, word, dot, abbreviations)


@inline
def _is_degree_stop(data, chunk, word, stop) -> Any:
    """Whether [word, stop) is a capital unit of temperature with its full stop, which spaCy's special cases cut off between
    icons: "°C.♥".
    """
    is_stop = stop - word == 2 and data[word + 1] == _DOT and 0x43 <= data[word] <= 0x4B
    return is_stop and _is_degree(data[word]) and _follows_degree(data, chunk, word)


@inline
def _follows_degree(data, chunk, word) -> Any:
    """Whether a degree sign of the chunk is before `word`."""
    return word - chunk >= 2 and data[word - 2] == 0xC2 and data[word - 1] == 0xB0


@inline
def _inner_cut(data, offset, last, marks, before, mark, size) -> Any:
    """Bytes at `offset` that are a token inside a word: dots, an icon, or a full stop between a small letter and a capital."""
    if mark & ICON:
        return size
    dots = _num_dots(data, offset, last)
    if dots != 1:
        return dots
    if offset + 1 == last or before & (SMALL | QUOTE) == 0:
        return 0
    return 1 if mark_at(data, offset + 1, last, marks)[0] & (LARGE | QUOTE) else 0


@inline
def _token(data, start, stop, marks) -> Any:
    """The kind of the token [start, stop): END, _OTHER, or 0 for punctuation and for an empty token."""
    offset = start
    while offset < stop:
        mark, size = mark_at(data, offset, stop, marks)
        if offset == start and mark & END and offset + size == stop:
            return END
        if mark & PUNCT == 0:
            return _OTHER
        offset += size
    return 0


@inline
def _num_dots(data, offset, stop) -> Any:
    """Number of consecutive dots from `offset` on."""
    end = offset
    while end < stop and data[end] == _DOT:
        end += 1
    return end - offset


@inline
def _core(data, first, last, marks, abbreviations) -> tuple[Any, Any]:
    """The core of a chunk: marks are cut off its front and back in turn, until it is an exception or has no more marks."""
    while first < last and not is_exception(data, first, last, abbreviations):
        if _is_degrees(data, first, last):
            return last - 1, last - 1
        front = _front(data, first, last, marks)
        if front and is_exception(data, first + front, last, abbreviations):
            return first + front, last
        if _is_degrees(data, first + front, last):
            return last - 1, last - 1
        back = _back(data, first + front, last, marks)
        if back and is_exception(data, first, last - back, abbreviations):
            return first, last - back
        if front + back == 0:
            break
        if _is_degrees(data, first, last - back):
            return last - back - 1, last - back - 1
        first, last = first + front, last - back
    return first, last


@inline
def _is_degrees(data, first, last) -> Any:
    """Whether [first, last) is a unit of temperature with its full stop, which is always cut off: "°C."."""
    is_degree = last - first == 4 and data[first] == 0xC2 and data[first + 1] == 0xB0 and data[last - 1] == _DOT
    return is_degree and _is_degree(data[first + 2])


@inline
def _front(data, first, last, marks) -> Any:
    """Bytes to cut off the front: a run of dots, `US$`, `C$`, `A$`, or one mark."""
    if data[first] == 0x41 or data[first] == 0x43:
        return 2 if first + 1 < last and data[first + 1] == _DOLLAR else 0
    if data[first] == 0x55:
        return 3 if first + 2 < last and data[first + 1] == 0x53 and data[first + 2] == _DOLLAR else 0
    if data[first] == _DOT:
        dots = _num_dots(data, first, last)
        return dots if dots > 1 else 0
    if data[first] == _PLUS:
        return 0 if first + 1 < last and is_digit(data[first + 1]) else 1
    mark, size = mark_at(data, first, last, marks)
    return size if mark & FRONT else 0


@inline
def _back(data, first, last, marks) -> Any:
    """Bytes to cut off the back: dots, 's, or one mark."""
    if first >= last:
        return 0
    if data[last - 1] == _DOT:
        return _back_dots(data, first, last, marks)
    if data[last - 1] | 0x20 == 0x73:  # s
        if last - first >= 2 and data[last - 2] == 0x27:
            return 2
        if last - first >= 4 and data[last - 4] == 0xE2 and data[last - 3] == 0x80 and data[last - 2] == 0x99:
            return 4
    mark, size = mark_before(data, last, first, marks)
    return size if mark & BACK else 0


@inline
def _back_dots(data, first, last, marks) -> Any:
    """Bytes of the dots to cut off the back: a run of dots, or one full stop after a character that may precede one."""
    offset = last - 1
    while offset > first and data[offset - 1] == _DOT:
        offset -= 1
    if offset < last - 1:
        return last - offset
    if offset == first:
        return 0
    mark, size = mark_before(data, offset, first, marks)
    if mark & BEFORE_DOT or (
        offset - first >= 3 and data[offset - 3] == 0xC2 and data[offset - 2] == 0xB0 and _is_degree(data[offset - 1])
    ):
        return 1
    return 1 if mark & LARGE and offset - size > first and mark_before(data, offset - size, first, marks)[0] & LARGE else 0


@inline
def _is_degree(byte) -> Any:
    """Whether a letter is a unit of temperature: C, F or K."""
    return byte | 0x20 == 0x63 or byte | 0x20 == 0x66 or byte | 0x20 == 0x6B
