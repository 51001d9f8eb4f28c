"""Words and lines of a batch, found once and shared by every stage that needs them.

    bytes  --upper bound-->  arrays of that size  --one pass-->  start, length, hash, characters and classes of each word

A word is a maximal run of characters other than white space, as `str.split` defines it. A line ends
at a newline and excludes the white space around it. Blank lines are not listed but separate
paragraphs. A byte of no well-formed UTF-8 counts as one character.

Memory: 25 bytes per word and per line, from a cheap upper bound on their number: a document of 100
MB and 17 million words costs 425 MB while its batch lives. The words of kept documents are copied
from those of all, one run of memory per document.
"""

from typing import NamedTuple, TypeVar

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.arrays import copy_into
from datapipe.kernels.hashing import FNV_BASIS, fnv_step, mix64
from datapipe.kernels.text.unicode_classes import SPACE, class_table, decode
from datapipe.kernels.types import (
    Bools,
    Int32s,
    Int32sOut,
    Int64s,
    Int64sOut,
    UInt8s,
    UInt8sOut,
    UInt64s,
    UInt64sOut,
    input_record,
    room_for,
)

_MAX_INT32 = 0x7FFFFFFF
_NEWLINE = 0x0A


class Words(NamedTuple):
    """The words of a batch, an input of kernels. Document i has the words `doc_offsets[i]:doc_offsets[i + 1]`."""

    doc_offsets: Int64s  # (num_docs + 1,)
    starts: Int64s  # (num_words,), the first byte in the batch's data
    lengths: Int32s  # (num_words,), bytes
    hashes: UInt64s  # (num_words,) of the exact bytes
    chars: Int32s  # (num_words,), code points
    flags: UInt8s  # (num_words,), the union of the classes (`unicode_classes`) of the word's characters


class Lines(NamedTuple):
    """The lines of a batch that are not blank, without the white space around them: an input of kernels."""

    doc_offsets: Int64s  # (num_docs + 1,)
    starts: Int64s  # (num_lines,), the first byte in the batch's data
    lengths: Int32s  # (num_lines,), bytes
    hashes: UInt64s  # (num_lines,) of the exact bytes
    chars: Int32s  # (num_lines,), code points
    # (num_lines,), 1 where the line opens a paragraph: the first line of a document, or one after a
    # blank line
    opens: UInt8s


class SpansOut(NamedTuple):
    """Room for `Words` or `Lines`, an output of kernels. Pages that are never written cost no memory."""

    doc_offsets: Int64sOut  # (num_docs + 1,)
    # starts, lengths, hashes, chars: (limit,), like those of `Words`
    starts: Int64sOut
    lengths: Int32sOut
    hashes: UInt64sOut
    chars: Int32sOut
    flags: UInt8sOut  # (limit,), `flags` of words, `opens` of lines


Spans = TypeVar("Spans", Words, Lines)


def find_words(offsets: np.ndarray, data: np.ndarray) -> Words:
    out = room_for_spans(len(offsets), most_words(offsets, data))
    return first_spans(Words, split_words(offsets, data, class_table(), out), out)


def find_lines(offsets: np.ndarray, data: np.ndarray, newlines: int = 1) -> Lines:
    """The lines, or with `newlines` 2 the paragraphs, of every document that are not blank, without
    the white space around them. A line of white space alone is not empty, and ends no paragraph."""
    out = room_for_spans(len(offsets), most_lines(offsets, data))
    return first_spans(Lines, split_lines(offsets, data, class_table(), newlines, out), out)


def room_for_spans(num_offsets: int, limit: int) -> SpansOut:
    """Room for at most `limit` words or lines of `num_offsets` - 1 documents."""
    return room_for(SpansOut, limit)._replace(doc_offsets=np.empty(num_offsets, np.int64))


def first_spans(kind: type[Spans], num_spans: int, out: SpansOut) -> Spans:
    """The first `num_spans` words or lines that a kernel wrote to `out`."""
    return input_record(kind, (out.doc_offsets, *(column[:num_spans] for column in out[1:])))


@kernel
def most_words(offsets: Int64s, data: UInt8s) -> int:
    """An upper bound on the number of words, usually close: a word begins a document or follows
    white space. Of longer white space the first two bytes count, whatever the third byte is."""
    count = np.int64(len(offsets) - 1)
    for offset in range(offsets[0], offsets[len(offsets) - 1] - 1):
        byte, following = data[offset], data[offset + 1]
        space = (byte == 32) | ((byte >= 9) & (byte <= 13)) | ((byte >= 28) & (byte <= 31))
        ends = (following != 32) & ((following < 9) | (following > 13)) & ((following < 28) | (following > 31))
        wide = (byte == 0xC2) & ((following == 0x85) | (following == 0xA0))
        wide |= (byte == 0xE2) & ((following == 0x80) | (following == 0x81))
        wide |= ((byte == 0xE1) & (following == 0x9A)) | ((byte == 0xE3) & (following == 0x80))
        count += np.int64((space & ends) | wide)
    return int(count)


@kernel
def most_lines(offsets: Int64s, data: UInt8s) -> int:
    """An upper bound on the number of lines that are not blank: the newlines, and a last line for every document."""
    count = np.int64(len(offsets) - 1)
    for offset in range(offsets[0], offsets[len(offsets) - 1]):
        count += np.int64(data[offset] == _NEWLINE)
    return int(count)


@kernel
def split_words(offsets: Int64s, data: UInt8s, classes: UInt8s, out: SpansOut) -> int:
    """Fills `out`, which has room for `most_words` words, and returns the number of words.

    One loop nest above 40 lines: cut into functions, it is slower.
    """
    doc_offsets, starts, lengths, hashes, chars, flags = out
    word = np.int64(0)
    doc_offsets[0] = 0
    for doc in range(len(offsets) - 1):
        offset, stop = offsets[doc], offsets[doc + 1]
        start, hashed, union, continued = offset, FNV_BASIS, np.int64(0), np.int64(0)
        while offset < stop:
            byte, size = data[offset], np.int64(1)
            kind = np.int64(classes[byte])
            if byte >= 0x80:
                code, size = decode(data, offset, stop)
                kind = np.int64(classes[code])
                if kind != SPACE:
                    for index in range(offset, offset + size - 1):
                        hashed = fnv_step(hashed, data[index])
                    byte = data[offset + size - 1]
                    continued += size - 1
            if kind != SPACE:
                hashed = fnv_step(hashed, byte)
                union |= kind
                offset += size
                if offset < stop:
                    continue
                size = np.int64(0)
            if offset > start:
                starts[word] = start
                lengths[word] = min(offset - start, _MAX_INT32)
                hashes[word] = mix64(hashed)
                chars[word] = min(offset - start - continued, _MAX_INT32)
                flags[word] = union
                word += 1
            offset += size
            start, hashed, union, continued = offset, FNV_BASIS, np.int64(0), np.int64(0)
        doc_offsets[doc + 1] = word
    return int(word)


@kernel
def split_lines(offsets: Int64s, data: UInt8s, classes: UInt8s, newlines: int, out: SpansOut) -> int:
    """Fills `out`, which has room for `most_lines` lines, and returns the number of lines; arguments as for `split_words`.
    `newlines`: how many newlines in a row end a line: 1, or 2 for paragraphs."""
    doc_offsets, starts, lengths, hashes, chars, opens = out
    line = np.int64(0)
    doc_offsets[0] = 0
    for doc in range(len(offsets) - 1):
        offset, stop, opening = offsets[doc], offsets[doc + 1], np.int64(1)
        while offset < stop:
            start, end, seen, length = offset, offset, np.int64(0), np.int64(0)
            hashed = hash_to_end = FNV_BASIS
            while offset < stop and (
                data[offset] != _NEWLINE or (newlines > 1 and (offset + 1 == stop or data[offset + 1] != _NEWLINE))
            ):
                code, size = decode(data, offset, stop)
                if classes[code] != SPACE:
                    start = start if length else offset
                elif length == 0:
                    offset += size
                    continue
                for index in range(offset, offset + size):
                    hashed = fnv_step(hashed, data[index])
                seen += 1
                offset += size
                if classes[code] != SPACE:
                    end, hash_to_end, length = offset, hashed, seen
            offset += 1
            if length:
                starts[line] = start
                lengths[line] = min(end - start, _MAX_INT32)
                hashes[line] = mix64(hash_to_end)
                chars[line] = min(length, _MAX_INT32)
                opens[line] = opening
                line += 1
            opening = np.int64(length == 0 or newlines > 1)
        doc_offsets[doc + 1] = line
    return int(line)


def selected(spans: Spans, keep: np.ndarray, offsets: np.ndarray, kept_offsets: np.ndarray) -> Spans:
    """The words or lines of documents in `keep` (num_docs,), as of the texts at `kept_offsets`."""
    num_spans = int(np.diff(spans.doc_offsets)[keep].sum())
    out = room_for_spans(len(kept_offsets), num_spans)
    select_spans(Words(*spans), keep, offsets, kept_offsets, out)
    return first_spans(type(spans), num_spans, out)


@kernel
def select_spans(spans: Words, keep: Bools, offsets: Int64s, kept_offsets: Int64s, out: SpansOut) -> None:
    """Fills `out`, which has exactly the room, with the words or lines of the kept documents; see `selected`."""
    doc_offsets, starts, lengths, hashes, chars, flags = spans
    out_doc_offsets, out_starts, out_lengths, out_hashes, out_chars, out_flags = out
    num_copied, kept = np.int64(0), np.int64(0)
    out_doc_offsets[0] = 0
    for doc in range(len(keep)):
        if not keep[doc]:
            continue
        start, stop = doc_offsets[doc], doc_offsets[doc + 1]
        end, moved = num_copied + stop - start, kept_offsets[kept] - offsets[doc]
        for span in range(start, stop):
            out_starts[num_copied + span - start] = starts[span] + moved
        copy_into(out_lengths[num_copied:end], lengths[start:stop])
        copy_into(out_hashes[num_copied:end], hashes[start:stop])
        copy_into(out_chars[num_copied:end], chars[start:stop])
        copy_into(out_flags[num_copied:end], flags[start:stop])
        num_copied, kept = end, kept + 1
        out_doc_offsets[kept] = num_copied
