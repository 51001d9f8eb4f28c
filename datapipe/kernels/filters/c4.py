"""The line rules of C4: which lines stay, what makes a page go, and the text of the lines that stay.

    Lines, bytes  --cut_citations---->  the lines without [12], [edit], [citation needed]   (only where a batch has any)
                  --judge_lines------->  one reason a line: KEPT, or what is wrong with it
                  --count_sentences--->  sentences of the lines that are kept (`kernels/text/sentences.py`)
                  --sum_documents----->  (num_docs, NUM_SUMS)
                  --join_lines-------->  the texts, lines joined by newlines

Phrases are found in one pass that stops at j, k, m, v and { alone, one byte in twenty, and compares around them. Case is ASCII
case. Every pass is linear in the bytes of the lines.

One core of a 2-core AMD EPYC measures 350 MB/s of news of which 86 % is kept, and 650 to 700 MB/s of web text of which 10 %
is; sentences are counted at 800 MB/s of prose. Kept lines are written at 0.9 GB/s one by one and 2.4 GB/s in runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.text.marks import WHITE, mark_at, mark_table, stripped
from datapipe.kernels.text.sentences import count_sentences
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
)

KEPT, LONG_WORD, NO_END_MARK, FEW_WORDS, LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, POLICY = range(8)
"""Reasons, in the order in which they are tried."""

NUM_REASONS = 8
SENTENCES, LONG_LINES, JOINED_BYTES = range(NUM_REASONS, NUM_REASONS + 3)
NUM_SUMS = NUM_REASONS + 3
"""Columns of the sums of a document: its lines by reason, then these."""

_OPEN, _CLOSE, _DOT, _BRACE, _NEWLINE = (ord(sign) for sign in "[].{\n")
_EDIT, _NEEDED, _LOREM, _TERMS, _JAVASCRIPT, _PRIVACY, _COOKIE, _IE_POLICY, _USES, _USE_OF, _USE = (
    np.frombuffer(phrase, np.uint8)
    for phrase in (
        b"[edit]",
        b"[citation needed]",
        b"lorem ipsum",
        b"terms of use",
        b"javascript",
        b"privacy policy",
        b"cookie",
        b" policy",
        b"uses ",
        b"use of ",
        b"use ",
    )
)
_ANCHORS = np.zeros(256, np.uint8)
_ANCHORS[np.frombuffer(b"jJkKmMvV{", np.uint8)] = 1


class Limits(NamedTuple):
    """What lines are compared with, an input of kernels; see `stages/filter/c4_quality.py`."""

    min_words: int
    max_word_chars: int
    words_before_citations: bool
    need_end_mark: bool
    apostrophe_ends_line: bool
    lorem_ipsum: bool
    javascript: bool
    curly_bracket: bool
    policy: bool


class CleanLines(NamedTuple):
    """The lines of `Lines` without citations, an input of kernels.

    Attributes:
        starts: (num_lines,) int64, in `data`.
        lengths: (num_lines,) int32.
        data: bytes, of the batch where no line has a citation.
    """

    starts: Int64s
    lengths: Int32s
    data: UInt8s


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """The lines of a batch as they would be kept.

    Attributes:
        lines: without citations.
        reasons: (num_lines,) uint8.
        sums: (num_docs, NUM_SUMS) int64.
    """

    lines: CleanLines
    reasons: np.ndarray
    sums: np.ndarray


def judge(lines: Lines, data: np.ndarray, limits: Limits, without_citations: bool, long_line_chars: int) -> Judged:
    """Every line with its reason, every document with its sums."""
    clean = clean_lines(lines, data, without_citations)
    reasons = np.empty(len(lines.starts), np.uint8)
    judge_lines(lines, data, clean, mark_table(), limits, reasons)
    sentences = count_sentences(clean.starts, clean.lengths, reasons == KEPT, clean.data)
    sums = np.empty((len(lines.doc_offsets) - 1, NUM_SUMS), np.int64)
    sum_documents(lines.doc_offsets, clean.lengths, lines.chars, reasons, sentences, long_line_chars, sums)
    return Judged(lines=clean, reasons=reasons, sums=sums)


def clean_lines(lines: Lines, data: np.ndarray, without_citations: bool) -> CleanLines:
    """The lines in bytes of their own where citations are taken from them, else where they are in the batch."""
    if without_citations and len(lines.starts):
        begin, end = int(lines.starts[0]), int(lines.starts[-1] + lines.lengths[-1])
        brackets = begin + np.flatnonzero(data[begin:end] == _OPEN)
        sizes = np.empty(len(brackets), np.int64)
        if find_citations(lines, data, brackets, sizes):
            clean = np.empty(end - begin - int(sizes.sum()), np.uint8)
            starts, lengths = np.empty(len(lines.starts), np.int64), np.empty(len(lines.starts), np.int32)
            cut_citations(lines, data, brackets, sizes, starts, lengths, clean)
            return input_record(CleanLines, (starts, lengths, clean))
    return input_record(CleanLines, (lines.starts, lines.lengths, data))


def joined(doc_offsets: np.ndarray, judged: Judged, keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and bytes of the texts of the kept lines; empty where `keep` (num_docs,) bool is false."""
    out = np.empty(int(judged.sums[keep, JOINED_BYTES].sum()), np.uint8)
    out_offsets = np.empty(len(doc_offsets), np.int64)
    kept = (judged.reasons == KEPT).view(np.uint8)
    join_lines(doc_offsets, judged.lines, kept, keep.view(np.uint8), mark_table(), out_offsets, out)
    return out_offsets, out[: out_offsets[-1]]


@kernel
def find_citations(lines: Lines, data: UInt8s, brackets: Int64s, sizes: Int64sOut) -> int:
    """Which brackets begin a citation in a line: fills `sizes` (num_brackets,) with its bytes or 0, and returns how many do.

    Args:
        brackets: (num_brackets,) int64, ascending: every [ of the data.
    """
    starts, lengths = lines.starts, lines.lengths
    count, line = np.int64(0), np.int64(0)
    for number in range(len(brackets)):
        at = brackets[number]
        while line < len(starts) and starts[line] + lengths[line] <= at:
            line += 1
        sizes[number] = 0
        if line < len(starts) and starts[line] <= at:
            sizes[number] = _citation(data, at, starts[line] + lengths[line])
        count += np.int64(sizes[number] > 0)
    return int(count)


@kernel
def cut_citations(
    lines: Lines, data: UInt8s, brackets: Int64s, sizes: Int64s, out_starts: Int64sOut, out_lengths: Int32sOut, out: UInt8sOut
) -> None:
    """All bytes from the first line to the last but those of citations, and where the lines are then; at least one line.

    Args:
        brackets, sizes: of `find_citations`.
        out: uint8, just long enough.
    """
    starts, lengths = lines.starts, lines.lengths
    number, to, first = np.int64(0), np.int64(0), starts[0]
    for line in range(len(starts)):
        out_starts[line] = to + starts[line] - first
        out_lengths[line] = lengths[line]
        while number < len(brackets) and brackets[number] < starts[line] + lengths[line]:
            at, size = brackets[number], sizes[number]
            if size:
                out[to : to + at - first] = data[first:at]
                to += at - first
                first = at + size
                out_lengths[line] -= size
            number += 1
    stop = starts[len(starts) - 1] + lengths[len(starts) - 1]
    out[to : to + stop - first] = data[first:stop]


@inline
def _citation(data, at, stop) -> Any:
    """Bytes of the citation that begins with the bracket at `at`, 0 where there is none."""
    end = at + 1
    while end < stop and 0x30 <= data[end] <= 0x39:
        end += 1
    if end < stop and data[end] == _CLOSE:
        return end + 1 - at
    if _says(data, at, stop, _EDIT, 0):
        return len(_EDIT)
    return len(_NEEDED) if _says(data, at, stop, _NEEDED, 0) else 0


@inline
def _says(data, at, stop, phrase, case) -> Any:
    """Whether `phrase`, in small letters, is at `at`; in any case where `case` is 0x20."""
    if at + len(phrase) > stop:
        return False
    for place in range(len(phrase)):
        byte = data[at + place]
        if byte != phrase[place] and (not 0x41 <= byte <= 0x5A or byte | case != phrase[place]):
            return False
    return True


@kernel
def judge_lines(lines: Lines, data: UInt8s, clean: CleanLines, marks: UInt16s, limits: Limits, out: UInt8sOut) -> None:
    """Fills `out` (num_lines,) with reasons.

    Args:
        lines, data: the lines as they came.
        clean: the lines without citations.
        marks: `marks.mark_table`.
        limits: of the words, and which phrases count.
    """
    most = limits.max_word_chars
    for line in range(len(lines.starts)):
        start, stop = lines.starts[line], lines.starts[line] + lines.lengths[line]
        first, last = clean.starts[line], clean.starts[line] + clean.lengths[line]
        if stop - start > most and _has_long_word(data, start, stop, marks, most):
            out[line] = LONG_WORD
        elif limits.need_end_mark and not _has_end_mark(clean.data, first, last, limits.apostrophe_ends_line):
            out[line] = NO_END_MARK
        elif _is_short(data, start, stop, clean.data, first, last, marks, limits):
            out[line] = FEW_WORDS
        else:
            out[line] = _of_phrases(clean.data, first, last, limits)


@inline
def _has_long_word(data, at, stop, marks, most) -> Any:
    """Whether a word has more than `most` characters."""
    chars = np.int64(0)
    while at < stop and chars <= most:
        mark, size = mark_at(data, at, stop, marks)
        chars = 0 if mark & WHITE else chars + 1
        at += size
    return chars > most


@inline
def _has_end_mark(data, start, stop, apostrophe) -> Any:
    """Whether a line ends in . ? ! " (or ') and not in three dots."""
    if start == stop:
        return False
    byte = data[stop - 1]
    if byte == _DOT:
        return stop - start < 3 or data[stop - 2] != _DOT or data[stop - 3] != _DOT
    return byte == 0x3F or byte == 0x21 or byte == 0x22 or (apostrophe and byte == 0x27)


@inline
def _is_short(data, start, stop, clean, first, last, marks, limits) -> Any:
    """Whether a line has too few words, as it came or without citations."""
    if limits.words_before_citations:
        return not _has_words(data, start, stop, marks, limits.min_words)
    return not _has_words(clean, first, last, marks, limits.min_words)


@inline
def _has_words(data, at, stop, marks, least) -> Any:
    """Whether there are at least so many words; reads no more of the line than it must."""
    count, inside = np.int64(0), False
    while at < stop and count < least:
        mark, size = mark_at(data, at, stop, marks)
        count += np.int64(not inside and mark & WHITE == 0)
        inside = mark & WHITE == 0
        at += size
    return count >= least


@inline
def _of_phrases(data, start, stop, limits) -> Any:
    """The first reason whose phrase is in a line, of those that are checked; KEPT where none is."""
    found = np.int64(0)
    line = data[start:stop]
    for place in range(len(line)):  # a view, since NumPy's negative indices cost a third of the time
        byte = line[place]
        if _ANCHORS[byte]:
            at = start + place
            if byte == _BRACE:
                found |= 1 << CURLY_BRACKET
            elif byte | 0x20 == 0x6D:  # m
                if at - 4 >= start and _says(data, at - 4, stop, _LOREM, 0x20):
                    found |= 1 << LOREM_IPSUM
                elif at - 3 >= start and _says(data, at - 3, stop, _TERMS, 0x20):
                    found |= 1 << POLICY
            elif byte | 0x20 == 0x6A:  # j
                found |= np.int64(_says(data, at, stop, _JAVASCRIPT, 0x20)) << JAVASCRIPT
            elif byte | 0x20 == 0x76:  # v
                found |= np.int64(at - 3 >= start and _says(data, at - 3, stop, _PRIVACY, 0x20)) << POLICY
            else:  # k
                found |= np.int64(at - 3 >= start and _is_cookie(data, at - 3, start, stop)) << POLICY
    found &= _counted_phrases(limits)
    for reason in range(LOREM_IPSUM, NUM_REASONS):
        if (found >> reason) & 1:
            return reason
    return KEPT


@inline
def _counted_phrases(limits) -> Any:
    """A bit for every reason whose phrases count."""
    reasons = np.int64(limits.lorem_ipsum) << LOREM_IPSUM | np.int64(limits.javascript) << JAVASCRIPT
    return reasons | np.int64(limits.curly_bracket) << CURLY_BRACKET | np.int64(limits.policy) << POLICY


@inline
def _is_cookie(data, at, start, stop) -> Any:
    """Whether "cookie" at `at` is part of "cookie policy", "uses cookies", "use of cookies" or "use cookies"."""
    if not _says(data, at, stop, _COOKIE, 0x20):
        return False
    after = at + len(_COOKIE)
    if _says(data, after, stop, _IE_POLICY, 0x20):
        return True
    if after == stop or data[after] | 0x20 != 0x73:  # s
        return False
    if at - 5 >= start and _says(data, at - 5, stop, _USES, 0x20):
        return True
    if at - 7 >= start and _says(data, at - 7, stop, _USE_OF, 0x20):
        return True
    return at - 4 >= start and _says(data, at - 4, stop, _USE, 0x20)


@kernel
def sum_documents(
    doc_offsets: Int64s,
    lengths: Int32s,
    chars: Int32s,
    reasons: UInt8s,
    sentences: Int64s,
    long_line_chars: int,
    out: Int64MatrixOut,
) -> None:
    """Fills `out` (num_docs, NUM_SUMS).

    Args:
        doc_offsets: (num_docs + 1,) int64.
        lengths: (num_lines,) int32, bytes without citations.
        chars: (num_lines,) int32, characters as they came.
        reasons: (num_lines,) uint8.
        sentences: (num_lines,) int64.
        long_line_chars: of what a line has at least to be long.
    """
    for doc in range(len(doc_offsets) - 1):
        out[doc] = 0
        for line in range(doc_offsets[doc], doc_offsets[doc + 1]):
            out[doc, reasons[line]] += 1
            out[doc, SENTENCES] += sentences[line]
            out[doc, LONG_LINES] += np.int64(chars[line] >= long_line_chars)
            if reasons[line] == KEPT:
                out[doc, JOINED_BYTES] += lengths[line] + 1
        out[doc, JOINED_BYTES] -= np.int64(out[doc, KEPT] > 0)


@kernel
def join_lines(
    doc_offsets: Int64s, lines: CleanLines, kept: UInt8s, keep: UInt8s, marks: UInt16s, out_offsets: Int64sOut, out: UInt8sOut
) -> None:
    """The kept lines of the kept documents, joined by newlines, without white space around each text.

    Lines that stand one newline apart in their data are copied at once.

    Args:
        kept: (num_lines,) uint8.
        keep: (num_docs,) uint8.
        out_offsets: (num_docs + 1,) int64, from 0.
        out: uint8, JOINED_BYTES of all kept documents.
    """
    starts, lengths, data = lines
    to = np.int64(0)
    out_offsets[0] = 0
    for doc in range(len(doc_offsets) - 1):
        begin, line, stop = to, doc_offsets[doc], doc_offsets[doc + 1]
        while line < stop and keep[doc]:
            if not kept[line]:
                line += 1
                continue
            first, last = starts[line], starts[line] + lengths[line]
            line += 1
            while line < stop and kept[line] and starts[line] == last + 1 and data[last] == _NEWLINE:
                last = starts[line] + lengths[line]
                line += 1
            if to > begin:
                out[to] = _NEWLINE
                to += 1
            out[to : to + last - first] = data[first:last]
            to += last - first
        first, last = stripped(out, begin, to, marks)
        if first > begin:
            for at in range(last - first):
                out[begin + at] = out[first + at]
        to = begin + last - first
        out_offsets[doc + 1] = to
