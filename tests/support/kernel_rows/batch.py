"""Rows of `datapipe/kernels/tokens/batch.py`: each case becomes rows of a batch, some of them padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from datapipe.kernels.tokens import batch as kernels
from tests.oracles import batch as oracle
from tests.support.kernel_table import Case, Row

_LENGTH = 23


def _batch(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens (num_rows, S), chunk offsets (num_rows + 1,) and chunk lengths; one row per document."""
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


def _label_arguments(dtype: type) -> Callable[[Case], list[Any]]:
    def arguments(case: Case) -> list[Any]:
        tokens, offsets, lengths = _batch(case)
        return [tokens.astype(dtype), offsets, lengths, np.empty(tokens.shape, dtype)]

    return arguments


def _position_arguments(dtype: type) -> Callable[[Case], list[Any]]:
    def arguments(case: Case) -> list[Any]:
        tokens, offsets, lengths = _batch(case)
        return [offsets, lengths, np.empty(tokens.shape, dtype)]

    return arguments


def _border_arguments(case: Case) -> list[Any]:
    _, offsets, lengths = _batch(case)
    num_rows = len(offsets) - 1
    cuts = np.sort(case.generator.integers(0, num_rows + 1, 3))
    rows = np.array([0, *cuts.tolist(), num_rows], np.int64)
    room = len(rows) - 1 + num_rows + len(lengths)
    return [
        offsets,
        lengths,
        rows,
        _LENGTH,
        np.empty(room, np.int32),
        np.empty(len(rows), np.int64),
        np.empty(len(rows) - 1, int),
    ]


def _border_expected(
    offsets: np.ndarray, lengths: np.ndarray, rows: np.ndarray, sequence_length: int
) -> tuple[None, list[Any]]:
    own = _per_row(offsets, lengths)
    batches = [oracle.borders(own[start:stop], sequence_length) for start, stop in zip(rows.tolist(), rows[1:].tolist())]
    longest = [max((b - a for a, b in zip(borders, borders[1:])), default=0) for borders in batches]
    return None, [[border for borders in batches for border in borders], np.cumsum([0, *map(len, batches)]), longest]


def _per_row(offsets: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [lengths[start:stop].tolist() for start, stop in zip(offsets[:-1], offsets[1:])]


def _labels(of_row: Any) -> Any:
    def expected(tokens: np.ndarray, offsets: np.ndarray, lengths: np.ndarray) -> tuple[None, list[Any]]:
        return None, [[of_row(row.tolist(), own) for row, own in zip(tokens, _per_row(offsets, lengths))]]

    return expected


def _positioned(of_row: Any) -> Any:
    def expected(offsets: np.ndarray, lengths: np.ndarray) -> tuple[None, list[Any]]:
        return None, [[of_row(own, _LENGTH) for own in _per_row(offsets, lengths)]]

    return expected


_LABELS = (
    (kernels.shifted_labels_64, np.int64, oracle.shifted_labels),
    (kernels.shifted_labels_32, np.int32, oracle.shifted_labels),
    (kernels.unshifted_labels_64, np.int64, oracle.unshifted_labels),
    (kernels.unshifted_labels_32, np.int32, oracle.unshifted_labels),
)
_POSITIONS = (
    (kernels.positions_64, np.int64, oracle.positions),
    (kernels.positions_32, np.int32, oracle.positions),
    (kernels.segments_64, np.int64, oracle.segments),
    (kernels.segments_32, np.int32, oracle.segments),
)

ROWS = [
    *(Row(kernel=kernel, arguments=_label_arguments(dtype), oracle=_labels(of_row)) for kernel, dtype, of_row in _LABELS),
    *(
        Row(kernel=kernel, arguments=_position_arguments(dtype), oracle=_positioned(of_row))
        for kernel, dtype, of_row in _POSITIONS
    ),
    Row(kernel=kernels.borders, arguments=_border_arguments, oracle=_border_expected, num_outputs=3),
]
