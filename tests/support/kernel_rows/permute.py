"""Rows of `datapipe/kernels/tokens/permute.py`: sizes and keys of each case's seed; the oracle computes one index at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.tokens import permute as kernels
from tests.oracles import permute as oracle
from tests.support.kernel_table import Case, Row

_SIZES = (2, 3, 5, 1000, 65_536, 65_537, (1 << 30) + 1)
_SMALL = (2, 3, 5, 64, 300)
_TABLES = 251
"""Sizes of shuffled tables: the key determines the size."""


def _arguments_for(sizes: tuple[int, ...], case: Case) -> list[Any]:
    generator = case.generator
    size = sizes[(len(case.texts) + case.seed) % len(sizes)]
    indices = generator.integers(0, size, 64)
    return [indices, size, kernels.round_keys(int(generator.integers(0, 1 << 62))), np.empty_like(indices)]


def _expected(indices: np.ndarray, size: int, keys: np.ndarray) -> tuple[None, list[Any]]:
    return None, [[oracle.feistel(index, size, keys.tolist()) for index in indices.tolist()]]


def _inverse_expected(positions: np.ndarray, size: int, keys: np.ndarray) -> tuple[None, list[Any]]:
    """The inverse, by permuting every index."""
    where = {oracle.feistel(index, size, keys.tolist()): index for index in range(size)}
    return None, [[where[position] for position in positions.tolist()]]


def _shuffle_arguments(case: Case) -> list[Any]:
    size = (len(case.texts) + case.seed) % _TABLES
    return [np.uint64(case.seed * _TABLES * 7919 + size), np.empty(size, np.uint16)]


def _shuffle_expected(key: np.uint64) -> tuple[None, list[Any]]:
    return None, [oracle.shuffled(int(key), int(key) % _TABLES)]


ROWS = [
    Row(kernel=kernels.feistel, arguments=lambda case: _arguments_for(_SIZES, case), oracle=_expected),
    Row(kernel=kernels.feistel_inverse, arguments=lambda case: _arguments_for(_SMALL, case), oracle=_inverse_expected),
    Row(kernel=kernels.shuffle_table, arguments=_shuffle_arguments, oracle=_shuffle_expected),
]
