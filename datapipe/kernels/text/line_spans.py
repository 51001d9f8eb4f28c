"""Words and lines of texts by those of earlier texts, from which documents were dropped or edited since.

    a filter  ─▶  each text is an earlier one                   ─▶  a span of all its words
    an edit   ─▶  lines that the earlier text has as well       ─▶  spans of words; neighbours in both texts are one span
              └▶  other lines                                   ─▶  new spans, whose words have to be found
    spans, words of the earlier texts, words of the new spans   ─▶  words

Lines are compared byte by byte, without the blanks around them. Each is looked for in the 64 lines of the earlier text after
the last one that both have, so the work is linear in the bytes and lines of both texts. Behind more than 64 lines that an edit
has replaced, all others of the document count as new.
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import NO_BITS, copy_into, eight_times, find_any
from datapipe.kernels.text.words import Spans, SpansOut, Words, first_spans, room_for_spans
from datapipe.kernels.types import Bools, BoolsOut, Int64s, Int64sOut, UInt8s, first_rows, input_record, room_for

_NEWLINE, _SPACE, _TAB = (ord(character) for character in "\n \t")
_NEWLINES = eight_times(b"\n")
_MOST_TRIED = 64


class LineSpans(NamedTuple):
    """Whole lines of texts: an input of kernels. Document i has the spans `doc_offsets[i]:doc_offsets[i + 1]`, in order."""

    doc_offsets: Int64s  # (num_docs + 1,)
    # firsts, stops, moved: (num_spans,) each: the words `firsts[i]:stops[i]` of the earlier texts, or of the new spans, and how
    # much further they begin in the texts
    firsts: Int64s
    stops: Int64s
    moved: Int64s
    is_new: Bools  # (num_spans,)


class LineSpansOut(NamedTuple):
    """Room for `LineSpans`, an output of kernels."""

    doc_offsets: Int64sOut
    firsts: Int64sOut
    stops: Int64sOut
    moved: Int64sOut
    is_new: BoolsOut


class EarlierLinesOut(NamedTuple):
    """The lines of one earlier text that are not blank, scratch of kernels: (limit,) each."""

    begins: Int64sOut  # the first byte that is no blank
    ends: Int64sOut  # behind the last one
    # firsts, stops: the words of each line
    firsts: Int64sOut
    stops: Int64sOut


def spans_of_documents(words: Spans, earlier_offsets: np.ndarray, rows: np.ndarray, offsets: np.ndarray) -> LineSpans:
    """The spans of texts of which each is an earlier document, `rows` (num_docs,)."""
    firsts, stops = words.doc_offsets[rows], words.doc_offsets[rows + 1]
    moved, is_new = offsets[:-1] - earlier_offsets[rows], np.zeros(len(rows), np.bool_)
    return input_record(LineSpans, (np.arange(len(rows) + 1), firsts, stops, moved, is_new))


def spans_of_lines(
    words: Words, earlier: tuple[np.ndarray, np.ndarray], rows: np.ndarray, texts: tuple[np.ndarray, np.ndarray]
) -> LineSpansOut:
    """The spans of texts that were made of earlier documents, `rows` (num_docs,). New ones have their first byte in `firsts`,
    and the byte behind the last one in `stops`. Texts are offsets and bytes."""
    out = room_for(LineSpansOut, _most_lines(*texts))._replace(doc_offsets=np.empty(len(rows) + 1, np.int64))
    lines = room_for(EarlierLinesOut, _most_lines(*earlier))
    count = align_lines(words, *earlier, rows, *texts, lines, out)
    return first_rows(out, count)._replace(doc_offsets=out.doc_offsets)


def _most_lines(offsets: np.ndarray, data: np.ndarray) -> int:
    return int(np.count_nonzero(data[offsets[0] : offsets[-1]] == _NEWLINE)) + len(offsets) - 1


def with_new_words(spans: LineSpansOut, new_words: Words, new_offsets: np.ndarray) -> LineSpans:
    """The spans with the words of the new ones, which are texts at `new_offsets` (num_new + 1,)."""
    spans.moved[spans.is_new] = spans.firsts[spans.is_new] - new_offsets[:-1]
    spans.firsts[spans.is_new], spans.stops[spans.is_new] = new_words.doc_offsets[:-1], new_words.doc_offsets[1:]
    return input_record(LineSpans, spans)


def copied(words: Spans, new_words: Spans, spans: LineSpans) -> Spans:
    """The words or lines of the spans, at their offsets in the texts."""
    out = room_for_spans(len(spans.doc_offsets), int((spans.stops - spans.firsts).sum()))
    copy_words(Words(*words), Words(*new_words), spans, out)
    return first_spans(type(words), len(out.starts), out)


@kernel
def align_lines(
    words: Words,
    earlier_offsets: Int64s,
    earlier: UInt8s,
    rows: Int64s,
    offsets: Int64s,
    data: UInt8s,
    lines: EarlierLinesOut,
    out: LineSpansOut,
) -> int:
    """Fills `out`, which has room for a span a line, and returns the number of spans; see `spans_of_lines`."""
    doc_offsets, firsts, stops, moved, is_new = out
    span = np.int64(0)
    doc_offsets[0] = 0
    for doc in range(len(rows)):
        num_lines = _split_earlier(earlier, earlier_offsets, words, rows[doc], lines)
        first_span, earliest, stop = span, np.int64(0), offsets[doc + 1]
        line = _after_blanks(data, offsets[doc], stop, _NEWLINE)
        while line < stop:
            line_stop, number = np.int64(-1), earliest - 1
            while line_stop < 0 and number + 1 < min(num_lines, earliest + _MOST_TRIED):
                number += 1
                line_stop = _stop_if_same(earlier, lines.begins[number], lines.ends[number], data, line, stop)
            has_before = span > first_span
            if line_stop >= 0:
                earliest, shift = number + 1, line - lines.begins[number]
                if has_before and not is_new[span - 1] and moved[span - 1] == shift and stops[span - 1] == lines.firsts[number]:
                    stops[span - 1] = lines.stops[number]
                else:
                    firsts[span], stops[span], moved[span] = lines.firsts[number], lines.stops[number], shift
                    is_new[span] = False
                    span += 1
            else:
                line_stop = find_any(data, line, stop, _NEWLINES, NO_BITS)
                if has_before and is_new[span - 1]:
                    stops[span - 1] = line_stop
                else:
                    firsts[span], stops[span], moved[span], is_new[span] = line, line_stop, 0, True
                    span += 1
            line = _after_blanks(data, line_stop, stop, _NEWLINE)
        doc_offsets[doc + 1] = span
    return int(span)


@inline
def _split_earlier(data, offsets, words, row, lines) -> Any:
    """Fills `lines` with those of the document `row`, and returns their number."""
    word_offsets, word_starts, _, _, _, _ = words
    begins, ends, firsts, stops = lines
    start, stop, word, word_stop, count = offsets[row], offsets[row + 1], word_offsets[row], word_offsets[row + 1], np.int64(0)
    while start < stop:
        newline, first_word = find_any(data, start, stop, _NEWLINES, NO_BITS), word
        while word < word_stop and word_starts[word] < newline:
            word += 1
        begins[count] = _after_blanks(data, start, newline, _SPACE)
        ends[count] = _before_blanks(data, begins[count], newline)
        firsts[count], stops[count] = first_word, word
        count += np.int64(begins[count] < ends[count])
        start = newline + 1
    return count


@inline
def _stop_if_same(earlier, begin, end, data, line, stop) -> Any:
    """Where the line at `line` ends if it is the one at [begin, end) of the earlier text; else -1."""
    line_stop = line + end - begin
    if line_stop > stop or earlier[begin] != data[line] or earlier[end - 1] != data[line_stop - 1]:
        return np.int64(-1)
    behind = _after_blanks(data, line_stop, stop, _SPACE)
    if behind < stop and data[behind] != _NEWLINE:
        return np.int64(-1)
    ours, theirs, differs = data[line:line_stop], earlier[begin:end], np.uint8(0)
    for offset in range(len(ours)):  # all of them, of views: so LLVM compares many at once
        differs |= ours[offset] ^ theirs[offset]
    return np.int64(-1) if differs else line_stop


@inline
def _after_blanks(data, start, stop, sign) -> Any:
    """Behind blanks, and `sign` among them."""
    while start < stop and (data[start] == _SPACE or data[start] == _TAB or data[start] == sign):
        start += 1
    return start


@inline
def _before_blanks(data, start, stop) -> Any:
    while start < stop and (data[stop - 1] == _SPACE or data[stop - 1] == _TAB):
        stop -= 1
    return stop


@kernel
def copy_words(words: Words, new_words: Words, spans: LineSpans, out: SpansOut) -> None:
    """Fills `out`, which has exactly the room, with the words or lines of the spans; see `copied`."""
    span_offsets, firsts, stops, moved, is_new = spans
    out_offsets = out.doc_offsets
    num_copied = np.int64(0)
    out_offsets[0] = 0
    for doc in range(len(span_offsets) - 1):
        for span in range(span_offsets[doc], span_offsets[doc + 1]):
            if is_new[span]:
                _copy(new_words, firsts[span], stops[span], moved[span], num_copied, out)
            else:
                _copy(words, firsts[span], stops[span], moved[span], num_copied, out)
            num_copied += stops[span] - firsts[span]
        out_offsets[doc + 1] = num_copied


@inline
def _copy(words, first, stop, moved, num_copied, out) -> None:
    _, starts, lengths, hashes, chars, flags = words
    _, out_starts, out_lengths, out_hashes, out_chars, out_flags = out
    end = num_copied + stop - first
    for number in range(stop - first):
        out_starts[num_copied + number] = starts[first + number] + moved
    copy_into(out_lengths[num_copied:end], lengths[first:stop])
    copy_into(out_hashes[num_copied:end], hashes[first:stop])
    copy_into(out_chars[num_copied:end], chars[first:stop])
    copy_into(out_flags[num_copied:end], flags[first:stop])
