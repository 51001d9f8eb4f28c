"""Rows of `datapipe/kernels/learned/fasttext_training.py`: small models that learn from the texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.hashing import num_slots_for
from datapipe.kernels.learned import fasttext_labels
from datapipe.kernels.learned import fasttext_training as kernels
from datapipe.kernels.types import input_record
from tests.oracles import fasttext as oracle
from tests.oracles import fasttext_training as training
from tests.support.kernel_table import Case, Row

_DIM, _BUCKETS, _RUN, _LABELS, _SEED = 18, 30, 3, 3, 9


def _number_arguments(case: Case) -> list[Any]:
    capacity = sum(len(text) // 2 + 1 for text in case.texts)
    vocabulary = kernels.Vocabulary(
        spans=np.empty((capacity, 2), np.int64),
        codes=np.empty(capacity, np.uint32),
        counts=np.empty(capacity, np.int64),
        table=np.zeros(num_slots_for(capacity), np.uint64),
        progress=np.zeros(3, np.int64),
    )
    room = np.empty(len(case.data) + 1, np.int32), np.empty(len(case.texts) + 1, np.int64)
    return [case.offsets[:-1], case.offsets[1:].copy(), case.data, vocabulary, *room]


def _numbered(starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    texts = [training.words(data[start:stop].tobytes(), set()) for start, stop in zip(starts, stops)]
    numbers: dict[bytes, int] = {}
    ids = [numbers.setdefault(word, len(numbers)) for text in texts for word in text]
    counts = np.bincount(ids, minlength=len(numbers)) if ids else []
    codes = [oracle.fnv(word) for word in numbers]
    done = [len(texts), len(ids), len(numbers)]
    return None, [[], codes, counts, [], done, ids, np.cumsum([0, *map(len, texts)])]


def _vocabulary_of(case: Case) -> list[bytes]:
    words = dict.fromkeys(word for text in case.texts for word in training.words(text, set()) if len(word) < 60)
    return list(words)[:100]


def _spans_of(words: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    stops = np.cumsum(list(map(len, words)), dtype=np.int64)
    starts = stops - np.array(list(map(len, words)), np.int64)
    return np.stack([starts, stops], axis=1), np.frombuffer(b"".join(words) + b"#", np.uint8)


def _grams_row(least: int, most: int) -> Row:
    def arguments(case: Case) -> list[Any]:
        words = _vocabulary_of(case)
        room = np.empty(max(map(len, words), default=0) + 3, np.uint32), np.empty(len(words) + 1, np.int64)
        num_buckets = sum(map(len, words)) * most + 2 * most * len(words)
        return [*_spans_of(words), least, most, _BUCKETS, *room, np.empty(num_buckets, np.int32)]

    return Row(
        kernel=kernels.list_grams, arguments=arguments, oracle=_grams, num_outputs=3, variant=f"{least} to {most} characters"
    )


def _grams(spans: np.ndarray, data: np.ndarray, least: int, most: int, num_buckets: int) -> tuple[None, list[Any]]:
    listed = [oracle.gram_buckets(data[start:stop].tobytes(), least, most, num_buckets) for start, stop in spans]
    return None, [[], np.cumsum([0, *map(len, listed)]), [bucket for buckets in listed for bucket in buckets]]


def _random_arguments(case: Case) -> list[Any]:
    return [np.uint64(len(case.data)), np.empty((5, 7), np.float32)]


def _randomised(seed: np.uint64) -> tuple[None, list[Any]]:
    return None, [training.random_rows(int(seed), 5, 7)]


def _epoch_row(loss: int) -> Row:
    def arguments(case: Case) -> list[Any]:
        rng, words = case.generator, _vocabulary_of(case)[:40]
        lengths = rng.integers(0, 8, 12 if words else 0)
        ids, offsets = rng.integers(0, max(len(words), 1), lengths.sum()).astype(np.int32), np.cumsum([0, *lengths])
        rows = np.where(rng.random(len(words)) < 0.8, 1 + np.arange(len(words)), -1).astype(np.int32)
        grams = [oracle.gram_buckets(word, 3, 4, _BUCKETS) for word in words]
        features = (
            np.array(list(map(oracle.fnv, words)), np.uint32),
            rows,
            np.cumsum([0, *map(len, grams)]),
            np.array([bucket for buckets in grams for bucket in buckets], np.int32),
        )
        targets, weights = rng.integers(0, _LABELS, len(lengths)).astype(np.int32), 0.5 + rng.random(len(lengths))
        texts = (offsets, ids, targets, weights, rng.permutation(len(lengths)))
        plan = kernels.Plan(_RUN, 1 + len(words), _BUCKETS, loss, 0.7, 11, 200)
        inputs = training.random_rows(_SEED, 1 + len(words) + _BUCKETS, _DIM)
        outputs = training.random_rows(_SEED + 1, _LABELS, _DIM)
        scratch = kernels.Scratch(
            queue=np.empty(8 * (_RUN + max(map(len, grams), default=0)) + 8, np.int64),
            run_hashes=np.empty(10, np.uint64),
            hidden=np.empty(_DIM, np.float32),
            gradient=np.empty(_DIM, np.float32),
            chances=np.empty(_LABELS),
        )
        records = input_record(kernels.Texts, texts), input_record(kernels.Words, features), plan
        return [*records, inputs, outputs, scratch]

    variant = "softmax" if loss == fasttext_labels.SOFTMAX else "one against all"
    return Row(kernel=kernels.train_epoch, arguments=arguments, oracle=_epoch, num_outputs=3, variant=variant)


def _epoch(texts: kernels.Texts, words: kernels.Words, plan: kernels.Plan) -> tuple[None, list[Any]]:
    inputs = training.random_rows(_SEED, plan.num_words + _BUCKETS, _DIM)
    outputs = training.random_rows(_SEED + 1, _LABELS, _DIM)
    rows_by_text = []
    for doc in texts.order:
        ids = texts.ids[texts.offsets[doc] : texts.offsets[doc + 1]].tolist()
        rows = [row for word in ids for row in _rows_of(word, words, plan.num_words)]
        signed = [int(words.codes[word].astype(np.int32)) for word in ids] + [oracle.fnv(oracle.END_OF_LINE) - 2**32]
        rows_by_text.append([*rows, 0, *(plan.num_words + bucket for bucket in _run_buckets(signed))])
    order, counts = texts.order, np.diff(texts.offsets)
    setting = training.Setting(
        rate=plan.rate, num_read=plan.num_read, num_total=plan.num_total, is_softmax=plan.loss == fasttext_labels.SOFTMAX
    )
    training.read_once(rows_by_text, counts[order], texts.targets[order], texts.weights[order], setting, inputs, outputs)
    return None, [inputs, outputs, [], [], [], [], []]


def _rows_of(word: int, words: kernels.Words, num_words: int) -> list[int]:
    grams = words.grams[words.gram_starts[word] : words.gram_starts[word + 1]].tolist()
    return [int(words.rows[word])] * int(words.rows[word] >= 0) + [num_words + gram for gram in grams]


def _run_buckets(signed: list[int]) -> list[int]:
    buckets = []
    for first in range(len(signed)):
        code = signed[first] % 2**64
        for last in range(first + 1, min(first + _RUN, len(signed))):
            code = (code * 116049371 + signed[last]) % 2**64
            buckets.append(code % _BUCKETS)
    return buckets


ROWS = [
    Row(kernel=kernels.number_words, arguments=_number_arguments, oracle=_numbered, num_outputs=3),
    *[_grams_row(*chars) for chars in ((0, 0), (1, 3), (3, 5))],
    Row(kernel=kernels.randomise, arguments=_random_arguments, oracle=_randomised),
    *map(_epoch_row, (fasttext_labels.SOFTMAX, fasttext_labels.SIGMOID)),
]
