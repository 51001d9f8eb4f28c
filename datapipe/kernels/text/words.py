"""Words and lines of a batch, found once and shared by every stage that needs them.

    bytes  --upper bound-->  arrays of that size  --one pass-->  start, length, hash, characters and classes of each word

A word is a maximal run of characters other than white space, as `str.split` defines it. A line ends
at a newline and excludes the white space around it, so it goes from one word to another. Blank lines
are not listed but separate paragraphs. A byte of no well-formed UTF-8 counts as one character.

Memory: 25 bytes per word and per line, from a cheap upper bound on their number: a document of 100
MB and 17 million words costs 425 MB while its batch lives.
"""

from typing import Any, NamedTuple, TypeVar

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import BLOCK_BYTES, sum_of_flags
from datapipe.kernels.hashing import FNV_BASIS, fnv_step, hash_bytes, mix64
from datapipe.kernels.text.unicode_classes import SPACE, class_table, decode, is_continuation
from datapipe.kernels.types import (
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
from datapipe.rng import MIX_1

_MAX_INT32 = 0x7FFFFFFF
_NEWLINE, _SPACE = ord("\n"), ord(" ")
_HALF = np.uint64(32)


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
    hashes: UInt64s  # (num_lines,) of the words and of the white space between them
    chars: Int32s  # (num_lines,), code points
    # (num_lines,), 1 where the line opens a paragraph: the first line of a document, or one after a blank line
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


def find_lines(words: Words, data: np.ndarray, newlines: int = 1) -> Lines:
    """The lines, or with `newlines` 2 the paragraphs, of every document that are not blank, without the white space around
    them. A line of white space alone is not empty, and ends no paragraph. `words`, `data`: of the texts."""
    out = room_for_spans(len(words.doc_offsets), len(words.starts))
    return first_spans(Lines, split_lines(words, data, newlines, out), out)


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
    count, flags = np.int64(len(offsets) - 1), np.zeros(BLOCK_BYTES, np.uint8)
    last = offsets[len(offsets) - 1] - 1
    for first in range(offsets[0], last, BLOCK_BYTES):
        size = min(BLOCK_BYTES, last - first)
        current, next_one = data[first : first + size], data[first + 1 : first + 1 + size]
        for i in range(size):
            byte, following = current[i], next_one[i]
            space = (byte == 32) | ((byte >= 9) & (byte <= 13)) | ((byte >= 28) & (byte <= 31))
            ends = (following != 32) & ((following < 9) | (following > 13)) & ((following < 28) | (following > 31))
            wide = (byte == 0xC2) & ((following == 0x85) | (following == 0xA0))
            wide |= (byte == 0xE2) & ((following == 0x80) | (following == 0x81))
            wide |= ((byte == 0xE1) & (following == 0x9A)) | ((byte == 0xE3) & (following == 0x80))
            flags[i] = (space & ends) | wide
        count += sum_of_flags(flags, size)
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
def split_lines(words: Words, data: UInt8s, newlines: int, out: SpansOut) -> int:
    """Fills `out`, which has room for a line a word, and returns the number of lines. Only the white space between words is
    read. `newlines`: how many newlines in a row end a line: 1, or 2 for paragraphs."""
    word_offsets, word_starts, word_lengths, word_hashes, word_chars, _ = words
    doc_offsets, starts, lengths, hashes, chars, opens = out
    line, word = np.int64(0), np.int64(0)
    doc_offsets[0] = 0
    for doc in range(len(word_offsets) - 1):
        stop, opening = word_offsets[doc + 1], True
        while word < stop:
            start, hashed, seen, blanks, num_newlines = word_starts[word], FNV_BASIS, np.int64(0), np.int64(0), np.int64(0)
            while True:
                end = word_starts[word] + word_lengths[word]
                hashed, seen = _joined(hashed, word_hashes[word]), seen + word_chars[word]
                word += 1
                if word == stop:
                    break
                if word_starts[word] - end == 1 and data[end] == _SPACE:
                    seen += 1
                    continue
                blanks, num_newlines, longest = _white_space(data, end, word_starts[word])
                if longest >= newlines:
                    break
                hashed, seen = _joined(hashed, hash_bytes(data, end, word_starts[word])), seen + blanks
            starts[line], lengths[line], hashes[line] = start, min(end - start, _MAX_INT32), mix64(hashed)
            chars[line], opens[line] = min(seen, _MAX_INT32), opening
            opening = newlines > 1 or num_newlines > 1
            line += 1
        doc_offsets[doc + 1] = line
    return int(line)


@inline
def write_word(data, start, stop, classes, word, starts, lengths, hashes, chars, flags) -> Any:
    """Writes the bytes as word number `word`, and returns the next number."""
    offset, num_chars, union, hashed = start, 0, np.uint8(0), FNV_BASIS
    while offset < stop:
        code, size = decode(data, offset, stop)
        union |= classes[code]
        num_chars += 1
        for index in range(offset, offset + size):
            hashed = fnv_step(hashed, data[index])
        offset += size
    starts[word], lengths[word], hashes[word] = start, stop - start, mix64(hashed)
    chars[word], flags[word] = num_chars, union
    return word + 1


@inline
def _joined(hashed, part) -> Any:
    hashed = (hashed ^ part) * MIX_1
    return hashed ^ (hashed >> _HALF)


@inline
def _white_space(data, start, stop) -> tuple[Any, Any, Any]:
    """The characters of some white space, its newlines, and the most newlines in a row."""
    chars, newlines, run, longest = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for offset in range(start, stop):
        is_newline = np.int64(data[offset] == _NEWLINE)
        run = (run + 1) * is_newline
        longest = max(longest, run)
        newlines += is_newline
        chars += np.int64(not is_continuation(data[offset]))
    return chars, newlines, longest
