"""Rows of `datapipe/kernels/filters/word_lists.py`: lists of runs of words of the case itself, and of other words."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from datapipe.kernels.dedup.case_folding import fold_texts, word_folding
from datapipe.kernels.filters import word_lists as kernels
from tests.oracles import word_lists as oracle
from tests.oracles.case_folding import words
from tests.oracles.minhash import word_hash
from tests.support.kernel_table import Case, Row

_LISTS = 3
_MOST_ENTRIES = 40


def _entries(case: Case) -> dict[oracle.Entry, int]:
    """Runs of words of the texts, each with the bits of some lists."""
    rng, entries = random.Random(case.seed), dict[oracle.Entry, int]()
    found = [words(text)[:2000] for text in case.texts]
    for own in (own for own in found if own):
        for _ in range(_MOST_ENTRIES // len(found) + 1):
            start = rng.randrange(len(own))
            entry = tuple(own[start : start + rng.choice([1, 1, 2, 3])])
            entries[entry] = rng.randrange(1, 1 << _LISTS)
    return {**entries, (b"never", b"there"): 1}


def _masks(case: Case) -> np.ndarray:
    rng = random.Random(case.seed + 1)
    return np.array([rng.randrange(1 << _LISTS) for _ in case.texts], np.uint64)


def _find_arguments(case: Case) -> list[Any]:
    offsets, folded = fold_texts(case.offsets, case.data, word_folding())
    table = kernels.word_lists({tuple(map(word_hash, entry)): bits for entry, bits in _entries(case).items()})
    out = kernels.ListedOut(*(np.empty(len(case.texts), np.int64) for _ in range(3)))
    return [offsets, folded, table, _masks(case), out]


def _find_expected(case: Case) -> tuple[None, list[Any]]:
    entries = _entries(case)
    counts = [oracle.count(text, entries, int(mask)) for text, mask in zip(case.texts, _masks(case))]
    return None, [[counted[part] for counted in counts] for part in range(3)]


def _hash_arguments(case: Case) -> list[Any]:
    offsets, folded = fold_texts(case.offsets, case.data, word_folding())
    return [offsets, folded, np.empty(int(offsets[-1]) + 1, np.uint64), np.empty(len(case.texts), np.int64)]


def _hash_expected(case: Case) -> tuple[None, list[Any]]:
    found = [words(text) for text in case.texts]
    return None, [[word_hash(word) for own in found for word in own], list(map(len, found))]


ROWS = [
    Row(kernel=kernels.find_listed, arguments=_find_arguments, oracle=_find_expected, from_case=True),
    Row(kernel=kernels.hash_words, arguments=_hash_arguments, oracle=_hash_expected, num_outputs=2, from_case=True),
]
