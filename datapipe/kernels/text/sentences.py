"""How many sentences a line has, as spaCy's English tokenizer with its rule-based sentencizer counts them.

    line  ->  pieces between white space  ->  tokens END, OTHER or punctuation  ->  one sentence more at each OTHER after an END

An END is a token of its own that is one of . ! ? and their kin in other scripts. Most pieces hold no such mark and are passed
over. In one that does, marks are cut off its front and back in turn, as spaCy does by prefixes and suffixes:

- A full stop at the back is cut off after a small letter, a digit, a mark, or two capitals, so "it." ends a sentence and
  "J." and "U.S." do not. Nor do abbreviations of `abbreviations.py`, nor a single small letter ("a.").
- Two or more dots are punctuation and end nothing, nor does "…".
- Inside a word a full stop is cut out between a small letter and a capital ("end.Begin"), unless the word is an address
  ("www.Example.com").

A line costs its length: every byte is looked at a bounded number of times.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.text.abbreviations import (
    MOST_BYTES,
    abbreviation_table,
    ends_in_abbreviation,
    is_address,
    is_alnum,
    is_digit,
    is_exception,
)
from datapipe.kernels.text.marks import (
    BACK,
    BEFORE_DOT,
    END,
    FRONT,
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
_DOT, _PLUS, _SPACE = (ord(sign) for sign in ".+ ")
_ELLIPSIS = np.frombuffer("…".encode(), np.uint8)
_IS_SIGN = np.ones(256, np.uint8)
"""Bytes that may belong to a mark that ends a sentence: . ! ? and all that are not ASCII."""
_IS_SIGN[:128] = 0
_IS_SIGN[np.frombuffer(b".!?", np.uint8)] = 1
_IS_WHITE = np.zeros(256, np.uint8)
_IS_WHITE[[9, 10, 11, 12, 13, 28, 29, 30, 31, 32]] = 1


def count_sentences(starts: np.ndarray, lengths: np.ndarray, wanted: np.ndarray, data: np.ndarray) -> np.ndarray:
    """The sentences of every line that is `wanted` (num_lines,) bool, 0 for others: (num_lines,) int64."""
    out = np.zeros(len(starts), np.int64)
    split_sentences(starts, lengths, wanted.view(np.uint8), data, mark_table(), abbreviation_table(), out)
    return out


@kernel
def split_sentences(
    starts: Int64s, lengths: Int32s, wanted: UInt8s, data: UInt8s, marks: UInt16s, abbreviations: Int64s, out: Int64sOut
) -> None:
    """Fills `out` (num_lines,) where `wanted` is not 0."""
    for line in range(len(starts)):
        if wanted[line]:
            out[line] = sentences_between(data, starts[line], starts[line] + lengths[line], marks, abbreviations)


@inline
def sentences_between(data, start, stop, marks, abbreviations) -> Any:
    """How many sentences [start, stop) has that are not blank."""
    count, ended, blank, at = np.int64(0), False, True, start
    while at < stop:
        if ended or blank:
            at, token = _after_white(data, at, stop, marks)
            if at == stop:
                break
            if blank or token or is_alnum(data[at]):  # white space other than one space is a token, and begins a sentence
                count, ended, blank = count + 1, False, False
                continue
            piece = at
        else:
            piece, at = _next_end(data, at, stop, marks)
            if at == stop:
                break
            if _is_plain_end(data, piece, at, stop):
                ended = not ends_in_abbreviation(data, piece, at, abbreviations)
                at += 1
                continue
            at = piece
        while at < stop:
            mark, size = mark_at(data, at, stop, marks)
            if mark & WHITE:
                break
            at += size
        ended, more = _of_piece(data, piece, at, marks, abbreviations, ended)
        count += more
    return count


@inline
def _next_end(data, at, stop, marks) -> tuple[Any, Any]:
    """The next character that may end a sentence, after the begin of its piece; `stop` where there is none."""
    piece = at
    while at < stop:
        at = _next_sign(data, at, stop)
        if at == stop:
            break
        mark, size = mark_at(data, at, stop, marks)
        if mark & END:
            first = at
            while first > piece and not _IS_WHITE[data[first - 1]]:
                first -= 1
            return first, at
        at += size
        piece = at if mark & WHITE else piece
    return at, at


@inline
def _next_sign(data, at, stop) -> Any:
    """The next byte that may belong to a mark; a loop over a view, since NumPy's negative indices cost a third of its time."""
    rest = data[at:stop]
    for place in range(len(rest)):
        if _IS_SIGN[rest[place]]:
            return at + place
    return stop


@inline
def _is_plain_end(data, piece, at, stop) -> Any:
    """Whether the mark at `at` is a full stop that ends a piece which is a word of ASCII letters, or has eight before it."""
    if data[at] != _DOT or (at + 1 < stop and not _IS_WHITE[data[at + 1]]):
        return False
    first = at
    while first > piece and at - first < MOST_BYTES and 0x61 <= data[first - 1] | 0x20 <= 0x7A:
        first -= 1
    return at > first and data[at - 1] & 0x20 != 0 and (first == piece or at - first == MOST_BYTES)


@inline
def _after_white(data, at, stop, marks) -> tuple[Any, Any]:
    """Where the white space at `at` stops, and whether it is more, or other, than one space."""
    start = at
    while at < stop:
        mark, size = mark_at(data, at, stop, marks)
        if mark & WHITE == 0:
            break
        at += size
    return at, at > start and (at - start > 1 or data[start] != _SPACE)


@inline
def _step(kind, ended, more) -> tuple[Any, Any]:
    """What a token does to (whether a sentence has ended, how many more have begun)."""
    if kind == END:
        return True, more
    if kind == _OTHER and ended:
        return False, more + 1
    return ended, more


@inline
def _of_piece(data, start, stop, marks, abbreviations, ended) -> tuple[Any, Any]:
    """The same for all tokens of a piece that holds an END mark."""
    first, last = _core(data, start, stop, marks, abbreviations)
    ended, more = _of_signs(data, start, first, marks, ended, np.int64(0))
    if first < last and is_exception(data, first, last, abbreviations):
        ended, more = _step(_OTHER, ended, more)
    elif first < last:
        ended, more, word = _of_core(data, first, last, marks, abbreviations, ended, more)
        if _num_dots(data, last, stop) == 1 and ends_in_abbreviation(data, word, last, abbreviations):
            last += 1  # that full stop belongs to the word before it
    return _of_signs(data, last, stop, marks, ended, more)


@inline
def _of_signs(data, at, stop, marks, ended, more) -> tuple[Any, Any]:
    """The same for what was cut off a piece: single characters and runs of dots."""
    while at < stop:
        dots = _num_dots(data, at, stop)
        if dots > 1:
            at += dots
            continue
        mark, size = mark_at(data, at, stop, marks)
        kind = END if mark & END else (_OTHER if mark & PUNCT == 0 else 0)
        ended, more = _step(kind, ended, more)
        at += size
    return ended, more


@inline
def _of_core(data, first, last, marks, abbreviations, ended, more) -> tuple[Any, Any, Any]:
    """The same for what is left of a piece, cut at full stops and ellipses inside; and where its last word begins."""
    at, word, before, checked = first, first, np.int64(0), False
    while at < last:
        mark, size = mark_at(data, at, last, marks)
        cut = _inner_cut(data, at, last, marks, before) if at > first else 0
        if cut and not checked:
            checked = True
            if is_address(data, first, last):
                break
        if cut == 0:
            before = mark
            at += size
            continue
        ended, more = _step(_token(data, word, at, marks), ended, more)
        if data[at] == _DOT and cut == 1 and not ends_in_abbreviation(data, word, at, abbreviations):
            ended = True
        at += cut
        word, before = at, np.int64(0)
    ended, more = _step(_token(data, word, last, marks), ended, more)
    return ended, more, word


@inline
def _inner_cut(data, at, last, marks, before) -> Any:
    """How many bytes at `at` are a token inside a word: an ellipsis, or a full stop between a small letter and a capital."""
    if data[at] == _ELLIPSIS[0]:
        return 3 if at + 3 <= last and data[at + 1] == _ELLIPSIS[1] and data[at + 2] == _ELLIPSIS[2] else 0
    dots = _num_dots(data, at, last)
    if dots != 1:
        return dots
    if at + 1 == last or before & (SMALL | QUOTE) == 0:
        return 0
    return 1 if mark_at(data, at + 1, last, marks)[0] & (LARGE | QUOTE) else 0


@inline
def _token(data, start, stop, marks) -> Any:
    """END, _OTHER, or 0 for punctuation and nothing at all."""
    at = start
    while at < stop:
        mark, size = mark_at(data, at, stop, marks)
        if at == start and mark & END and at + size == stop:
            return END
        if mark & PUNCT == 0:
            return _OTHER
        at += size
    return 0


@inline
def _num_dots(data, at, stop) -> Any:
    """How many dots there are from `at` on."""
    end = at
    while end < stop and data[end] == _DOT:
        end += 1
    return end - at


@inline
def _core(data, first, last, marks, abbreviations) -> tuple[Any, Any]:
    """What is left of a piece when marks are cut off its front and back, in turn, until it is an exception or has none."""
    while first < last and not is_exception(data, first, last, abbreviations):
        front = _front(data, first, last, marks)
        if front and is_exception(data, first + front, last, abbreviations):
            return first + front, last
        back = _back(data, first + front, last, marks)
        if back and is_exception(data, first, last - back, abbreviations):
            return first, last - back
        if front + back == 0:
            break
        first, last = first + front, last - back
    return first, last


@inline
def _front(data, first, last, marks) -> Any:
    """Bytes of what is cut off the front."""
    if data[first] == _DOT:
        dots = _num_dots(data, first, last)
        return dots if dots > 1 else 0
    if data[first] == _PLUS:
        return 0 if first + 1 < last and is_digit(data[first + 1]) else 1
    mark, size = mark_at(data, first, last, marks)
    return size if mark & FRONT else 0


@inline
def _back(data, first, last, marks) -> Any:
    """Bytes of what is cut off the back: dots, 's, or one mark."""
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
    """Bytes of the dots that are cut off the back: two or more, or a full stop after what may stand before one."""
    at = last - 1
    while at > first and data[at - 1] == _DOT:
        at -= 1
    if at < last - 1:
        return last - at
    if at == first:
        return 0
    mark, size = mark_before(data, at, first, marks)
    if mark & BEFORE_DOT or (at - first >= 3 and data[at - 3] == 0xC2 and data[at - 2] == 0xB0 and _is_degree(data[at - 1])):
        return 1
    return 1 if mark & LARGE and at - size > first and mark_before(data, at - size, first, marks)[0] & LARGE else 0


@inline
def _is_degree(byte) -> Any:
    """Whether a letter names degrees: C, F or K."""
    return byte | 0x20 == 0x63 or byte | 0x20 == 0x66 or byte | 0x20 == 0x6B
