"""Rows of `datapipe/kernels/learned/coordinate_descent.py`: features of the texts, and small random problems."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from datapipe.kernels.learned import coordinate_descent as kernels
from datapipe.kernels.learned.text_features import character_kinds, room_for_counting
from datapipe.kernels.types import input_record
from tests.oracles import linear as oracle
from tests.support.kernel_table import Case, Row

_WORD_BITS, _CHARACTER_BITS = 7, 9
_PASSES, _TOLERANCE = 6, 0.05


def _features(case: Case) -> list[dict[int, int]]:
    """Slots and counts of each text, those of words first."""
    return [
        oracle.word_slots(text, _WORD_BITS)
        | {(1 << _WORD_BITS) + slot: count for slot, count in oracle.character_slots(text, _CHARACTER_BITS).items()}
        for text in case.texts
    ]


def _feature_arguments(case: Case) -> list[Any]:
    most = 11 * int(case.offsets[-1] - case.offsets[0]) + 1
    out = kernels.RowsOut(np.empty(len(case.texts), np.int64), np.empty(most, np.uint32), np.empty(most, np.uint8))
    scratch = room_for_counting(max(_WORD_BITS, _CHARACTER_BITS))
    return [case.offsets, case.data, character_kinds(), _WORD_BITS, _CHARACTER_BITS, scratch, out]


def _feature_expected(case: Case) -> tuple[int, list[Any]]:
    found = _features(case)
    stops = list(accumulate(map(len, found)))
    slots, counts = [slot for row in found for slot in row], [count for row in found for count in row.values()]
    return len(slots), [stops, slots, counts]


def _importances(case: Case) -> np.ndarray:
    return case.generator.integers(0, 256, (1 << _WORD_BITS) + (1 << _CHARACTER_BITS)).astype(np.uint8)


def _value_arguments(case: Case) -> list[Any]:
    number, (stops, slots, counts) = _feature_expected(case)
    arrays = [np.array(stops, np.int64), np.array(slots, np.uint32), np.array(counts, np.uint8)]
    return [*arrays, _importances(case), 1 << _WORD_BITS, np.empty(len(stops)), np.empty(number, np.float32)]


def _value_expected(case: Case) -> tuple[None, list[Any]]:
    importances, squares, values = _importances(case).tolist(), list[float](), list[float]()
    for row in _features(case):
        lengths = [0, 0]
        for slot, count in row.items():
            lengths[slot >= 1 << _WORD_BITS] += (importances[slot] * count) ** 2
        factors = [1.0 / float(np.sqrt(float(max(length, 1)))) for length in lengths]
        products = [importances[slot] * count * factors[slot >= 1 << _WORD_BITS] for slot, count in row.items()]
        scaled = np.array(products, np.float32).tolist()
        total = 0.0
        for value in scaled:
            total += value * value
        values += scaled
        squares.append(total)
    return None, [squares, values]


def _problem(case: Case) -> tuple[list[oracle.Row], list[float], list[float], list[float]]:
    """Rows with the squares of their lengths, targets and costs, as many as there are texts."""
    rng = random.Random(case.seed)
    rows = oracle.random_rows(rng, len(case.texts))
    squares = [sum(value * value for _, value in row) for row in rows]
    return rows, squares, [rng.choice([-1.0, 1.0]) for _ in rows], [rng.choice([0.5, 1.0, 10.0]) for _ in rows]


def _fit_row(kernel: Any, fit: Callable[..., tuple[int, list[float], list[float], list[int]]]) -> Row:
    def arguments(case: Case) -> list[Any]:
        rows, squares, targets, costs = _problem(case)
        stops = np.array(list(accumulate(map(len, rows))), np.int64)
        slots = np.array([slot for row in rows for slot, _ in row], np.uint32)
        values = np.array([value for row in rows for _, value in row], np.float32)
        out = kernels.Fit(np.zeros(65), np.zeros(len(rows)), np.empty(len(rows), np.int64))
        inputs = input_record(kernels.Rows, (stops, slots, values, np.array(squares, float)))
        return [inputs, np.array(targets, float), np.array(costs, float), np.uint64(case.seed), _PASSES, _TOLERANCE, out]

    def expected(case: Case) -> tuple[int, list[Any]]:
        passes, *outputs = fit(*_problem(case), case.seed, _PASSES, _TOLERANCE)
        return passes, outputs

    return Row(kernel=kernel, arguments=arguments, oracle=expected, from_case=True)


ROWS = [
    Row(kernel=kernels.feature_rows, arguments=_feature_arguments, oracle=_feature_expected, from_case=True),
    Row(kernel=kernels.row_values, arguments=_value_arguments, oracle=_value_expected, num_outputs=2, from_case=True),
    _fit_row(kernels.fit_classes, oracle.fit_classes),
    _fit_row(kernels.fit_numbers, oracle.fit_numbers),
]
