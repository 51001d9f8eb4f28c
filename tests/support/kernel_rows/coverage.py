"""Rows of `datapipe/kernels/decontaminate/coverage.py`: matches at random places of the texts of a case."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.decontaminate import coverage as kernels
from datapipe.kernels.types import input_record
from tests.oracles import decontaminate as oracle
from tests.support.kernel_table import Case, Row

_NUM_GRAMS, _NUM_ITEMS, _GAP = 12, 6, 5


def _matches(case: Case) -> tuple[np.ndarray, ...]:
    """Documents, n-grams, numbers of words, starts and stops of matches, in the order of the text."""
    rng = case.generator
    documents = np.sort(rng.integers(0, max(1, len(case.texts)), 20 * len(case.texts)))
    words = np.cumsum(rng.integers(1, 4, len(documents))) + 300 * documents
    starts = 2 * words
    return documents, rng.integers(0, _NUM_GRAMS, len(documents)), words, starts, starts + 5


def _postings(case: Case) -> kernels.Postings:
    rng = case.generator
    lists = [np.sort(rng.choice(_NUM_ITEMS, rng.integers(0, 4), replace=False)) for _ in range(_NUM_GRAMS)]
    items = np.concatenate(lists).astype(np.int32)
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    numbers = rng.integers(1, 9, _NUM_GRAMS), rng.integers(4, 20, _NUM_ITEMS)
    return input_record(kernels.Postings, (offsets, items, rng.random(len(items)) < 0.4, *numbers, _GAP))


def _cover_arguments(case: Case) -> list[Any]:
    postings, matches = _postings(case), _matches(case)
    scratch = kernels.Passages(*(np.zeros(_NUM_ITEMS, np.int64) for _ in range(6)), np.zeros(len(postings.items), np.int64))
    return [*matches, postings, scratch, kernels.Covered(*(np.empty(1000, np.int64) for _ in range(5)))]


def _cover_expected(case: Case) -> tuple[int, list[Any]]:
    postings = _postings(case)
    found: list[list[Any]] = []
    for item in range(_NUM_ITEMS):
        found += oracle.passages(item, list(zip(*(column.tolist() for column in _matches(case)))), postings)
    found.sort()  # by the match at which the need is reached
    return len(found), [np.array([row[part] for row in found], np.int64) for part in range(2, 7)]


ROWS = [Row(kernel=kernels.find_covered, arguments=_cover_arguments, oracle=_cover_expected, from_case=True)]
