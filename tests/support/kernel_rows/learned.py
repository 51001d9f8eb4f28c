"""Rows of `datapipe/kernels/learned`: small random models over the texts, and what they learn from the texts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from datapipe.kernels.hashing import num_slots_for
from datapipe.kernels.learned import (
    coordinate_descent,
    fasttext,
    fasttext_labels,
    fasttext_scores,
    fasttext_training,
    linear_scores,
)
from datapipe.kernels.learned.fasttext_labels import SIGMOID, SOFTMAX
from datapipe.kernels.learned.text_features import character_kinds, room_for_counting
from datapipe.kernels.types import input_record
from tests.oracles import fasttext as oracle
from tests.oracles import linear as linear_oracle
from tests.support.kernel_table import Case, Steps, joined, offsets_of, room, row


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


_NUM_LABELS, _DIM = 9, 21


def _means(case: Case) -> list[np.ndarray]:
    """Means of the case's texts, some of them without a row."""
    rng, num_docs = case.generator, len(case.texts)
    return [rng.standard_normal((num_docs, _DIM)).astype(np.float32), rng.integers(0, 3, num_docs)]


def _output(case: Case, *shape: int) -> list[np.ndarray]:
    return [case.generator.standard_normal(shape).astype(np.float32), case.generator.random(_NUM_LABELS).astype(np.float32)]


def _tree(case: Case) -> fasttext_labels.TreeLayer:
    rng, children, free = case.generator, np.full((2, 2 * _NUM_LABELS - 1), -1, np.int32), list(range(_NUM_LABELS))
    for node in range(_NUM_LABELS, 2 * _NUM_LABELS - 1):
        children[:, node] = [free.pop(int(rng.integers(len(free)))) for _ in range(2)]
        free.append(node)
    return input_record(fasttext_labels.TreeLayer, (*_output(case, _NUM_LABELS, _DIM), *children))


def _flat(case: Case, kind: int) -> fasttext_labels.FlatLayer:
    fields = (*_output(case, _DIM, _NUM_LABELS), kind, np.linspace(0, 1, 513).astype(np.float32))
    return input_record(fasttext_labels.FlatLayer, fields)


def _best(scored: list[list[tuple[np.float32, int]]], k: int) -> tuple[None, list[Any]]:
    best = [oracle.best(scores_of_text, k) for scores_of_text in scored]
    return None, [[labels for labels, _ in best], [scores for _, scores in best]]


def _label_outputs(case: Case, k: int) -> list[np.ndarray]:
    return [*room((len(case.texts), k), np.int32), *room((len(case.texts), k), np.float64)]


@row(fasttext_labels.tree_labels, 1, variant="1 best")
@row(fasttext_labels.tree_labels, 4, variant="4 best")
@row(fasttext_labels.tree_labels, 20, variant="20 best")
def tree_labels(case: Case, k: int) -> Steps:
    (means, num_rows), layer = _means(case), _tree(case)
    scratch = fasttext_labels.TreeScratch(*room(_NUM_LABELS + 1, np.int32, np.float32))
    yield [means, num_rows, layer, scratch, *room(k, np.float32)], _label_outputs(case, k)
    top, zero = len(layer.left) - 1, np.float32(0)
    leaves = [oracle.leaves(top, zero, mean, *layer) if any_row else [] for mean, any_row in zip(means, num_rows)]
    yield _best(leaves, k)


@row(fasttext_labels.flat_labels, SOFTMAX, 1, variant="softmax 1 best")
@row(fasttext_labels.flat_labels, SOFTMAX, 4, variant="softmax 4 best")
@row(fasttext_labels.flat_labels, SOFTMAX, 20, variant="softmax 20 best")
@row(fasttext_labels.flat_labels, SIGMOID, 1, variant="sigmoid 1 best")
@row(fasttext_labels.flat_labels, SIGMOID, 4, variant="sigmoid 4 best")
@row(fasttext_labels.flat_labels, SIGMOID, 20, variant="sigmoid 20 best")
def flat_labels(case: Case, kind: int, k: int) -> Steps:
    (means, num_rows), layer = _means(case), _flat(case, kind)
    yield [means, num_rows, layer, *room(_NUM_LABELS, np.float32), *room(k, np.float32)], _label_outputs(case, k)
    scored = []
    for mean, any_row in zip(means, num_rows):
        products = np.array([oracle.dot(column, mean) * norm for column, norm in zip(layer.output.T, layer.norms)])
        chances = oracle.softmax(products) if kind == SOFTMAX else [oracle.sigmoid(each, layer.sigmoids) for each in products]
        scored.append([(oracle.log(float(chance)), label) for label, chance in enumerate(chances)] if any_row else [])
    yield _best(scored, k)


@row(fasttext_scores.tree_scores)
def tree_scores(case: Case) -> Steps:
    (means, num_rows), layer = _means(case), _tree(case)
    yield [means, num_rows, layer, *room(2 * _NUM_LABELS - 1, np.float64)], room((len(means), _NUM_LABELS), np.float32)
    scores = np.zeros((len(means), _NUM_LABELS))
    for doc in np.flatnonzero(num_rows):
        products = [oracle.dot(output, means[doc]) * norm for output, norm in zip(layer.output, layer.norms)]
        found = oracle.chances(len(layer.left) - 1, 1.0, np.array(products), layer.left, layer.right)
        scores[doc, list(found)] = list(found.values())
    yield None, [scores]


@row(fasttext_scores.flat_scores, SOFTMAX, variant="softmax")
@row(fasttext_scores.flat_scores, SIGMOID, variant="sigmoid")
def flat_scores(case: Case, kind: int) -> Steps:
    (means, num_rows), layer = _means(case), _flat(case, kind)
    yield [means, num_rows, layer, *room(_NUM_LABELS, np.float64)], room((len(means), _NUM_LABELS), np.float32)
    scores = np.zeros((len(means), _NUM_LABELS))
    for doc in np.flatnonzero(num_rows):
        products = np.array([oracle.dot(output, means[doc]) * norm for output, norm in zip(layer.output.T, layer.norms)])
        is_softmax = kind == SOFTMAX
        scores[doc] = oracle.softmax_scores(products) if is_softmax else [oracle.logistic(float(each)) for each in products]
    yield None, [scores]


@row(fasttext_training.number_words)
def number_words(case: Case) -> Steps:
    capacity = sum(len(text) // 2 + 1 for text in case.texts)
    vocabulary = fasttext_training.Vocabulary(
        *room((capacity, 2), np.int64),
        *room(capacity, np.uint32, np.int64),
        table=np.zeros(num_slots_for(capacity), np.uint64),
        progress=np.zeros(3, np.int64),
    )
    outputs = [vocabulary, *room(len(case.data) + 1, np.int32), *room(len(case.texts) + 1, np.int64)]
    yield [case.offsets[:-1], case.offsets[1:].copy(), case.data], outputs
    texts, numbers = [oracle.trained_words(text, set()) for text in case.texts], dict[bytes, int]()
    ids = [numbers.setdefault(word, len(numbers)) for text in texts for word in text]
    done = [len(texts), len(ids), len(numbers)]
    counts = [ids.count(number) for number in range(len(numbers))]
    yield None, [[], list(map(oracle.fnv, numbers)), counts, [], done, ids, offsets_of(texts)]


_BUCKETS, _RUN, _CLASSES, _SEED, _TRAINED_DIM = 30, 3, 3, 9, 18


def _vocabulary(case: Case) -> list[bytes]:
    words = dict.fromkeys(word for text in case.texts for word in oracle.trained_words(text, set()) if len(word) < 60)
    return list(words)[:100]


@row(fasttext_training.list_grams, 0, 0, variant="0 to 0 characters")
@row(fasttext_training.list_grams, 1, 3, variant="1 to 3 characters")
@row(fasttext_training.list_grams, 3, 5, variant="3 to 5 characters")
def list_grams(case: Case, least: int, most: int) -> Steps:
    words = _vocabulary(case)
    outputs = [*room(max(map(len, words), default=0) + 3, np.uint32), *room(len(words) + 1, np.int64)]
    size = sum(map(len, words)) * most + 2 * most * len(words)
    yield [*_entry_spans(words), least, most, _BUCKETS], [*outputs, *room(size, np.int32)]
    listed = [oracle.gram_buckets(word, least, most, _BUCKETS) for word in words]
    yield None, [[], offsets_of(listed), [bucket for buckets in listed for bucket in buckets]]


@row(fasttext_training.randomise)
def randomise(case: Case) -> Steps:
    yield [np.uint64(len(case.data))], room((5, 7), np.float32)
    yield None, [oracle.random_rows(len(case.data), 5, 7)]


@row(fasttext_training.train_epoch, SOFTMAX, variant="softmax")
@row(fasttext_training.train_epoch, SIGMOID, variant="one against all")
def train_epoch(case: Case, loss: int) -> Steps:
    rng, words = case.generator, _vocabulary(case)[:40]
    lengths, num_words = rng.integers(0, 8, 12 if words else 0), 1 + len(words)
    ids, offsets = rng.integers(0, max(len(words), 1), lengths.sum()).astype(np.int32), np.cumsum([0, *lengths])
    rows = np.where(rng.random(len(words)) < 0.8, 1 + np.arange(len(words)), -1).astype(np.int32)
    grams, codes = [oracle.gram_buckets(word, 3, 4, _BUCKETS) for word in words], list(map(oracle.fnv, words))
    flat_grams = np.array([bucket for buckets in grams for bucket in buckets], np.int32)
    targets, weights = rng.integers(0, _CLASSES, len(lengths)).astype(np.int32), 0.5 + rng.random(len(lengths))
    order, plan = rng.permutation(len(lengths)), fasttext_training.Plan(_RUN, num_words, _BUCKETS, loss, 0.7, 11, 200)
    records = [
        input_record(fasttext_training.Texts, (offsets, ids, targets, weights, order)),
        input_record(fasttext_training.Words, (np.array(codes, np.uint32), rows, offsets_of(grams), flat_grams)),
    ]
    inputs = oracle.random_rows(_SEED, num_words + _BUCKETS, _TRAINED_DIM)
    outputs = oracle.random_rows(_SEED + 1, _CLASSES, _TRAINED_DIM)
    scratch = fasttext_training.Scratch(
        queue=np.empty(8 * (_RUN + max(map(len, grams), default=0)) + 8, np.int64),
        run_hashes=np.empty(10, np.uint64),
        hidden=np.empty(_TRAINED_DIM, np.float32),
        gradient=np.empty(_TRAINED_DIM, np.float32),
        chances=np.empty(_CLASSES),
    )
    yield [*records, plan], [inputs, outputs, scratch]
    rows_by_text = []
    for doc in order:
        own = ids[offsets[doc] : offsets[doc + 1]].tolist()
        rows_by_text.append([])
        for word in own:
            rows_by_text[-1] += [int(rows[word])] * int(rows[word] >= 0) + [num_words + gram for gram in grams[word]]
        buckets = oracle.run_buckets([*(words[word] for word in own), oracle.END_OF_LINE], _RUN, _BUCKETS)
        rows_by_text[-1] += [0, *(num_words + bucket for bucket in buckets)]
    setting = oracle.Setting(rate=0.7, num_read=11, num_total=200, is_softmax=loss == SOFTMAX)
    trained = inputs.copy(), outputs.copy()
    oracle.read_once(rows_by_text, lengths[order], targets[order], weights[order], setting, *trained)
    yield None, [*trained, [], [], [], [], []]


_WORD_BITS, _CHARACTER_BITS = 7, 9


def _features(case: Case) -> list[dict[int, int]]:
    """Slots and counts of each text, those of words first."""
    return [
        linear_oracle.word_slots(text, _WORD_BITS)
        | {(1 << _WORD_BITS) + slot: count for slot, count in linear_oracle.character_slots(text, _CHARACTER_BITS).items()}
        for text in case.texts
    ]


@row(coordinate_descent.feature_rows)
def feature_rows(case: Case) -> Steps:
    most = 11 * int(case.offsets[-1] - case.offsets[0]) + 1
    out = coordinate_descent.RowsOut(*room(len(case.texts), np.int64), *room(most, np.uint32, np.uint8))
    scratch = room_for_counting(max(_WORD_BITS, _CHARACTER_BITS))
    yield [case.offsets, case.data, character_kinds(), _WORD_BITS, _CHARACTER_BITS, scratch], [out]
    found = _features(case)
    slots, counts = [slot for own in found for slot in own], [count for own in found for count in own.values()]
    yield len(slots), [offsets_of(found)[1:], slots, counts]


@row(coordinate_descent.row_values)
def row_values(case: Case) -> Steps:
    found = _features(case)
    slots = np.array([slot for own in found for slot in own], np.uint32)
    counts = np.array([count for own in found for count in own.values()], np.uint8)
    importances = case.generator.integers(0, 256, (1 << _WORD_BITS) + (1 << _CHARACTER_BITS)).astype(np.uint8)
    inputs = [offsets_of(found)[1:], slots, counts, importances, 1 << _WORD_BITS]
    yield inputs, [*room(len(found), np.float64), *room(len(slots), np.float32)]
    squares, values = list[float](), list[float]()
    for own in found:
        weights = {slot: int(importances[slot]) * count for slot, count in own.items()}
        lengths = [0, 0]
        for slot, weight in weights.items():
            lengths[slot >= 1 << _WORD_BITS] += weight**2
        factors = [1.0 / float(np.sqrt(float(max(length, 1)))) for length in lengths]
        products = [weight * factors[slot >= 1 << _WORD_BITS] for slot, weight in weights.items()]
        scaled = np.array(products, np.float32).tolist()
        values += scaled
        squares.append(list(accumulate((value * value for value in scaled), initial=0.0))[-1])
    yield None, [squares, values]


@row(coordinate_descent.fit_classes, linear_oracle.fit_classes)
@row(coordinate_descent.fit_numbers, linear_oracle.fit_numbers)
def fit(case: Case, by_oracle: Callable[..., tuple[int, list[float], list[float], list[int]]]) -> Steps:
    """Rows with the squares of their lengths, targets and costs, as many as there are texts."""
    rng, passes, tolerance = random.Random(case.seed), 6, 0.05
    rows = linear_oracle.random_rows(rng, len(case.texts))
    squares = [sum(value * value for _, value in own) for own in rows]
    targets, costs = [rng.choice([-1.0, 1.0]) for _ in rows], [rng.choice([0.5, 1.0, 10.0]) for _ in rows]
    slots = np.array([slot for own in rows for slot, _ in own], np.uint32)
    values = np.array([value for own in rows for _, value in own], np.float32)
    out = coordinate_descent.Fit(np.zeros(65), np.zeros(len(rows)), *room(len(rows), np.int64))
    inputs = input_record(coordinate_descent.Rows, (offsets_of(rows)[1:], slots, values, np.array(squares, float)))
    yield [inputs, np.array(targets, float), np.array(costs, float), np.uint64(case.seed), passes, tolerance], [out]
    number, *outputs = by_oracle(rows, squares, targets, costs, case.seed, passes, tolerance)
    yield number, outputs


@row(linear_scores.copy_texts)
def copy_texts(case: Case) -> Steps:
    """The last text first."""
    starts, stops = case.offsets[:-1][::-1].copy(), case.offsets[1:][::-1].copy()
    yield [starts, stops, case.data], room(int(case.offsets[-1] - case.offsets[0]), np.uint8)
    yield None, [joined(case.texts[::-1])]


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
