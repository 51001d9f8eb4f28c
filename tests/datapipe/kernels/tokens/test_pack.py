"""Kernels of packing against lists and linear scans; what they make together is tested where it is used."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.kernels.tokens import pack as kernels
from tests.oracles import pack as oracle

piece_lengths = st.lists(st.integers(1, 12), max_size=60)


@given(piece_lengths, st.integers(12, 40), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_best_fit_chunks_in_any_order_equals_linear_scan(lengths, sequence_length, random):
    order = random.sample(range(len(lengths)), len(lengths))
    rows = np.empty(len(lengths), np.int64)
    num_rows = kernels.best_fit(
        np.array(lengths, np.int32),
        np.array(order, np.int64),
        sequence_length,
        np.zeros(2 << sequence_length.bit_length(), np.uint8),
        np.full(sequence_length + 1, -1, np.int64),
        np.empty(len(lengths), np.int64),
        rows,
    )
    assert rows.tolist() == oracle.best_fit(lengths, order, sequence_length)
    assert num_rows == max(rows.tolist(), default=-1) + 1
