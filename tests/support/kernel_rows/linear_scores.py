"""Rows of `datapipe/kernels/learned/linear_scores.py`: random models over the texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.learned import linear_scores as kernels
from datapipe.kernels.learned.text_features import character_kinds, room_for_counting
from datapipe.kernels.types import input_record
from tests.oracles import linear as oracle
from tests.support.kernel_table import Case, Row


def _spans(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Starts and stops of the texts, last text first."""
    return case.offsets[:-1][::-1].copy(), case.offsets[1:][::-1].copy()


def _copy_row() -> Row:
    def arguments(case: Case) -> list[Any]:
        return [*_spans(case), case.data, np.empty(int(case.offsets[-1] - case.offsets[0]), np.uint8)]

    def expected(case: Case) -> tuple[None, list[Any]]:
        return None, [list(b"".join(case.texts[::-1]))]

    return Row(kernel=kernels.copy_texts, arguments=arguments, oracle=expected, from_case=True)


def _weigh_row(bits: tuple[int, int], num_columns: int) -> Row:
    def arguments(case: Case) -> list[Any]:
        num_slots = sum(1 << number for number in bits if number)
        entries = case.generator.integers(-(1 << 31), 1 << 31, (num_slots, num_columns)).astype(np.int32)
        entries = entries & ~0xFF | (entries[:, :1] & 0xFF)
        numbers = case.generator.standard_normal((2, num_columns))
        model = input_record(kernels.Weights, (character_kinds(), *bits, entries, numbers[0] * 1e-6, numbers[1]))
        scratch = room_for_counting(max(bits))
        return [case.offsets, case.data, model, scratch, np.empty((len(case.texts), num_columns))]

    def expected(offsets: np.ndarray, data: np.ndarray, model: kernels.Weights, scratch: Any) -> tuple[None, list[Any]]:
        texts = [data[start:stop].tobytes() for start, stop in zip(offsets, offsets[1:])]
        model_numbers = (model.entries.tolist(), model.scales.tolist(), model.biases.tolist())
        return None, [[oracle.sums(text, bits, *model_numbers) for text in texts]]

    return Row(kernel=kernels.weigh_texts, arguments=arguments, oracle=expected, variant=f"{bits} bits")


def _sigmoid_row(num_columns: int) -> Row:
    def arguments(case: Case) -> list[Any]:
        sums = case.generator.standard_normal((len(case.texts), num_columns)) * 20
        return [sums, np.empty((len(sums), max(num_columns, 2)), np.float32)]

    def expected(sums: np.ndarray) -> tuple[None, list[Any]]:
        rows = [[oracle.sigmoid(value) for value in row] for row in sums.tolist()]
        if num_columns == 1:
            return None, [[[oracle.sigmoid(-value), oracle.sigmoid(value)] for [value] in sums.tolist()]]
        return None, [[[value / sum(row) for value in row] for row in rows]]

    return Row(kernel=kernels.sigmoids, arguments=arguments, oracle=expected, variant=f"{num_columns} columns")


ROWS = [
    _copy_row(),
    _weigh_row((6, 0), 1),
    _weigh_row((0, 10), 1),
    _weigh_row((8, 8), 3),
    _sigmoid_row(1),
    _sigmoid_row(3),
]
