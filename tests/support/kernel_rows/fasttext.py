"""Rows of `datapipe/kernels/learned/fasttext.py`: small random models over the words of the texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from datapipe.kernels.learned import fasttext as kernels
from datapipe.kernels.types import input_record
from tests.oracles import fasttext as oracle
from tests.support.kernel_table import Case, Row


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
    dim: int = 21


_SETTINGS = (
    _Setting(name="pruned"),
    _Setting(name="runs of words", longest_run=3, num_buckets=1, pruned=False, end_of_line=False),
    _Setting(name="single characters", chars=(0, 2), pruned=False),
    _Setting(name="long n-grams", chars=(3, 9), longest_run=2, dense=False),
    _Setting(name="words alone", chars=(0, 0)),
    _Setting(name="7 dimensions", chars=(0, 0), dim=7),
    _Setting(name="16 dimensions", dim=16),
    _Setting(name="50 dimensions", chars=(0, 0), longest_run=2, pruned=False, dim=50),
    _Setting(name="64 dimensions", longest_run=2, dim=64),
    _Setting(name="151 dimensions", longest_run=2, pruned=False, dim=151),
)


def _entries(case: Case, end_of_line: bool) -> list[bytes]:
    """Some words of the texts, one of them twice, then labels."""
    words = list(dict.fromkeys(word for text in case.texts for word in oracle.words(text)))[:40:2]
    return [*words, *words[:1], *[oracle.END_OF_LINE] * end_of_line, b"the", b"__label__the", b"__label__b"]


def _spans(entries: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    stops = np.cumsum([len(entry) for entry in entries], dtype=np.int64)
    starts = stops - [len(entry) for entry in entries]
    return np.stack([starts, stops], axis=1), np.frombuffer(b"".join(entries), np.uint8)


def _index_arguments(case: Case) -> list[Any]:
    entries = _entries(case, True)
    return [*_spans(entries), np.zeros(128, np.uint64)]


def _index_expected(spans: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    entries = [data[start:stop].tobytes() for start, stop in spans]
    table = [-1] * 128
    for number, entry in enumerate(entries):
        slot = oracle.fnv(entry) % 128
        while table[slot] >= 0 and entries[table[slot]] != entry:
            slot = (slot + 1) % 128
        table[slot] = number
    return None, [[(oracle.fnv(entries[number]) << 32 | number + 1) if number >= 0 else 0 for number in table]]


def _embed_row(setting: _Setting) -> Row:
    def arguments(case: Case) -> list[Any]:
        rng, entries = case.generator, _entries(case, setting.end_of_line)
        num_words, num_rows = len(entries) - 2, len(entries) - 2 + setting.num_buckets
        rows = np.empty(0, np.int32)
        if setting.pruned:
            rows = np.where(rng.random(setting.num_buckets) < 0.5, num_words + np.arange(setting.num_buckets), -1).astype(
                np.int32
            )
        spans, data = _spans(entries)
        table = np.zeros(128, np.uint64)
        kernels.index_words(spans, data, table)
        bits = np.packbits(rows >= 0, bitorder="little")
        end_of_line = entries.index(oracle.END_OF_LINE) if setting.end_of_line else -1
        numbers = (num_words, end_of_line, *setting.chars, setting.longest_run, setting.num_buckets)
        matrix = rng.standard_normal((num_rows if setting.dense else 0, setting.dim)).astype(np.float32)
        codes = rng.integers(0, 256, (0 if setting.dense else num_rows, 6)).astype(np.uint8)
        coded = [codes, rng.standard_normal((6, 256, 4)).astype(np.float32), rng.random(num_rows).astype(np.float32)]
        model = kernels.Model(
            entries=input_record(kernels.Entries, (spans, data, table)),
            features=input_record(kernels.Features, (*numbers, rows, bits)),
            coded=input_record(kernels.CodedRows, coded),
        )
        longest = max(map(len, case.texts), default=0)
        out = kernels.room_for_embedding(len(case.texts), setting.dim, longest, setting.chars[1])
        return [case.offsets[:-1], case.offsets[1:].copy(), case.data, model, matrix, out]

    return Row(kernel=kernels.embed, arguments=arguments, oracle=_embedded, variant=setting.name)


def _embedded(
    starts: np.ndarray, stops: np.ndarray, data: np.ndarray, model: kernels.Model, matrix: np.ndarray
) -> tuple[None, list[Any]]:
    words, (num_words, _, least, most, longest_run, num_buckets, bucket_rows, _), coded = model
    entries = [words.data[start:stop].tobytes() for start, stop in words.spans]
    rows = {bucket: row for bucket, row in enumerate(bucket_rows.tolist()) if row >= 0} if len(bucket_rows) else None
    if not len(matrix):
        parts = [coded.centroids[part, coded.codes[:, part]] for part in range(coded.codes.shape[1])]
        matrix = np.concatenate(parts, axis=1)[:, : matrix.shape[1]] * coded.norms[:, None]
    texts = [data[start:stop].tobytes() for start, stop in zip(starts, stops)]
    rows_by_text = [oracle.rows_of(text, entries, num_words, rows, (least, most), longest_run, num_buckets) for text in texts]
    return None, [[oracle.mean(matrix[rows_of_text]) for rows_of_text in rows_by_text], list(map(len, rows_by_text)), [], []]


ROWS = [
    Row(kernel=kernels.index_words, arguments=_index_arguments, oracle=_index_expected, num_outputs=1),
    *map(_embed_row, _SETTINGS),
]
