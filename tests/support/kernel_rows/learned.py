"""Rows of `datapipe/kernels/learned`: small random models over the texts."""

from collections.abc import Sequence

import numpy as np

from datapipe.kernels.learned import fasttext, linear_scores
from datapipe.kernels.learned.text_features import character_kinds, room_for_counting
from datapipe.kernels.types import input_record
from tests.oracles import fasttext as oracle
from tests.oracles import linear as linear_oracle
from tests.support.kernel_table import Case, Steps, offsets_of, room, row


def _entry_spans(entries: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = offsets_of(entries)
    return np.stack([offsets[:-1], offsets[1:]], axis=1), np.frombuffer(b"".join(entries) + b"#", np.uint8)


def _entries(case: Case, end_of_line: bool) -> list[bytes]:
    """Some words of the texts, one of them twice, then labels."""
    words = list(dict.fromkeys(word for text in case.texts for word in oracle.words(text)))[:40:2]
    return [*words, *words[:1], *[oracle.END_OF_LINE] * end_of_line, b"the", b"__label__the", b"__label__b"]


@row(fasttext.index_words)
def index_words(case: Case) -> Steps:
    entries = _entries(case, True)
    yield [*_entry_spans(entries)], [np.zeros(128, np.uint64)]
    table = [-1] * 128
    for number, entry in enumerate(entries):
        slot = oracle.fnv(entry) % 128
        while table[slot] >= 0 and entries[table[slot]] != entry:
            slot = (slot + 1) % 128
        table[slot] = number
    yield None, [[(oracle.fnv(entries[number]) << 32 | number + 1) if number >= 0 else 0 for number in table]]


@row(fasttext.embed, variant="pruned")
@row(fasttext.embed, 21, (2, 4), 3, False, True, 1, False, variant="runs of words")
@row(fasttext.embed, 21, (0, 2), 1, False, variant="single characters")
@row(fasttext.embed, 21, (3, 9), 2, True, False, variant="long n-grams")
@row(fasttext.embed, 21, (0, 0), variant="words alone")
@row(fasttext.embed, 7, (0, 0), variant="7 dimensions")
@row(fasttext.embed, 16, variant="16 dimensions")
@row(fasttext.embed, 50, (0, 0), 2, False, variant="50 dimensions")
@row(fasttext.embed, 64, (2, 4), 2, variant="64 dimensions")
@row(fasttext.embed, 151, (2, 4), 2, False, variant="151 dimensions")
def embed(
    case: Case,
    dim: int = 21,
    chars: tuple[int, int] = (2, 4),
    longest_run: int = 1,
    pruned: bool = True,
    dense: bool = True,
    num_buckets: int = 50,
    end_of_line: bool = True,
) -> Steps:
    rng, entries = case.generator, _entries(case, end_of_line)
    num_words, num_rows = len(entries) - 2, len(entries) - 2 + num_buckets
    is_kept = rng.random(num_buckets) < 0.5
    rows = np.where(is_kept, num_words + np.arange(num_buckets), -1).astype(np.int32) if pruned else np.empty(0, np.int32)
    spans, data = _entry_spans(entries)
    table = np.zeros(128, np.uint64)
    fasttext.index_words(spans, data, table)
    numbers = (num_words, entries.index(oracle.END_OF_LINE) if end_of_line else -1, *chars, longest_run, num_buckets)
    matrix = rng.standard_normal((num_rows if dense else 0, dim)).astype(np.float32)
    codes, norms = rng.integers(0, 256, (0 if dense else num_rows, 6)).astype(np.uint8), rng.random(num_rows).astype(np.float32)
    centroids = rng.standard_normal((6, 256, 4)).astype(np.float32)
    model = fasttext.Model(
        entries=input_record(fasttext.Entries, (spans, data, table)),
        features=input_record(fasttext.Features, (*numbers, rows, np.packbits(rows >= 0, bitorder="little"))),
        coded=input_record(fasttext.CodedRows, (codes, centroids, norms)),
    )
    out = fasttext.room_for_embedding(len(case.texts), dim, max(map(len, case.texts), default=0), chars[1])
    yield [case.offsets[:-1], case.offsets[1:].copy(), case.data, model, matrix], [out]
    if not dense:
        matrix = np.concatenate([centroids[part, codes[:, part]] for part in range(6)], axis=1)[:, :dim] * norms[:, None]
    bucket_rows = {bucket: number for bucket, number in enumerate(rows.tolist()) if number >= 0} if pruned else None
    found = [oracle.rows_of(text, entries, num_words, bucket_rows, chars, longest_run, num_buckets) for text in case.texts]
    yield None, [[oracle.mean(matrix[of_text]) for of_text in found], list(map(len, found)), [], []]


@row(linear_scores.weigh_texts, (6, 0), 1, variant="(6, 0) bits")
@row(linear_scores.weigh_texts, (0, 10), 1, variant="(0, 10) bits")
@row(linear_scores.weigh_texts, (8, 8), 3, variant="(8, 8) bits")
def weigh_texts(case: Case, bits: tuple[int, int], num_columns: int) -> Steps:
    num_slots = sum(1 << number for number in bits if number)
    entries = case.generator.integers(-(1 << 31), 1 << 31, (num_slots, num_columns)).astype(np.int32)
    entries = entries & ~0xFF | (entries[:, :1] & 0xFF)
    scales, biases = case.generator.standard_normal((2, num_columns)) * [[1e-6], [1]]
    model = input_record(linear_scores.Weights, (character_kinds(), *bits, entries, scales, biases))
    outputs = room((len(case.texts), num_columns), np.float64)
    yield [case.offsets, case.data, model, room_for_counting(max(bits))], outputs
    numbers = (entries.tolist(), scales.tolist(), biases.tolist())
    yield None, [[linear_oracle.sums(text, bits, *numbers) for text in case.texts]]


@row(linear_scores.sigmoids, 1, variant="1 columns")
@row(linear_scores.sigmoids, 3, variant="3 columns")
def sigmoids(case: Case, num_columns: int) -> Steps:
    sums = case.generator.standard_normal((len(case.texts), num_columns)) * 20
    yield [sums], room((len(sums), max(num_columns, 2)), np.float32)
    if num_columns == 1:
        yield None, [[[linear_oracle.sigmoid(-value), linear_oracle.sigmoid(value)] for [value] in sums.tolist()]]
    rows = [[linear_oracle.sigmoid(value) for value in own] for own in sums.tolist()]
    if num_columns > 1:
        yield None, [[[value / sum(own) for value in own] for own in rows]]
