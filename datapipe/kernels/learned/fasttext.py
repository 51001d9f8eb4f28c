"""Features of texts by a fastText model, and their mean, exactly as fastText computes them: same rows, same order, float32.

    text  ->  words  ->  rows of the word, of its character n-grams, of runs of words  ->  their mean

A word stands between ASCII white space or NUL, and gets `<` and `>` around it before its n-grams are taken. N-grams and runs of
words are known by a hash alone (FNV-1a over sign-extended bytes) modulo the number of buckets; in a pruned model most buckets
have no row. Even the order of additions is kept, since floats would round differently.

The inner loops avoid branches that the processor cannot predict: the n-grams of short ASCII words are hashed at 16 positions at
once, those with a row are queued without a branch, and the rows of the queue are added in loops whose loads overlap.

`datapipe/stage/models/fasttext.py` makes the arguments; `fasttext_labels.py` computes labels from the means.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.text.unicode_classes import is_continuation
from datapipe.kernels.types import (
    Float32Cube,
    Float32MatrixOut,
    Float32MatrixUnaligned,
    Float32s,
    Int32s,
    Int32sOut,
    Int64s,
    Int64sOut,
    UInt8Matrix,
    UInt8s,
    UInt32s,
    UInt32sOut,
    UInt64sOut,
)

LANES = 16
"""N-grams that begin at this many positions are hashed at once; `spelled` needs as many positions more."""

_LONGEST_GRAM = 8  # longer n-grams: every word is hashed one n-gram at a time
_QUEUE = 2048
_FULL = _QUEUE - LANES * _LONGEST_GRAM - 2
_BASIS, _PRIME, _MASK = 2166136261, 16777619, 0xFFFFFFFF  # FNV-1a
_RUN_PRIME = np.uint64(116049371)
_OPEN, _CLOSE = ord("<"), ord(">")
_LABEL = np.frombuffer(b"__label__", np.uint8)
_END_OF_LINE = np.frombuffer(b"</s>", np.uint8)
_END_OF_LINE_CODE = 3617362777
_HALF, _HIGH_HALF = np.uint64(32), np.uint64(0xFFFFFFFF00000000)

_BYTES, _DENSE = "Array(uint8, 1, 'C', True)", "Array(float32, 2, 'C', True, aligned=False)"


@kernel
def index_words(starts: Int64s, stops: Int64s, data: UInt8s, hashes: UInt32sOut, table: Int32sOut) -> None:
    """Hashes the entries of a dictionary and puts their numbers into an open-addressing table; the last of equal entries
    counts.

    Args:
        starts, stops: (num_entries,) int64, in `data`.
        data: uint8.
        hashes: (num_entries,) uint32.
        table: int32, all -1; its length is a power of two above num_entries.
    """
    for entry in range(len(starts)):
        code = np.int64(_BASIS)
        for offset in range(starts[entry], stops[entry]):
            code = ((code ^ _signed(data[offset])) * _PRIME) & _MASK
        hashes[entry] = code
        table[_slot(data, starts[entry], stops[entry], code, starts, stops, data, hashes, table)] = entry


class Entries(NamedTuple):
    """The entries of a dictionary and their hash table (`index_words`): an input of kernels.

    Attributes:
        starts, stops: (num_entries,) int64, in `data`.
        data: uint8.
        hashes: (num_entries,) uint32.
        table: int32, numbers of entries, -1 where free; a power of two.
    """

    starts: Int64s
    stops: Int64s
    data: UInt8s
    hashes: UInt32s
    table: Int32s


class Features(NamedTuple):
    """The features of a model and their rows: an input of kernels.

    Attributes:
        num_words: entries from this number on are labels.
        end_of_line: the entry of `</s>`, -1 for none. The word is skipped inside a text and added once at its end.
        min_chars, max_chars: of the n-grams of characters.
        run_words: the longest run of words that is a feature.
        num_buckets: 1 or more.
        bucket_rows: (num_buckets,) int32, the row of each bucket; empty where bucket b has row `num_words` + b.
        bucket_bits: a bit for every bucket, lowest first, set where it has a row; empty where all have.
    """

    num_words: int
    end_of_line: int
    min_chars: int
    max_chars: int
    run_words: int
    num_buckets: int
    bucket_rows: Int32s
    bucket_bits: UInt8s


class CodedRows(NamedTuple):
    """Rows of a quantised matrix, an input of kernels: norms times centroids.

    Attributes:
        codes: (num_rows, parts) uint8.
        centroids: (parts, 256, dim of a part) float32.
        norms: (num_rows,) float32.
    """

    codes: UInt8Matrix
    centroids: Float32Cube
    norms: Float32s


class Model(NamedTuple):
    """Dictionary, features and coded rows of a model: an input of kernels. Dense rows are an argument of their own."""

    entries: Entries
    features: Features
    coded: CodedRows


class Embedding(NamedTuple):
    """The means of texts and scratch: an output of kernels.

    Attributes:
        means: (num_docs, dim) float32.
        num_rows: (num_docs,) int64, number of rows added; 0 for a text without words, even where `</s>` has a row.
        spelled: scratch, longer than the longest text by `max_chars` and `LANES`.
        run_hashes: scratch, longer than half the longest text by 2.
    """

    means: Float32MatrixOut
    num_rows: Int64sOut
    spelled: UInt32sOut
    run_hashes: UInt64sOut


def room_for_embedding(num_docs: int, dim: int, longest_bytes: int, max_chars: int) -> Embedding:
    """Room for the means of `num_docs` texts of at most `longest_bytes`."""
    return Embedding(
        means=np.empty((num_docs, dim), np.float32),
        num_rows=np.empty(num_docs, np.int64),
        spelled=np.empty(longest_bytes + 2 + max_chars + LANES, np.uint32),
        run_hashes=np.empty(longest_bytes // 2 + 2, np.uint64),
    )


@kernel
def embed(starts: Int64s, stops: Int64s, data: UInt8s, model: Model, dense: Float32MatrixUnaligned, out: Embedding) -> None:
    """The mean of the rows of each text's features.

    One loop nest above 40 lines: each word passes its state on to the queue, and cut into functions it is slower.

    Args:
        starts, stops: (num_docs,) int64, in `data`.
        data: uint8, any bytes.
        model: its dictionary and features.
        dense: (num_rows, dim) float32, aligned or not; or (0, dim) where the model has coded rows.
        out: the means.
    """
    means, num_rows, spelled, run_hashes = out
    num_words, end_of_line, min_chars, max_chars, run_words, num_buckets, bucket_rows, bucket_bits = model.features
    entry_starts, entry_stops, entry_data, entry_hashes, entry_table = model.entries
    codes, centroids, norms = model.coded
    magic = np.uint64((1 << 32) // num_buckets)
    queue, grams, buckets = np.empty(_QUEUE, np.int64), np.empty(LANES, np.uint32), np.empty((_LONGEST_GRAM, LANES), np.uint32)
    for doc in range(len(starts)):
        mean, offset, queued, added, words, runs = means[doc], starts[doc], 0, 0, 0, 0
        mean[:] = 0
        while offset < stops[doc]:
            length, code, is_ascii = _spell(data, offset, stops[doc], spelled)
            start, offset = offset, offset + max(length - 2, 1)
            if length == 2 or (length == 6 and _starts_with(spelled, _END_OF_LINE)):
                continue
            words += 1
            slot = _slot(data, start, offset, code, entry_starts, entry_stops, entry_data, entry_hashes, entry_table)
            entry = np.int64(entry_table[slot])
            if entry >= num_words or (entry < 0 and length >= 11 and _starts_with(spelled, _LABEL)):
                continue
            run_hashes[runs] = _widened(code)
            runs += 1
            queue[queued] = -1 - entry
            queued += entry >= 0
            first, by_lanes = 0, is_ascii and length <= LANES and max_chars <= _LONGEST_GRAM
            while first < length:
                if queued > _FULL:
                    _add_rows(mean, queue, queued, bucket_rows, num_words, dense, codes, centroids, norms)
                    added, queued = added + queued, 0
                if by_lanes:
                    _hash_lanes(spelled, max_chars, num_buckets, magic, grams, buckets)
                    first, queued = _queue_lanes(buckets, length, min_chars, max_chars, bucket_bits, queue, queued)
                else:
                    first, queued = _queue_grams(
                        spelled, first, length, min_chars, max_chars, num_buckets, magic, bucket_bits, queue, queued
                    )
        if words and end_of_line >= 0:
            queue[queued] = -1 - end_of_line
            queued += 1
        run_hashes[runs] = _widened(_END_OF_LINE_CODE)
        for first in range(runs + 1 if words and run_words > 1 else 0):
            if queued > _FULL:
                _add_rows(mean, queue, queued, bucket_rows, num_words, dense, codes, centroids, norms)
                added, queued = added + queued, 0
            queued = _queue_runs(run_hashes, first, min(first + run_words, runs + 1), num_buckets, bucket_bits, queue, queued)
        _add_rows(mean, queue, queued, bucket_rows, num_words, dense, codes, centroids, norms)
        num_rows[doc] = added + queued
        mean *= np.float32(1.0 / max(added + queued, 1))


@inline
def _signed(byte) -> Any:
    """The byte as a signed char widened to 32 bits, as fastText hashes it."""
    return np.int64(byte) if byte < 128 else np.int64(byte) | 0xFFFFFF00


@inline
def _widened(code) -> Any:
    """A hash as a signed int widened to 64 bits, as fastText combines them."""
    return np.uint64(code) if code < 0x80000000 else np.uint64(code) | _HIGH_HALF


@inline
def _spell(data, start, stop, spelled) -> Any:
    """Writes `<word>` for the word that begins at `start`; returns its length in bytes, its hash, and whether it is ASCII."""
    spelled[0] = _OPEN
    offset, code, all_bytes = start, np.int64(_BASIS), np.int64(0)
    while offset < stop:
        byte = np.int64(data[offset])
        if byte <= 32 and (byte == 32 or byte == 0 or 9 <= byte <= 13):
            break
        byte = _signed(byte)
        spelled[1 + offset - start] = byte
        code = ((code ^ byte) * _PRIME) & _MASK
        all_bytes |= byte
        offset += 1
    spelled[1 + offset - start] = _CLOSE
    return offset - start + 2, code, all_bytes < 128


@inline
def _starts_with(spelled, prefix) -> Any:
    for index in range(len(prefix)):
        if spelled[1 + index] != prefix[index]:
            return False
    return True


@inline
def _slot(data, start, stop, code, starts, stops, entry_data, hashes, table) -> Any:
    """The slot of the word in `table`, or the free slot where it belongs."""
    slot = code & (len(table) - 1)
    while table[slot] >= 0:
        entry = table[slot]
        if hashes[entry] == code and stops[entry] - starts[entry] == stop - start:
            same = 0
            while same < stop - start and data[start + same] == entry_data[starts[entry] + same]:
                same += 1
            if same == stop - start:
                break
        slot = (slot + 1) & (len(table) - 1)
    return slot


@inline
def _bucket(code, num_buckets, magic) -> Any:
    """`code` % `num_buckets` for 32 bits: the quotient by the reciprocal `magic` is right or less by one."""
    quotient = np.uint32((np.uint64(code) * magic) >> _HALF)
    rest = np.uint32(np.uint32(code) - np.uint32(quotient * np.uint32(num_buckets)))
    return min(rest, np.uint32(rest - np.uint32(num_buckets)))


@inline
def _has_row(bucket, bucket_bits) -> Any:
    return np.int64(bucket_bits[bucket >> 3]) >> (bucket & 7) & 1 if len(bucket_bits) else np.int64(1)


@inline
def _hash_lanes(spelled, max_chars, num_buckets, magic, grams, buckets) -> None:
    """The buckets of the n-grams that begin in the first `LANES` positions; n-grams that end behind the word are
    meaningless.
    """
    grams[:] = _BASIS
    for chars in range(max_chars):
        for lane in range(len(grams)):
            grams[lane] = np.uint32((grams[lane] ^ spelled[lane + chars]) * np.uint32(_PRIME))
        for lane in range(len(grams)):  # a length that is no constant: measured to compile to faster code
            buckets[chars, lane] = _bucket(grams[lane], num_buckets, magic)


@inline
def _queue_lanes(buckets, length, min_chars, max_chars, bucket_bits, queue, queued) -> Any:
    """Queues the n-grams of a short ASCII word that have a row, without a branch on that."""
    for first in range(length):
        inside = 0 < first < length - 1
        for chars in range(max(min_chars, 1 if inside else 2), min(max_chars, length - first) + 1):
            bucket = np.int64(buckets[chars - 1, first])
            queue[queued] = bucket
            queued += _has_row(bucket, bucket_bits)
    return length, queued


@inline
def _queue_grams(spelled, first, length, min_chars, max_chars, num_buckets, magic, bucket_bits, queue, queued) -> Any:
    """Queues the n-grams that begin with the character at `first`; returns the start of the next character."""
    code, stop, following = np.int64(_BASIS), first, first
    for chars in range(1, max_chars + 1):
        if stop == length:
            break
        code = ((code ^ np.int64(spelled[stop])) * _PRIME) & _MASK
        stop += 1
        while stop < length and is_continuation(spelled[stop]):
            code = ((code ^ np.int64(spelled[stop])) * _PRIME) & _MASK
            stop += 1
        if chars == 1:
            following = stop
        if chars >= min_chars and (chars > 1 or (first > 0 and stop < length)):
            bucket = np.int64(_bucket(np.uint32(code), num_buckets, magic))
            queue[queued] = bucket
            queued += _has_row(bucket, bucket_bits)
    return (following if max_chars > 0 else length), queued


@inline
def _queue_runs(run_hashes, first, stop, num_buckets, bucket_bits, queue, queued) -> Any:
    """Queues the runs of words that begin with word `first` and end before `stop`."""
    code = run_hashes[first]
    for last in range(first + 1, stop):
        code = code * _RUN_PRIME + run_hashes[last]
        bucket = np.int64(code % np.uint64(num_buckets))
        queue[queued] = bucket
        queued += _has_row(bucket, bucket_bits)
    return queued


@inline
def _add_rows(mean, queue, queued, bucket_rows, num_words, dense, codes, centroids, norms) -> None:
    """Adds the rows of the queue, which holds buckets as b and entries as -1 - e."""
    for index in range(queued):
        bucket = queue[index]
        if bucket < 0:
            queue[index] = -1 - bucket
        else:
            queue[index] = np.int64(bucket_rows[bucket]) if len(bucket_rows) else num_words + bucket
    if len(dense) == 0:
        for index in range(queued):
            _add_coded(mean, queue[index], codes, centroids, norms)
        return
    blocks = len(mean) // LANES * LANES
    for block in range(0, blocks, LANES):
        for index in range(queued):
            for column in range(LANES):
                mean[block + column] += dense[queue[index], block + column]
    for index in range(queued if blocks < len(mean) else 0):
        for column in range(blocks, len(mean)):
            mean[column] += dense[queue[index], column]


@inline
def _add_coded(mean, row, codes, centroids, norms) -> None:
    size = centroids.shape[2]
    for part in range(codes.shape[1]):
        for column in range(part * size, min((part + 1) * size, len(mean))):
            mean[column] += norms[row] * centroids[part, codes[row, part], column - part * size]
