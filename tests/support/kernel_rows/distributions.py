"""Rows of `datapipe/kernels/distributions.py`."""

from __future__ import annotations

import numpy as np

from datapipe.kernels import distributions as kernels
from tests.oracles import distributions as oracle
from tests.support.kernel_table import Case, Steps, row


@row(kernels.measure, -1)
@row(kernels.measure, 1, variant="at-most")
def measure(case: Case, side: int) -> Steps:
    """Lengths of texts, powers of two, zeros, infinities and NaN, decided by a rule of this side and by others."""
    generator, rule = case.generator, 1
    lengths = np.diff(case.offsets).astype(np.float64)
    extra = [0.0, -0.0, np.nan, np.inf, -np.inf, 0.1, -3.0, 5e-324, 2.0**-32, 2.0**47, 2.0**48, 1.7e308]
    values = np.concatenate([lengths, extra, generator.integers(-4, 5, 120) / 4])
    num_docs = len(values)
    limits = np.array([2.0]) if case.seed % 2 else generator.choice([1.0, 2.0, np.nan, -np.inf], num_docs)
    reasons = generator.integers(-1, 3, num_docs)
    halves = (generator.integers(0, 3, num_docs).astype(np.uint64), np.arange(num_docs, dtype=np.uint64))
    documents = kernels.decided(reasons, generator.integers(0, 1000, num_docs), halves)
    counts = np.zeros((kernels.NUM_BINS, 4), np.int64)
    yield [values, limits, documents, rule, side], [counts, kernels.nothing_near()]
    counts = np.zeros_like(counts)
    rows = list(zip(values.tolist(), np.broadcast_to(limits, num_docs).tolist(), *(column.tolist() for column in documents)))
    for value, limit, reason, text_bytes, _, _ in rows:
        if not np.isnan(value):
            column = int(oracle.fails(value, limit, reason, rule, side))
            counts[oracle.bin_of(value) + kernels.LAST_BIN, [column, column + 2]] += [1, text_bytes]
    near = oracle.nearest([(v, limit, r, file, p) for v, limit, r, _, file, p in rows], rule, kernels.NEAREST)
    arrays = [np.zeros((2, kernels.NEAREST), kind) for kind in (float, np.uint64, float, float, np.uint64, np.uint64)]
    for number, side_rows in enumerate(near):
        for place, entries in enumerate(side_rows):
            for array, entry in zip(arrays, entries):
                array[number, place] = entry
    distances, ties, near_values, near_limits, files, positions = arrays
    outputs = [counts, list(map(len, near)), distances, near_values, near_limits, ties, files, positions]
    yield int(np.isnan(values).sum()), outputs
