"""Features of texts by a fastText model, and their mean, exactly as fastText computes them: same rows, same order, float32.

    text  ->  words  ->  rows of the word, of its character n-grams, of runs of words  ->  their mean

A word stands between ASCII white space or NUL, and gets `<` and `>` around it before its n-grams are taken. N-grams and
runs of words are known by a hash (FNV-1a over sign-extended bytes) modulo the number of buckets; in a pruned model most
buckets have no row. The order of sums is kept, since floats would round differently.

The inner loops avoid unpredictable branches: n-grams of short ASCII words are hashed at 16
positions at once and queued without a branch, words are looked up batch by batch, and `row_sums.py`
adds the queue. `stage/models/fasttext.py` makes the arguments.
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import eight_bytes, starts_with
from datapipe.kernels.learned.row_sums import add_coded_rows, add_rows
from datapipe.kernels.text.unicode_classes import is_continuation
from datapipe.kernels.types import (
    Float32Cube,
    Float32MatrixOut,
    Float32MatrixUnaligned,
    Float32s,
    Int32s,
    Int64Matrix,
    Int64s,
    Int64sOut,
    UInt8Matrix,
    UInt8s,
    UInt32sOut,
    UInt64s,
    UInt64sOut,
)

LANES = 16
"""N-grams that begin at this many positions are hashed at once; `spelled` needs as many positions more."""

_LONGEST_GRAM = 8  # longer n-grams: every word is hashed one n-gram at a time
_QUEUE = 2048
BATCH = 64  # words are looked up together
_FULL = _QUEUE - LANES * _LONGEST_GRAM - BATCH - 2
_BASIS, _PRIME, _MASK = 2166136261, 16777619, 0xFFFFFFFF  # FNV-1a
_RUN_PRIME = np.uint64(116049371)
_OPEN, _CLOSE = ord("<"), ord(">")
LABEL = np.frombuffer(b"__label__", np.uint8)
_END_OF_LINE = np.frombuffer(b"</s>", np.uint8)
END_OF_LINE_CODE = 3617362777
HALF, LOW_HALF, _HIGH_HALF = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFF00000000)

_BYTES, _DENSE = "Array(uint8, 1, 'C', True)", "Array(float32, 2, 'C', True, aligned=False)"


@kernel
def index_words(spans: Int64Matrix, data: UInt8s, table: UInt64sOut) -> None:
    """Puts entries, spans (num_entries, 2), into `Entries`; the last of equal ones counts."""
    codes, slots = np.empty(1, np.int64), np.empty(1, np.int64)
    for entry in range(len(spans)):
        code = np.int64(_BASIS)
        for offset in range(spans[entry, 0], spans[entry, 1]):
            code = ((code ^ _signed(data[offset])) * _PRIME) & _MASK
        codes[0] = code
        find_slots(data, spans[entry : entry + 1], codes, 1, spans, data, table, slots)
        table[slots[0]] = np.uint64(code) << HALF | np.uint64(entry + 1)


class Entries(NamedTuple):
    """The entries of a dictionary and their hash table (`index_words`): an input of kernels."""

    spans: Int64Matrix  # (num_entries, 2), start and stop of each entry in `data`
    data: UInt8s
    # a power of two of slots. The high half of a slot is the hash of an entry, the low half its
    # number plus one; 0 marks a free slot.
    table: UInt64s


class Features(NamedTuple):
    """The features of a model and their rows: an input of kernels."""

    num_words: int  # entries from this number on are labels
    # the entry of `</s>`, -1 for none. The word is skipped inside a text and added once at its end.
    end_of_line: int
    # min_chars, max_chars: of the n-grams of characters
    min_chars: int
    max_chars: int
    run_words: int  # the longest run of words that is a feature
    num_buckets: int  # 1 or more
    # (num_buckets,), the row of each bucket; empty where bucket b has row `num_words` + b
    bucket_rows: Int32s
    bucket_bits: UInt8s  # a bit for every bucket, lowest first, set where it has a row; empty where all have


class CodedRows(NamedTuple):
    """Rows of a quantised matrix, an input of kernels: norms times centroids."""

    codes: UInt8Matrix  # (num_rows, parts)
    centroids: Float32Cube  # (parts, 256, dim of a part)
    norms: Float32s  # (num_rows,)


class Model(NamedTuple):
    """Dictionary, features and coded rows of a model: an input of kernels. Dense rows are a separate argument."""

    entries: Entries
    features: Features
    coded: CodedRows


class Embedding(NamedTuple):
    means: Float32MatrixOut  # (num_docs, dim)
    # (num_docs,), number of rows added; 0 for a text without words, even where `</s>` has a row
    num_rows: Int64sOut
    spelled: UInt32sOut  # scratch, longer than the longest text by `max_chars` and `LANES`
    run_hashes: UInt64sOut  # scratch, longer than half the longest text by 2


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
    """The mean of the rows of the features of each text. `dense`: (num_rows, dim), aligned or not;
    or (0, dim) where the model has coded rows.

    One loop nest above 40 lines: each word passes its state on to the queue, and cut into functions it is slower.
    """
    means, num_rows, spelled, run_hashes = out
    num_words, end_of_line, min_chars, max_chars, run_words, num_buckets, bucket_rows, bucket_bits = model.features
    entry_spans, entry_data, entry_table = model.entries
    codes, centroids, norms = model.coded
    magic = np.uint64((1 << 32) // num_buckets)
    queue, grams, buckets = np.empty(_QUEUE, np.int64), np.empty(LANES, np.uint32), np.empty((_LONGEST_GRAM, LANES), np.uint32)
    word_spans, word_codes, slots = np.empty((BATCH, 2), np.int64), np.empty(BATCH, np.int64), np.empty(BATCH, np.int64)
    is_ascii = np.empty(BATCH, np.bool_)
    for doc in range(len(starts)):
        mean, offset, queued, added, words, runs = means[doc], starts[doc], 0, 0, 0, 0
        mean[:] = 0
        while offset < stops[doc]:
            offset, batch = find_words(data, offset, stops[doc], word_spans, word_codes, is_ascii)
            find_slots(data, word_spans, word_codes, batch, entry_spans, entry_data, entry_table, slots)
            words += batch
            for word in range(batch):
                start, stop, code = word_spans[word, 0], word_spans[word, 1], word_codes[word]
                entry = np.int64(entry_table[slots[word]] & LOW_HALF) - 1
                if entry >= num_words or (entry < 0 and starts_with(data, start, stop, LABEL, 0)):
                    continue
                run_hashes[runs] = widened(code)
                runs += 1
                queue[queued] = -1 - entry
                queued += entry >= 0
                if max_chars == 0:
                    continue
                length = spell(data, start, stop, spelled)
                first, by_lanes = 0, is_ascii[word] and length <= LANES and max_chars <= _LONGEST_GRAM
                while first < length:
                    if queued > _FULL:
                        _add_rows(mean, queue, queued, bucket_rows, num_words, dense, codes, centroids, norms)
                        added, queued = added + queued, 0
                    if by_lanes:
                        _hash_lanes(spelled, max_chars, num_buckets, magic, grams, buckets)
                        first, queued = _queue_lanes(buckets, length, min_chars, max_chars, bucket_bits, queue, queued)
                    else:
                        first, queued = queue_grams(
                            spelled, first, length, min_chars, max_chars, num_buckets, magic, bucket_bits, queue, queued
                        )
            if queued > _FULL:
                _add_rows(mean, queue, queued, bucket_rows, num_words, dense, codes, centroids, norms)
                added, queued = added + queued, 0
        if words and end_of_line >= 0:
            queue[queued] = -1 - end_of_line
            queued += 1
        run_hashes[runs] = widened(END_OF_LINE_CODE)
        for first in range(runs + 1 if words and run_words > 1 else 0):
            if queued > _FULL:
                _add_rows(mean, queue, queued, bucket_rows, num_words, dense, codes, centroids, norms)
                added, queued = added + queued, 0
            queued = queue_runs(run_hashes, first, min(first + run_words, runs + 1), num_buckets, bucket_bits, queue, queued)
        _add_rows(mean, queue, queued, bucket_rows, num_words, dense, codes, centroids, norms)
        num_rows[doc] = added + queued
        mean *= np.float32(1.0 / max(added + queued, 1))


@inline
def _signed(byte) -> Any:
    """The byte as a signed char widened to 32 bits, as fastText hashes it."""
    return np.int64(byte) if byte < 128 else np.int64(byte) | 0xFFFFFF00


@inline
def widened(code) -> Any:
    """A hash as a signed int widened to 64 bits, as fastText combines them."""
    return np.uint64(code) if code < 0x80000000 else np.uint64(code) | _HIGH_HALF


@inline
def find_words(data, offset, end, spans, codes, is_ascii) -> Any:
    """Writes span and hash of the next words that are not `</s>`; returns where they end and their
    number. Words are looked up batch by batch, so that accesses to the dictionary overlap."""
    num_words = 0
    while offset < end and num_words < len(codes):
        start, code, all_bytes = offset, np.int64(_BASIS), np.int64(0)
        while offset < end:
            byte = np.int64(data[offset])
            if byte <= 32 and (byte == 32 or byte == 0 or 9 <= byte <= 13):
                break
            byte = _signed(byte)
            code = ((code ^ byte) * _PRIME) & _MASK
            all_bytes |= byte
            offset += 1
        spans[num_words, 0], spans[num_words, 1], codes[num_words], is_ascii[num_words] = start, offset, code, all_bytes < 128
        is_end = offset - start == len(_END_OF_LINE) and starts_with(data, start, offset, _END_OF_LINE, 0)
        num_words += offset > start and not is_end
        offset += 1
    return offset, num_words


@inline
def spell(data, start, stop, spelled) -> Any:
    """Writes `<word>` as signed chars; returns its length in bytes."""
    spelled[0] = _OPEN
    for offset in range(start, stop):
        spelled[1 + offset - start] = _signed(data[offset])
    spelled[1 + stop - start] = _CLOSE
    return stop - start + 2


@inline
def find_slots(data, word_spans, codes, num_words, spans, entry_data, table, slots) -> None:
    """Writes the slot of each word in `table`, or the free slot. A call per word costs 80 ns."""
    for word in range(num_words):
        start, length, slot = word_spans[word, 0], word_spans[word, 1] - word_spans[word, 0], codes[word] & (len(table) - 1)
        while table[slot]:
            entry = np.int64(table[slot] & LOW_HALF) - 1
            if np.int64(table[slot] >> HALF) == codes[word] and spans[entry, 1] - spans[entry, 0] == length:
                entry_start, equal = spans[entry, 0], 0
                if length <= 8 and start + 8 <= len(data) and entry_start + 8 <= len(entry_data):
                    differences = eight_bytes(data, np.uint64(start)) ^ eight_bytes(entry_data, np.uint64(entry_start))
                    equal = length if differences << np.uint64(64 - 8 * length) == 0 else 0
                while equal < length and data[start + equal] == entry_data[entry_start + equal]:
                    equal += 1
                if equal == length:
                    break
            slot = (slot + 1) & (len(table) - 1)
        slots[word] = slot


@inline
def _bucket(code, num_buckets, magic) -> Any:
    """`code` % `num_buckets` for 32 bits: the quotient by the reciprocal `magic` is right or less by one."""
    quotient = np.uint32((np.uint64(code) * magic) >> HALF)
    rest = np.uint32(np.uint32(code) - np.uint32(quotient * np.uint32(num_buckets)))
    return min(rest, np.uint32(rest - np.uint32(num_buckets)))


@inline
def _has_row(bucket, bucket_bits) -> Any:
    return np.int64(bucket_bits[bucket >> 3]) >> (bucket & 7) & 1 if len(bucket_bits) else np.int64(1)


@inline
def _hash_lanes(spelled, max_chars, num_buckets, magic, grams, buckets) -> None:
    """Buckets of n-grams from the first `LANES` positions; meaningless if they pass the word."""
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
def queue_grams(spelled, first, length, min_chars, max_chars, num_buckets, magic, bucket_bits, queue, queued) -> Any:
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
def queue_runs(run_hashes, first, stop, num_buckets, bucket_bits, queue, queued) -> Any:
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
    if len(dense):
        add_rows(mean, queue, queued, dense)
    else:
        add_coded_rows(mean, queue, queued, codes, centroids, norms)
