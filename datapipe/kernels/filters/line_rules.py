"""Removes lines of web pages that are not text: capitals, numbers, counters, single words, and menu phrases in short lines.

    Lines, bytes  --classify_lines--->  a reason per line, its words before and after, and the edited short lines
                  --sum_documents->  (num_docs, NUM_SUMS)
                  --write_texts--->  the texts without those lines, each with its newline; blank lines stay

Texts are copied in runs between changed lines. Case is ASCII case. Every pass is linear.
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import copy_into, starts_with
from datapipe.kernels.text.marks import ALNUM, CAPITAL, DIGIT, WHITE, mark_at, mark_before, mark_table, stripped, white_stop
from datapipe.kernels.text.words import Lines
from datapipe.kernels.types import (
    Int32s,
    Int32sOut,
    Int64MatrixOut,
    Int64s,
    Int64sOut,
    UInt8s,
    UInt8sOut,
    UInt16s,
    input_record,
    room_for,
)

KEPT, SYMBOLS, UPPERCASE, NUMERIC, COUNTER, FEW_WORDS, EMPTIED, EDITED = range(8)
"""Reasons, in the order of the checks. EMPTIED: the line is a phrase and nothing else. EDITED: it stays without its phrase."""

NUM_REASONS = 8
WORDS_BEFORE, WORDS_AFTER = NUM_REASONS, NUM_REASONS + 1
NUM_SUMS = NUM_REASONS + 2
"""Columns of the sums of a document after the first NUM_REASONS, which count its lines by reason."""

_NEWLINE, _DOT = (ord(sign) for sign in "\n.")
_CART, _READ_MORE, _SIGN_IN = (np.frombuffer(phrase, np.uint8) for phrase in (b"items in cart", b"read more", b"sign-in"))


class Limits(NamedTuple):
    """Thresholds and switches of the line rules, an input of kernels; see `stages/filter/line_rules.py`."""

    max_uppercase: float
    max_numeric: float
    counters: bool
    min_words: int
    max_phrase_words: int
    loose_dots: bool


class LineEdits(NamedTuple):
    """The edits of the lines of a batch, (num_lines,) each, an input of kernels."""

    reasons: UInt8s
    # rest_starts, rest_lengths: where the rest of an edited line starts in `rests`, and its bytes
    rest_starts: Int64s
    rest_lengths: Int32s
    rests: UInt8s


class LineEditsOut(NamedTuple):
    reasons: UInt8sOut
    rest_starts: Int64sOut
    rest_lengths: Int32sOut
    rests: UInt8sOut


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifiedLines:
    """The edits of the lines of a batch, and the sums of its documents, (num_docs, NUM_SUMS) int64."""

    edits: LineEdits
    sums: np.ndarray


def symbol_table(symbols: str) -> np.ndarray:
    """(256,) uint8: 1 for the bytes of `symbols`, 2 for a space where there are symbols."""
    table = np.zeros(256, np.uint8)
    table[np.frombuffer(symbols.encode(), np.uint8)] = 1
    table[ord(" ")] = 2 * bool(symbols)
    return table


def classify(lines: Lines, data: np.ndarray, limits: Limits, symbols: str) -> ClassifiedLines:
    """Every line with its reason, every document with its sums. Lines of `symbols` and spaces alone are removed."""
    num_lines = len(lines.starts)
    before, after = np.empty(num_lines, np.int32), np.empty(num_lines, np.int32)
    out = room_for_edits(lines)
    classify_lines(lines, data, mark_table(), symbol_table(symbols), limits, before, after, out)
    sums = np.empty((len(lines.doc_offsets) - 1, NUM_SUMS), np.int64)
    sum_documents(lines.doc_offsets, out.reasons, before, after, sums)
    return ClassifiedLines(edits=input_record(LineEdits, out), sums=sums)


def room_for_edits(lines: Lines) -> LineEditsOut:
    return room_for(LineEditsOut, len(lines.starts))._replace(rests=np.empty(int(lines.lengths.sum()), np.uint8))


def written(
    offsets: np.ndarray, data: np.ndarray, lines: Lines, edits: LineEdits, keep: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and bytes of the texts without the removed lines; empty where `keep` (num_docs,) bool is false."""
    out = np.empty(int(np.diff(offsets)[keep].sum()), np.uint8)
    out_offsets = np.empty(len(offsets), np.int64)
    write_texts(offsets, data, lines, edits, keep.view(np.uint8), mark_table(), out_offsets, out)
    return out_offsets, out[: out_offsets[-1]]


@kernel
def classify_lines(
    lines: Lines,
    data: UInt8s,
    marks: UInt16s,
    symbols: UInt8s,
    limits: Limits,
    before: Int32sOut,
    after: Int32sOut,
    out: LineEditsOut,
) -> None:
    """Fills `out`, and the words that begin with a letter or a digit, before and after, (num_lines,) each."""
    starts, lengths, chars, reasons = lines.starts, lines.lengths, lines.chars, out.reasons
    used = np.int64(0)
    for line in range(len(starts)):
        start, stop = starts[line], starts[line] + lengths[line]
        words, counted, capitals, digits = _measure(data, start, stop, marks)
        before[line] = after[line] = counted
        out.rest_starts[line], out.rest_lengths[line] = used, 0
        if symbols[data[start]] == 1 and _is_symbols(data, start, stop, symbols):
            reasons[line] = SYMBOLS
        elif capitals / chars[line] > limits.max_uppercase:
            reasons[line] = UPPERCASE
        elif digits / chars[line] > limits.max_numeric:
            reasons[line] = NUMERIC
        elif limits.counters and digits and is_counter(data, start, stop, marks):
            reasons[line] = COUNTER
        elif words < limits.min_words:
            reasons[line] = FEW_WORDS
        else:
            reasons[line] = KEPT
            if words <= limits.max_phrase_words and _has_phrase(data, start, stop, marks, limits.loose_dots):
                rest = _edit(data, start, stop, marks, limits.loose_dots, out.rests, used)
                reasons[line], out.rest_lengths[line] = EDITED if rest else EMPTIED, rest
                used += rest
                after[line] = _measure(out.rests, used - rest, used, marks)[1]
        if KEPT < reasons[line] < EDITED:
            after[line] = 0


@inline
def _measure(data, offset, stop, marks) -> tuple[Any, Any, Any, Any]:
    """Numbers of words, of words that begin with a letter or a digit, of capitals and of digits."""
    words, counted, capitals, digits = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    white = np.int64(1)
    while offset < stop:
        mark, size = mark_at(data, offset, stop, marks)
        inside = 1 - (mark & WHITE) // WHITE
        words += white & inside
        counted += white & inside & (mark // ALNUM)
        capitals += (mark // CAPITAL) & 1
        digits += (mark // DIGIT) & 1
        white = 1 - inside
        offset += size
    return words, counted, capitals, digits


@inline
def _is_symbols(data, offset, stop, symbols) -> Any:
    while offset < stop and symbols[data[offset]]:
        offset += 1
    return offset == stop


@inline
def _has_phrase(data, start, stop, marks, loose) -> Any:
    """Whether a line has one of the phrases at a position where it counts."""
    if starts_with(data, start, stop, _SIGN_IN, 0x20) or _read_more(data, start, stop, marks, loose) < stop:
        return True
    line = data[start:stop]
    for index in range(len(line)):
        if line[index] | 0x20 == _CART[0] and starts_with(data, start + index, stop, _CART, 0x20):
            return True
    return False


@inline
def _read_more(data, start, stop, marks, loose) -> Any:
    """The start of a "read more..." that ends a line, `stop` where none does; `loose`: any three characters instead of dots."""
    offset = stop
    for _ in range(3):
        if offset == start or (not loose and data[offset - 1] != _DOT):
            return stop
        offset -= mark_before(data, offset, start, marks)[1]
    offset -= len(_READ_MORE)
    return offset if offset >= start and starts_with(data, offset, stop, _READ_MORE, 0x20) else stop


@inline
def _without_white(data, offset, start, marks) -> Any:
    """`offset`, or the start of the character before it where that is white space."""
    if offset > start:
        mark, size = mark_before(data, offset, start, marks)
        if mark & WHITE:
            return offset - size
    return offset


@inline
def _edit(data, start, stop, marks, loose, out, used) -> Any:
    """Writes a line without phrases, and a white space character beside each, to `out[used:]`;
    returns the bytes written, 0 where only white space is left."""
    out_stop, offset, clear = used, start, start
    while offset < stop:
        if not starts_with(data, offset, stop, _CART, 0x20):
            out[out_stop] = data[offset]
            out_stop, offset = out_stop + 1, offset + 1
            continue
        out_stop -= offset - _without_white(data, offset, clear, marks)
        offset = clear = offset + len(_CART)
    more = _read_more(out, used, out_stop, marks, loose)
    if more < out_stop:
        out_stop = _without_white(out, more, used, marks)
    if starts_with(out, used, out_stop, _SIGN_IN, 0x20):
        first = used + len(_SIGN_IN)
        if first < out_stop:
            mark, size = mark_at(out, first, out_stop, marks)
            first += size if mark & WHITE else 0
        for index in range(out_stop - first):
            out[used + index] = out[first + index]
        out_stop = used + out_stop - first
    first, last = stripped(out, used, out_stop, marks)
    return out_stop - used if last > first else 0


@kernel
def sum_documents(doc_offsets: Int64s, reasons: UInt8s, before: Int32s, after: Int32s, out: Int64MatrixOut) -> None:
    """Fills `out` (num_docs, NUM_SUMS) from what `classify_lines` filled."""
    for doc in range(len(doc_offsets) - 1):
        out[doc] = 0
        for line in range(doc_offsets[doc], doc_offsets[doc + 1]):
            out[doc, reasons[line]] += 1
            out[doc, WORDS_BEFORE] += before[line]
            out[doc, WORDS_AFTER] += after[line]


@kernel
def write_texts(
    offsets: Int64s,
    data: UInt8s,
    lines: Lines,
    edits: LineEdits,
    keep: UInt8s,
    marks: UInt16s,
    out_offsets: Int64sOut,
    out: UInt8sOut,
) -> None:
    """Writes documents in `keep` (num_docs,) without removed lines; edited ones are stripped."""
    doc_offsets, starts, lengths, _, _, _ = lines
    reasons, rest_starts, rest_lengths, rests = edits
    num_written = np.int64(0)
    out_offsets[0] = 0
    for doc in range(len(offsets) - 1):
        begin, offset, stop, edited = num_written, offsets[doc], offsets[doc + 1], False
        for line in range(doc_offsets[doc], doc_offsets[doc + 1] if keep[doc] else doc_offsets[doc]):
            if reasons[line] == KEPT:
                continue
            edited = True
            first, last = starts[line], starts[line] + lengths[line]
            if reasons[line] != EDITED:
                first, last = _whole_line(data, offset, first, last, stop)
            copy_into(out[num_written : num_written + first - offset], data[offset:first])
            num_written += first - offset
            out[num_written : num_written + rest_lengths[line]] = rests[
                rest_starts[line] : rest_starts[line] + rest_lengths[line]
            ]
            num_written += rest_lengths[line]
            offset = last
        if keep[doc]:
            copy_into(out[num_written : num_written + stop - offset], data[offset:stop])
            num_written += stop - offset
        if edited:
            first, last = stripped(out, begin, num_written, marks)
            for index in range(last - first if first > begin else 0):
                out[begin + index] = out[first + index]
            num_written = begin + last - first
        out_offsets[doc + 1] = num_written


@inline
def _whole_line(data, offset, first, last, stop) -> tuple[Any, Any]:
    """A line with the white space around it and its newline, from `offset` on at most."""
    while first > offset and data[first - 1] != _NEWLINE:
        first -= 1
    while last < stop and data[last] != _NEWLINE:
        last += 1
    return first, min(last + 1, stop)


COUNTED = (
    "likes",
    "shares",
    "comments",
    "retweets",
    "reposts",
    "quotes",
    "bookmarks",
    "upvotes",
    "downvotes",
    "downloads",
    "views",
    "followers",
)
"""Nouns of counters: "1,234 likes"."""

_UNDERSCORE, _COMMA = (ord(sign) for sign in "_,")
_COUNTED_BYTES = np.frombuffer("".join(f"{word}\0" for word in COUNTED).encode(), np.uint8)


@inline
def is_counter(data, offset, stop, marks) -> Any:
    """Whether a line is a number, with an optional k, m or b, and one of COUNTED: "1,234 likes", "(3.5k views)"."""
    first = offset = _after_signs(data, offset, stop, marks)
    while offset < stop and (
        0x30 <= data[offset] <= 0x39 or (offset > first and (data[offset] == _COMMA or data[offset] == _DOT))
    ):
        offset += 1
    if (
        offset < stop
        and offset > first
        and (data[offset] | 0x20 == 0x6B or data[offset] | 0x20 == 0x6D or data[offset] | 0x20 == 0x62)
    ):
        offset += 1
    word = white_stop(data, offset, stop, marks)
    if offset == first or word == offset:
        return False
    end = word
    while end < stop and 0x61 <= data[end] | 0x20 <= 0x7A:
        end += 1
    return _is_counted(data, word, end) and _after_signs(data, end, stop, marks) == stop


@inline
def _after_signs(data, offset, stop, marks) -> Any:
    while offset < stop:
        mark, size = mark_at(data, offset, stop, marks)
        if mark & ALNUM or data[offset] == _UNDERSCORE:
            break
        offset += size
    return offset


@inline
def _is_counted(data, start, stop) -> Any:
    offset, same = start, True
    for number in range(len(_COUNTED_BYTES)):
        byte = _COUNTED_BYTES[number]
        if byte == 0:
            if same and offset == stop:
                return True
            offset, same = start, True
        else:
            same = same and offset < stop and data[offset] | 0x20 == byte
            offset += 1
    return False
