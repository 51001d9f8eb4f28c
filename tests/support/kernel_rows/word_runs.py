"""Rows of `datapipe/kernels/decontaminate/word_runs.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.decontaminate import word_runs as kernels
from datapipe.kernels.decontaminate.folded_words import words_table
from datapipe.kernels.hashing import num_slots_for
from tests.oracles import decontaminate as oracle
from tests.support.kernel_table import Case, Row

_WEIGHT, _SALT = 12, 1


def _fill_arguments(case: Case) -> list[Any]:
    keys = np.unique(case.generator.integers(1, 1 << 63, 5 * len(case.texts) + 3).astype(np.uint64))
    slots = num_slots_for(len(keys))
    return [keys, np.zeros(8, np.uint64), np.zeros(slots, np.uint64), np.zeros(slots, np.int32)]


def _fill_expected(keys: np.ndarray) -> tuple[None, list[Any]]:
    bits, slots = [0] * 8, num_slots_for(len(keys))
    table, entries = [0] * slots, [0] * slots
    for entry, key in enumerate(keys.tolist()):
        bits[(key >> 20) % 8] |= 1 << key % 64 | 1 << (key >> 6) % 64
        slot = next(place % slots for place in range(key % slots, key % slots + slots) if not table[place % slots])
        table[slot], entries[slot] = key, entry
    return None, [np.array(bits, np.uint64), np.array(table, np.uint64), entries]


def _hash_arguments(case: Case) -> list[Any]:
    room, num_texts = int(case.offsets[-1] - case.offsets[0]), len(case.texts)
    numbers = [np.empty(num_texts, np.int64), np.empty(num_texts, np.int64), np.empty(num_texts, np.uint64)]
    out = kernels.RunsOut(np.empty(room, np.int64), np.empty(room, np.uint64), *numbers)
    return [case.offsets, case.data, words_table(), _WEIGHT, kernels.GRAM, out]


def _hash_expected(case: Case) -> tuple[int, list[Any]]:
    found = [oracle.words(text) for text in case.texts]
    keys = [oracle.keys(text, _WEIGHT, _SALT) for text in case.texts]
    texts = [number for number, of_text in enumerate(keys) for _ in of_text]
    weights = [sum(word.weight for word in run) for run in found]
    prefixes = np.array([oracle.prefix_of(run) for run in found], np.uint64)
    flat = np.array([key for of_text in keys for key in of_text], np.uint64)
    return len(flat), [texts, flat, list(map(len, found)), weights, prefixes]


def _key_arguments(case: Case) -> list[Any]:
    found = [oracle.words(text) for text in case.texts]
    num_words = np.array(list(map(len, found)), np.int64)
    prefixes = np.array([oracle.prefix_of(run) for run in found], np.uint64)
    return [num_words, prefixes, kernels.ANSWER, np.empty(len(found), np.uint64)]


def _key_expected(case: Case) -> tuple[None, list[Any]]:
    found = [oracle.words(text) for text in case.texts]
    keys = [oracle.key_of(run, 4) if 0 < len(run) < kernels.RING else 0 for run in found]
    return None, [np.array(keys, np.uint64)]


ROWS = [
    Row(kernel=kernels.fill_table, arguments=_fill_arguments, oracle=_fill_expected, num_outputs=3),
    Row(kernel=kernels.hash_windows, arguments=_hash_arguments, oracle=_hash_expected, from_case=True),
    Row(kernel=kernels.key_texts, arguments=_key_arguments, oracle=_key_expected, from_case=True),
]
