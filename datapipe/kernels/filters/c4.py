"""The line rules of C4: the lines that stay, the reasons to drop a page, and the text of the lines that stay.

    Lines, bytes  --clean_lines------>  the lines without [12], [edit], [citation needed]
                  --classify_lines------->  one reason per line: KEPT, or why it is dropped
                  --count_sentences--->  sentences of the lines that are kept (`kernels/text/sentences.py`)
                  --sum_documents----->  (num_docs, NUM_SUMS)
                  --join_lines-------->  the texts, lines joined by newlines

One pass over all lines finds all phrases: it stops only at ja, ps, ms, cy, ok and {, one byte in two hundred. Case is ASCII's.
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import (
    BLOCK_BYTES,
    NO_BITS,
    copy_into,
    eight_bytes,
    eight_times,
    find_any,
    first_byte,
    starts_with,
)
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
"""Reasons, in the order of the checks."""

NUM_REASONS = 8
SENTENCES, LONG_LINES, JOINED_BYTES = range(NUM_REASONS, NUM_REASONS + 3)
NUM_SUMS = NUM_REASONS + 3
"""Columns of the sums of a document after the first NUM_REASONS, which count its lines by reason."""

_DOT, _BRACE, _NEWLINE = (ord(sign) for sign in ".{\n")
_LOREM, _TERMS, _JAVASCRIPT, _PRIVACY, _COOKIE, _IE_POLICY, _USES, _USE_OF, _USE = (
    np.frombuffer(phrase, np.uint8)
    for phrase in b"lorem ipsum|terms of use|javascript|privacy policy|cookie| policy|uses |use of |use ".split(b"|")
)
_1, _7 = np.uint64(1), np.uint64(7)
_OPEN, _CLOSE = eight_times(b"["), ord("]")
_EDIT, _NEEDED = (np.frombuffer(phrase, np.uint8) for phrase in (b"[edit]", b"[citation needed]"))


class CleanLines(NamedTuple):
    """The lines of `Lines` without citations, an input of kernels."""

    starts: Int64s  # (num_lines,), in `data`
    lengths: Int32s  # (num_lines,)
    data: UInt8s  # bytes; those of the batch where no line has a citation


def clean_lines(lines: Lines, data: np.ndarray, without_citations: bool) -> CleanLines:
    """The lines without citations: in new bytes where a line has a citation, else in the bytes of the batch."""
    if without_citations and len(lines.starts):
        clean = np.empty(int(lines.starts[-1] + lines.lengths[-1] - lines.starts[0]), np.uint8)
        starts, lengths = np.empty(len(lines.starts), np.int64), np.empty(len(lines.starts), np.int32)
        num_bytes = cut_citations(lines, data, starts, lengths, clean)
        if num_bytes < len(clean):
            return input_record(CleanLines, (starts, lengths, clean[:num_bytes]))
    return input_record(CleanLines, (lines.starts, lines.lengths, data))


@kernel
def cut_citations(lines: Lines, data: UInt8s, out_starts: Int64sOut, out_lengths: Int32sOut, out: UInt8sOut) -> int:
    """Writes the spans of the lines, at least one, without citations. Returns how many bytes are left from the first line to
    the last. Where that is fewer, the bytes are in `out`, which has room for all."""
    starts, lengths = lines.starts, lines.lengths
    num_written, first, stop = np.int64(0), starts[0], starts[0]
    for line in range(len(starts)):
        start, stop = starts[line], starts[line] + lengths[line]
        out_starts[line], out_lengths[line] = num_written + start - first, stop - start
        bracket = find_any(data, start, stop, _OPEN, NO_BITS)
        while bracket < stop:
            size = np.int64(_citation(data, bracket, stop))
            if size:
                copy_into(out[num_written : num_written + bracket - first], data[first:bracket])
                num_written, first = num_written + bracket - first, bracket + size
                out_lengths[line] -= size
            bracket = find_any(data, bracket + 1, stop, _OPEN, NO_BITS)
    if first > starts[0]:
        copy_into(out[num_written : num_written + stop - first], data[first:stop])
    return int(num_written + stop - first)


@inline
def _citation(data, offset, stop) -> Any:
    """Bytes of the citation that begins with the bracket at `offset`; 0 where there is none."""
    end = offset + 1
    while end < stop and 0x30 <= data[end] <= 0x39:
        end += 1
    if end < stop and data[end] == _CLOSE:
        return end + 1 - offset
    if starts_with(data, offset, stop, _EDIT, 0):
        return len(_EDIT)
    return len(_NEEDED) if starts_with(data, offset, stop, _NEEDED, 0) else 0


class Limits(NamedTuple):
    """Thresholds and switches of the line rules, an input of kernels; see `stages/filter/c4_quality.py`."""

    min_words: int
    max_word_chars: int
    words_before_citations: bool
    need_end_mark: bool
    apostrophe_ends_line: bool
    lorem_ipsum: bool
    javascript: bool
    curly_bracket: bool
    policy: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifiedLines:
    """The lines of a batch as they would be kept."""

    lines: CleanLines  # without citations
    reasons: np.ndarray  # (num_lines,) uint8
    sums: np.ndarray  # (num_docs, NUM_SUMS) int64


def classify(lines: Lines, data: np.ndarray, limits: Limits, without_citations: bool, long_line_chars: int) -> ClassifiedLines:
    """Every line with its reason, every document with its sums."""
    clean = clean_lines(lines, data, without_citations)
    reasons = np.empty(len(lines.starts), np.uint8)
    classify_lines(lines, data, clean, mark_table(), limits, reasons)
    sentences = count_sentences(clean.starts, clean.lengths, reasons == KEPT, clean.data)
    sums = np.empty((len(lines.doc_offsets) - 1, NUM_SUMS), np.int64)
    sum_documents(lines.doc_offsets, clean.lengths, lines.chars, reasons, sentences, long_line_chars, sums)
    return ClassifiedLines(lines=clean, reasons=reasons, sums=sums)


def joined(doc_offsets: np.ndarray, classified: ClassifiedLines, keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and bytes of the texts of the kept lines; empty where `keep` (num_docs,) bool is false."""
    out = np.empty(int(classified.sums[keep, JOINED_BYTES].sum()), np.uint8)
    out_offsets = np.empty(len(doc_offsets), np.int64)
    kept = (classified.reasons == KEPT).view(np.uint8)
    join_lines(doc_offsets, classified.lines, kept, keep.view(np.uint8), mark_table(), out_offsets, out)
    return out_offsets, out[: out_offsets[-1]]


@kernel
def classify_lines(lines: Lines, data: UInt8s, clean: CleanLines, marks: UInt16s, limits: Limits, out: UInt8sOut) -> None:
    """Fills `out` (num_lines,) with the reasons of `lines`, which came with `data`; `clean` are the lines without citations."""
    most = limits.max_word_chars
    for line in range(len(lines.starts)):
        start, stop = lines.starts[line], lines.starts[line] + lines.lengths[line]
        first, last = clean.starts[line], clean.starts[line] + clean.lengths[line]
        if _has_long_word(data, start, stop, marks, most):
            out[line] = LONG_WORD
        elif limits.need_end_mark and not _has_end_mark(clean.data, first, last, limits.apostrophe_ends_line):
            out[line] = NO_END_MARK
        elif _is_short(data, start, stop, clean.data, first, last, marks, limits):
            out[line] = FEW_WORDS
        else:
            out[line] = KEPT
    if len(lines.starts):
        _mark_phrases(clean.starts, clean.lengths, clean.data, out)
    counted = _counted_phrases(limits)
    for line in range(len(lines.starts)):
        out[line] = _first_reason(out[line], counted)


@inline
def _has_long_word(data, offset, stop, marks, most) -> Any:
    """Whether a word has more than `most` characters. They are counted from the first `most` + 1 bytes in a row without ASCII
    white space on."""
    last = offset + most
    while last < stop and last >= offset:
        is_white = data[last] < 0x80 and marks[data[last]] & WHITE != 0
        offset = last + 1 if is_white else offset
        last = offset + most if is_white else last - 1
    chars = np.int64(0)
    while last < stop and offset < stop and chars <= most:
        mark, size = mark_at(data, offset, stop, marks)
        chars = 0 if mark & WHITE else chars + 1
        offset += size
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
    """Whether a line has too few words, counted before or after citations are removed."""
    if limits.words_before_citations:
        return not _has_words(data, start, stop, marks, limits.min_words)
    return not _has_words(clean, first, last, marks, limits.min_words)


@inline
def _has_words(data, offset, stop, marks, least) -> Any:
    """Whether there are at least `least` words; reads no further than necessary."""
    count, inside = np.int64(0), False
    while offset < stop and count < least:
        mark, size = mark_at(data, offset, stop, marks)
        count += np.int64(not inside and mark & WHITE == 0)
        inside = mark & WHITE == 0
        offset += size
    return count >= least


@inline
def _mark_phrases(starts, lengths, data, out) -> None:
    """Sets a bit of `out` (num_lines,) for every reason whose phrase is in a line that is kept so far."""
    first, stop, line = starts[0], starts[len(starts) - 1] + lengths[len(starts) - 1], np.int64(0)
    flags = np.zeros(BLOCK_BYTES, np.uint8)
    for begin in range(first, stop, BLOCK_BYTES):
        size = min(BLOCK_BYTES, stop - begin)
        _flag_letters(data[begin : begin + size], data[begin + 1 : begin + 1 + size], flags)
        for index in range(0, size, 8):
            eight = eight_bytes(flags, np.uint64(index))
            while eight:
                offset = begin + index + np.int64(first_byte(eight))
                eight &= eight - _1
                while starts[line] + lengths[line] <= offset:
                    line += 1
                if starts[line] <= offset and (out[line] == KEPT or out[line] >= 1 << LOREM_IPSUM):
                    out[line] |= _phrase_at(data, offset, starts[line], starts[line] + lengths[line])


@inline
def _flag_letters(block, following, flags) -> None:
    """Flags each byte of a block where one of the phrases may have two rare letters. `following`: the bytes one further on, of
    which the data may lack the last."""
    size = len(block)
    for index in range(len(following)):
        byte, after = block[index] | 0x20, following[index] | 0x20
        flag = ((byte == 0x6D) | (byte == 0x70)) & (after == 0x73)  # ms, ps
        flag |= ((byte == 0x6A) & (after == 0x61)) | ((byte == 0x63) & (after == 0x79))  # ja, cy
        flags[index] = flag | ((byte == 0x6F) & (after == 0x6B)) | (byte == _BRACE)  # ok
    flags[len(following) : size] = 1
    flags[size : (size + 7) & ~7] = 0


@inline
def _phrase_at(data, offset, start, stop) -> Any:
    """The bit of the reason whose phrase has its two letters, or its bracket, at `offset`; 0 for none."""
    byte = data[offset] | 0x20
    if byte == 0x6D:  # m
        return np.uint8(offset - 3 >= start and starts_with(data, offset - 3, stop, _TERMS, 0x20)) << POLICY
    if byte == 0x70:  # p
        return np.uint8(offset - 7 >= start and starts_with(data, offset - 7, stop, _LOREM, 0x20)) << LOREM_IPSUM
    if byte == 0x63:  # c
        return np.uint8(offset - 5 >= start and starts_with(data, offset - 5, stop, _PRIVACY, 0x20)) << POLICY
    if byte == 0x6F:  # o
        return np.uint8(offset - 2 >= start and _is_cookie(data, offset - 2, start, stop)) << POLICY
    if byte == 0x6A:  # j
        return np.uint8(starts_with(data, offset, stop, _JAVASCRIPT, 0x20)) << JAVASCRIPT
    return np.uint8(data[offset] == _BRACE) << CURLY_BRACKET


@inline
def _first_reason(marked, counted) -> Any:
    """The first reason of those that are marked and counted; KEPT for none. Other reasons stay."""
    if marked < 1 << LOREM_IPSUM:
        return marked
    for reason in range(LOREM_IPSUM, NUM_REASONS):
        if (marked & counted) >> reason & 1:
            return np.uint8(reason)
    return np.uint8(KEPT)


@inline
def _counted_phrases(limits) -> Any:
    """A bit for every reason whose phrases are checked."""
    reasons = np.int64(limits.lorem_ipsum) << LOREM_IPSUM | np.int64(limits.javascript) << JAVASCRIPT
    return reasons | np.int64(limits.curly_bracket) << CURLY_BRACKET | np.int64(limits.policy) << POLICY


@inline
def _is_cookie(data, offset, start, stop) -> Any:
    """Whether the "cookie" at `offset` is part of "cookie policy", "uses cookies", "use of cookies" or "use cookies"."""
    if not starts_with(data, offset, stop, _COOKIE, 0x20):
        return False
    after = offset + len(_COOKIE)
    if starts_with(data, after, stop, _IE_POLICY, 0x20):
        return True
    if after == stop or data[after] | 0x20 != 0x73:  # s
        return False
    if offset - 5 >= start and starts_with(data, offset - 5, stop, _USES, 0x20):
        return True
    if offset - 7 >= start and starts_with(data, offset - 7, stop, _USE_OF, 0x20):
        return True
    return offset - 4 >= start and starts_with(data, offset - 4, stop, _USE, 0x20)


@kernel
def sum_documents(
    doc_offsets: Int64s,
    # lengths, chars, reasons, sentences: (num_lines,) each: bytes without citations, characters as they came
    lengths: Int32s,
    chars: Int32s,
    reasons: UInt8s,
    sentences: Int64s,
    long_line_chars: int,  # least characters of a long line
    out: Int64MatrixOut,
) -> None:
    """Fills `out` (num_docs, NUM_SUMS)."""
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
    """Joins the kept lines of kept documents by newlines, without white space around texts."""
    starts, lengths, data = lines
    num_written = np.int64(0)
    out_offsets[0] = 0
    for doc in range(len(doc_offsets) - 1):
        begin, line, stop = num_written, doc_offsets[doc], doc_offsets[doc + 1]
        while line < stop and keep[doc]:
            if not kept[line]:
                line += 1
                continue
            first, last = starts[line], starts[line] + lengths[line]
            line += 1
            while line < stop and kept[line] and starts[line] == last + 1 and data[last] == _NEWLINE:
                last = starts[line] + lengths[line]
                line += 1
            if num_written > begin:
                out[num_written] = _NEWLINE
                num_written += 1
            copy_into(out[num_written : num_written + last - first], data[first:last])
            num_written += last - first
        first, last = stripped(out, begin, num_written, marks)
        if first > begin:
            for index in range(last - first):
                out[begin + index] = out[first + index]
        num_written = begin + last - first
        out_offsets[doc + 1] = num_written
