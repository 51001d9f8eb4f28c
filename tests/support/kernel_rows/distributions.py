"""Rows of `datapipe/kernels/distributions.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels import distributions as kernels
from tests.oracles import distributions as oracle
from tests.support.kernel_table import Case, Row


def _arguments(case: Case, side: int = -1) -> list[Any]:
    """Lengths of texts, powers of two, zeros, infinities and NaN, decided by a rule of this side and by others."""
    generator = case.generator
    lengths = np.diff(case.offsets).astype(np.float64)
    extra = [0.0, -0.0, np.nan, np.inf, -np.inf, 0.1, -3.0, 5e-324, 2.0**-32, 2.0**47, 2.0**48, 1.7e308]
    values = np.concatenate([lengths, extra, generator.integers(-4, 5, 120) / 4])
    num_docs = len(values)
    limits = np.array([2.0]) if case.seed % 2 else generator.choice([1.0, 2.0, np.nan, -np.inf], num_docs)
    reasons = generator.integers(-1, 3, num_docs)
    halves = (generator.integers(0, 3, num_docs).astype(np.uint64), np.arange(num_docs, dtype=np.uint64))
    documents = kernels.decided(reasons, generator.integers(0, 1000, num_docs), halves)
    counts = np.zeros((kernels.NUM_BINS, 4), np.int64)
    return [values, limits, documents, 1, side, counts, kernels.nothing_near()]


def _expected(
    values: np.ndarray, limits: np.ndarray, documents: kernels.Decided, rule: int, side: int
) -> tuple[int, list[Any]]:
    all_limits = np.broadcast_to(limits, len(values)) if len(limits) == 1 else limits
    rows = list(zip(values.tolist(), all_limits.tolist(), *(column.tolist() for column in documents)))
    counts = np.zeros((kernels.NUM_BINS, 4), np.int64)
    for value, limit, reason, text_bytes, _, _ in rows:
        if not np.isnan(value):
            column = int(oracle.fails(value, limit, reason, rule, side))
            counts[oracle.bin_of(value) + kernels.LAST_BIN, column] += 1
            counts[oracle.bin_of(value) + kernels.LAST_BIN, column + 2] += text_bytes
    near = oracle.nearest([(v, limit, r, file, p) for v, limit, r, _, file, p in rows], rule, kernels.NEAREST)
    columns = [np.zeros((2, kernels.NEAREST), kind) for kind in (float, np.uint64, float, float, np.uint64, np.uint64)]
    for number, side_rows in enumerate(near):
        for place, row in enumerate(side_rows):
            for column, entry in zip(columns, row):
                column[number, place] = entry
    distances, ties, near_values, near_limits, files, positions = columns
    sizes = np.array([len(side_rows) for side_rows in near])
    outputs = [counts, sizes, distances, near_values, near_limits, ties, files, positions]
    return int(np.isnan(values).sum()), outputs


ROWS = [
    Row(kernel=kernels.measure, arguments=_arguments, oracle=_expected, num_outputs=2),
    Row(
        kernel=kernels.measure,
        arguments=lambda case: _arguments(case, 1),
        oracle=_expected,
        num_outputs=2,
        variant="at-most",
    ),
]
