"""Counts the sentences of a line, like spaCy's English tokenizer with its rule-based sentencizer.

    lines  ->  chunks between white space that hold a sentence end, such as . ! ? in any script
           ->  the words of these chunks (`english_words.py`): END, OTHER or punctuation
           ->  a new sentence at each OTHER after an END

Other chunks are not cut: one of them begins a sentence where it holds more than punctuation. Nor
are chunks that end in a full stop behind letters, unless it makes an abbreviation. Two or more dots
are punctuation; so is "…". The cost is linear.
"""

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import HIGHS, eight_times, find_any
from datapipe.kernels.hashing import FNV_BASIS, fnv_step, hash_bytes, mix64
from datapipe.kernels.text.contractions import Wholes
from datapipe.kernels.text.english_words import find_english_words, slot_of_hash, wholes_table
from datapipe.kernels.text.marks import END, LARGE, PUNCT, SMALL, WHITE, mark_at, mark_before, mark_table, white_stop
from datapipe.kernels.text.unicode_classes import OTHER
from datapipe.kernels.text.words import SpansOut, Words, first_spans, room_for_spans
from datapipe.kernels.types import Int32s, Int64s, Int64sOut, UInt8s, UInt16s

_OTHER, _UNKNOWN = -1, -2
_DOT, _SPACE, _QUOTE = (ord(sign) for sign in '. "')
_LONGEST_ABBREVIATION = 8  # Letters before the full stop, at most
_SIGNS = eight_times(b".!?")
"""Bytes that may belong to a sentence end, as all bytes that are not ASCII."""
_IS_WHITE = np.zeros(256, np.uint8)
_IS_WHITE[[9, 10, 11, 12, 13, 28, 29, 30, 31, 32]] = 1


def count_sentences(starts: np.ndarray, lengths: np.ndarray, wanted: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Sentences of every line that is `wanted` (num_lines,) bool, 0 for other lines: (num_lines,) int64."""
    lines = starts, np.where(wanted, lengths, np.int32(0)), data, mark_table()
    ends, chunks = find_chunks(*lines)
    counts = np.zeros(len(starts), np.int64)
    sum_sentences(*lines, ends, chunks, find_english_words(chunks, data), counts)
    return counts


def find_chunks(starts: np.ndarray, lengths: np.ndarray, data: np.ndarray, marks: np.ndarray) -> tuple[np.ndarray, Words]:
    """The sentence ends of lines, and the chunks that must be cut; see `find_ends`."""
    most = int(lengths.sum()) // 2 + len(lengths) + 1
    ends, out = np.empty(most, np.int64), room_for_spans(0, most)
    num_chunks = find_ends(starts, lengths, data, marks, wholes_table(), ends, out)
    return ends, first_spans(Words, num_chunks, out._replace(doc_offsets=np.arange(num_chunks + 1)))


@kernel
def find_ends(
    starts: Int64s,
    lengths: Int32s,
    data: UInt8s,
    marks: UInt16s,
    wholes: Wholes,  # `english_words.wholes_table`
    # -2 - n where the end may be a part of the chunk number n, else the offset of a full stop that
    # is a word; -1 after the last. Room for an end in two bytes, and one more for each line.
    ends: Int64sOut,
    # the chunks that must be cut, as if they were words; the same room. `doc_offsets` is not written.
    out: SpansOut,
) -> int:
    """Finds the sentence ends of lines, in text order; returns the number of chunks."""
    keys, sieve = wholes.keys, wholes.sieve
    num_ends = num_chunks = np.int64(0)
    for line in range(len(starts)):
        offset, stop = starts[line], starts[line] + lengths[line]
        while offset < stop:
            first, end = _next_end(data, offset, stop, marks)
            if end == stop:
                break
            plain = _plain_end(data, first, end, stop, marks, keys, sieve)
            if plain != _UNKNOWN:
                offset = end + 1
                ends[num_ends] = end
                num_ends += plain == END
                continue
            offset = _chunk_stop(data, end, stop, marks)
            out.starts[num_chunks], out.lengths[num_chunks] = first, offset - first
            out.hashes[num_chunks], out.chars[num_chunks] = hash_bytes(data, first, offset), offset - first
            out.flags[num_chunks] = OTHER
            num_chunks += 1
            ends[num_ends] = -1 - num_chunks
            num_ends += 1
    ends[num_ends] = -1
    return int(num_chunks)


@kernel
def sum_sentences(
    starts: Int64s,
    lengths: Int32s,
    data: UInt8s,
    marks: UInt16s,
    ends: Int64s,
    chunks: Words,
    words: Words,
    out: Int64sOut,
) -> None:
    """Sentences of lines, `out` (num_lines,), by `find_ends` and the words of chunks."""
    chunk_starts, chunk_lengths = chunks.starts, chunks.lengths
    word_offsets, word_starts, word_lengths = words.doc_offsets, words.starts, words.lengths
    number = np.int64(0)
    for line in range(len(starts)):
        stop = starts[line] + lengths[line]
        offset = white_stop(data, starts[line], stop, marks)
        count, ended = np.int64(offset < stop), False
        while offset < stop:
            chunk = -2 - ends[number]
            first = stop if chunk == -1 else chunk_starts[chunk] if chunk >= 0 else ends[number]
            if ended and _opens(data, offset, min(first, stop), stop, marks):
                count, ended = count + 1, False
            if first >= stop:
                break
            number += 1
            if chunk < 0:
                offset, ended = first + 1, True
                continue
            offset = first + chunk_lengths[chunk]
            for word in range(word_offsets[chunk], word_offsets[chunk + 1]):
                start, size = word_starts[word], word_lengths[word]
                kind = _kind(data, start, start + size, marks)
                if kind == _OTHER and ended:
                    count, ended = count + 1, False
                ended = ended or kind == END or (size == 2 and _is_degree_stop(data, first, start))
        out[line] = count


@inline
def _next_end(data, offset, stop, marks) -> tuple[Any, Any]:
    """Start of the next chunk with a character that may end a sentence, and that character's offset; `stop` for none."""
    chunk = offset
    while offset < stop:
        offset = find_any(data, offset, stop, _SIGNS, HIGHS)
        if offset == stop:
            break
        mark, size = mark_at(data, offset, stop, marks)
        if mark & END and not _is_inner(data, offset, stop):
            first = offset
            while first > chunk and not _IS_WHITE[data[first - 1]]:
                first -= 1
            return first, offset
        offset += size
        chunk = offset if mark & WHITE else chunk
    return offset, offset


@inline
def _is_inner(data, offset, stop) -> Any:
    """Whether the mark at `offset` is a full stop before a small letter or a digit, which is never a word."""
    following = data[offset + 1] if offset + 1 < stop else np.uint8(0)
    return data[offset] == _DOT and (0x61 <= following <= 0x7A or 0x30 <= following <= 0x39)


@inline
def _plain_end(data, chunk, end, stop, marks, keys, sieve) -> Any:
    """Whether one of . ! ? at `end` is a word: END or _OTHER where it ends a chunk of letters, but for a quote; _UNKNOWN where
    the chunk must be cut. The letters are the whole chunk, or at least its last eight bytes. The last is small."""
    after = end + 1 + (end + 1 < stop and data[end + 1] == _QUOTE)
    if data[end] >= 0x80 or (after < stop and not _IS_WHITE[data[after]]):
        return _UNKNOWN
    first = end
    while first > chunk and end - first < _LONGEST_ABBREVIATION:
        byte, size = data[first - 1], np.int64(1)
        is_letter = 0x61 <= byte | 0x20 <= 0x7A and (first < end or byte > 0x60)
        if byte >= 0x80:
            mark, size = mark_before(data, first, chunk, marks)
            is_letter = mark & (SMALL | LARGE if first < end else SMALL) != 0
        if not is_letter:
            return _UNKNOWN
        first -= size
    hashed = FNV_BASIS
    for offset in range(first, end):
        hashed = fnv_step(hashed, data[offset])
    if slot_of_hash(keys, sieve, mix64(fnv_step(hashed, data[end]))) >= 0:
        return _OTHER
    return END if slot_of_hash(keys, sieve, mix64(hashed)) < 0 else _UNKNOWN  # a contraction: "itd." is it d.


@inline
def _chunk_stop(data, offset, stop, marks) -> Any:
    """The next white space from `offset` on, or `stop`."""
    while offset < stop:
        mark, size = mark_at(data, offset, stop, marks)
        if mark & WHITE:
            break
        offset += size
    return offset


@inline
def _opens(data, offset, first, stop, marks) -> Any:
    """Whether a sentence begins in [offset, first), behind an end: at more than punctuation, or at
    white space, which is a token, that is not one space and not at the end of the line."""
    while offset < first:
        mark, size = mark_at(data, offset, first, marks)
        if mark & WHITE:
            after = white_stop(data, offset, first, marks)
            if after < stop and (after > offset + 1 or data[offset] != _SPACE):
                return True
            offset = after
        elif mark & PUNCT == 0:
            return True
        else:
            offset += size
    return False


@inline
def _kind(data, start, stop, marks) -> Any:
    """The kind of the word [start, stop): END, _OTHER, or 0 for punctuation."""
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
def _is_degree_stop(data, chunk, word) -> Any:
    """Whether a word is a unit of temperature and its full stop, which spaCy cuts off: "°C.♥"."""
    is_stop = data[word + 1] == _DOT and (data[word] == 0x43 or data[word] == 0x46 or data[word] == 0x4B)
    return is_stop and word - chunk >= 2 and data[word - 2] == 0xC2 and data[word - 1] == 0xB0
