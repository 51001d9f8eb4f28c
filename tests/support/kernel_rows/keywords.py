"""Rows of `datapipe/kernels/redact/keywords.py`: from the first byte on, and from the middle."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.redact import keywords as kernels
from tests.oracles import secrets as oracle
from tests.support.kernel_table import Case, Row
from tests.support.secret_texts import rules, secret_texts, words


def _arguments(case: Case) -> list[Any]:
    offsets, data = secret_texts(case)
    start = int(offsets[0]) if case.seed % 2 else int(offsets[-1]) // 2
    capacity = 20 * len(data) + 99
    out = kernels.HitsOut(np.empty(capacity, np.int64), np.empty(capacity, np.int32), np.empty(1, np.int64))
    return [offsets, data, start, rules().keywords, out]


def _expected(offsets: np.ndarray, data: np.ndarray, start: int, table: kernels.Keywords) -> tuple[int, list[Any]]:
    listed, places = words(), {word: number for number, word in enumerate(words())}
    hits = list[tuple[int, str]]()
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        found = oracle.find_keywords(data[begin:end].tobytes(), listed)
        hits += [(begin + position, word) for position, word in found if begin + position >= start]
    return len(hits), [[hit[0] for hit in hits], [places[hit[1]] for hit in hits], [offsets[-1]]]


ROWS = [Row(kernel=kernels.find_keywords, arguments=_arguments, oracle=_expected)]
