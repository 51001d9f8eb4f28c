"""Rows of `datapipe/kernels/batch.py`: each case becomes rows of a batch with pieces of random lengths, some of them padded."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels import batch as kernels
from tests.kernel_table import Case, Row
from tests.oracles import batch as oracle

_LENGTH = 23


def _batch(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens (num_rows, S), piece offsets (num_rows + 1,) and piece lengths; one row per document."""
    generator = case.generator
    num_rows = len(case.texts)
    lengths = [_lengths(generator) for _ in range(num_rows)]
    offsets = np.cumsum([0, *map(len, lengths)], dtype=np.int64)
    flat = np.array([length for row in lengths for length in row], np.int32)
    return generator.integers(0, 1000, (num_rows, _LENGTH)), offsets, flat


def _lengths(generator: np.random.Generator) -> list[int]:
    lengths, left = [], int(generator.integers(1, _LENGTH + 1))
    while left:
        lengths.append(int(generator.integers(1, left + 1)))
        left -= lengths[-1]
    return lengths


def _label_arguments(case: Case) -> list[Any]:
    tokens, offsets, lengths = _batch(case)
    return [tokens, offsets, lengths, np.empty_like(tokens)]


def _position_arguments(case: Case) -> list[Any]:
    tokens, offsets, lengths = _batch(case)
    return [offsets, lengths, np.empty_like(tokens)]


def _per_row(offsets: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [lengths[start:stop].tolist() for start, stop in zip(offsets[:-1], offsets[1:])]


def _labels(one: Any) -> Any:
    def expected(tokens: np.ndarray, offsets: np.ndarray, lengths: np.ndarray) -> tuple[None, list[Any]]:
        return None, [[one(row.tolist(), own) for row, own in zip(tokens, _per_row(offsets, lengths))]]

    return expected


def _placed(one: Any) -> Any:
    def expected(offsets: np.ndarray, lengths: np.ndarray) -> tuple[None, list[Any]]:
        return None, [[one(own, _LENGTH) for own in _per_row(offsets, lengths)]]

    return expected


ROWS = [
    Row(kernel=kernels.shifted_labels, arguments=_label_arguments, oracle=_labels(oracle.shifted_labels), num_outputs=1),
    Row(kernel=kernels.unshifted_labels, arguments=_label_arguments, oracle=_labels(oracle.unshifted_labels), num_outputs=1),
    Row(kernel=kernels.positions, arguments=_position_arguments, oracle=_placed(oracle.positions), num_outputs=1),
    Row(kernel=kernels.segments, arguments=_position_arguments, oracle=_placed(oracle.segments), num_outputs=1),
]
