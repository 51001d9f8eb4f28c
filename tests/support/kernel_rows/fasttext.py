"""Rows of `datapipe/kernels/learned/fasttext.py`: small random models over the words of the texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from datapipe.kernels.learned import fasttext as kernels
from datapipe.kernels.types import input_record
from tests.oracles import fasttext as oracle
from tests.support.kernel_table import Case, Row

_DIM = 21


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """A kind of model."""

    name: str
    chars: tuple[int, int] = (2, 4)
    longest_run: int = 1
    num_buckets: int = 50
    pruned: bool = True
    dense: bool = True
    end_of_line: bool = True


_SETTINGS = (
    _Setting(name="pruned"),
    _Setting(name="runs of words", longest_run=3, num_buckets=1, pruned=False, end_of_line=False),
    _Setting(name="single characters", chars=(0, 2), pruned=False),
    _Setting(name="long n-grams", chars=(3, 9), longest_run=2, dense=False),
    _Setting(name="words alone", chars=(0, 0)),
)


def _entries(case: Case, end_of_line: bool) -> list[bytes]:
    """Some words of the texts, one of them twice, then labels."""
    words = list(dict.fromkeys(word for text in case.texts for word in oracle.words(text)))[:40:2]
    return [*words, *words[:1], *[oracle.END_OF_LINE] * end_of_line, b"the", b"__label__the", b"__label__b"]


def _spans(entries: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    stops = np.cumsum([len(entry) for entry in entries], dtype=np.int64)
    return stops - [len(entry) for entry in entries], stops, np.frombuffer(b"".join(entries), np.uint8)


def _index_arguments(case: Case) -> list[Any]:
    entries = _entries(case, True)
    return [*_spans(entries), np.empty(len(entries), np.uint32), np.full(128, -1, np.int32)]


def _index_expected(starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    entries = [data[start:stop].tobytes() for start, stop in zip(starts, stops)]
    table = [-1] * 128
    for number, entry in enumerate(entries):
        slot = oracle.fnv(entry) % 128
        while table[slot] >= 0 and entries[table[slot]] != entry:
            slot = (slot + 1) % 128
        table[slot] = number
    return None, [list(map(oracle.fnv, entries)), table]


def _embed_row(setting: _Setting) -> Row:
    def arguments(case: Case) -> list[Any]:
        rng, entries = case.generator, _entries(case, setting.end_of_line)
        num_words, num_rows = len(entries) - 2, len(entries) - 2 + setting.num_buckets
        rows = np.empty(0, np.int32)
        if setting.pruned:
            rows = np.where(rng.random(setting.num_buckets) < 0.5, num_words + np.arange(setting.num_buckets), -1).astype(
                np.int32
            )
        starts, stops, data = _spans(entries)
        index = [np.empty(len(entries), np.uint32), np.full(128, -1, np.int32)]
        kernels.index_words(starts, stops, data, *index)
        bits = np.packbits(rows >= 0, bitorder="little")
        end_of_line = entries.index(oracle.END_OF_LINE) if setting.end_of_line else -1
        numbers = (num_words, end_of_line, *setting.chars, setting.longest_run, setting.num_buckets)
        matrix = rng.standard_normal((num_rows if setting.dense else 0, _DIM)).astype(np.float32)
        codes = rng.integers(0, 256, (0 if setting.dense else num_rows, 6)).astype(np.uint8)
        coded = [codes, rng.standard_normal((6, 256, 4)).astype(np.float32), rng.random(num_rows).astype(np.float32)]
        model = kernels.Model(
            entries=input_record(kernels.Entries, (starts, stops, data, *index)),
            features=input_record(kernels.Features, (*numbers, rows, bits)),
            coded=input_record(kernels.CodedRows, coded),
        )
        longest = max(map(len, case.texts), default=0)
        out = kernels.room_for_embedding(len(case.texts), _DIM, longest, setting.chars[1])
        return [case.offsets[:-1], case.offsets[1:].copy(), case.data, model, matrix, out]

    return Row(kernel=kernels.embed, arguments=arguments, oracle=_embedded, variant=setting.name)


def _embedded(
    starts: np.ndarray, stops: np.ndarray, data: np.ndarray, model: kernels.Model, matrix: np.ndarray
) -> tuple[None, list[Any]]:
    words, (num_words, _, least, most, longest_run, num_buckets, bucket_rows, _), coded = model
    entries = [words.data[start:stop].tobytes() for start, stop in zip(words.starts, words.stops)]
    rows = {bucket: row for bucket, row in enumerate(bucket_rows.tolist()) if row >= 0} if len(bucket_rows) else None
    if not len(matrix):
        parts = [coded.centroids[part, coded.codes[:, part]] for part in range(coded.codes.shape[1])]
        matrix = np.concatenate(parts, axis=1)[:, :_DIM] * coded.norms[:, None]
    texts = [data[start:stop].tobytes() for start, stop in zip(starts, stops)]
    rows_by_text = [oracle.rows_of(text, entries, num_words, rows, (least, most), longest_run, num_buckets) for text in texts]
    return None, [[oracle.mean(matrix[rows_of_text]) for rows_of_text in rows_by_text], list(map(len, rows_by_text)), [], []]


ROWS = [
    Row(kernel=kernels.index_words, arguments=_index_arguments, oracle=_index_expected, num_outputs=2),
    *map(_embed_row, _SETTINGS),
]
