"""Kernels of packing against lists and linear scans; what they make together is tested where it is used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.kernels.tokens import pack as kernels
from tests.oracles import pack as oracle

piece_lengths = st.lists(st.integers(1, 12), max_size=60)
widths = pytest.mark.parametrize("dtype", [np.uint16, np.uint32])


@given(piece_lengths)
@settings(deadline=None)
def test_by_length_any_chunks_sorts_longest_first_and_stably(lengths):
    order = np.empty(len(lengths), np.int64)
    kernels.by_length(np.array(lengths, np.int32), np.zeros(14, np.int64), order)
    assert order.tolist() == oracle.by_length(lengths)


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


@given(st.lists(st.integers(0, 9), max_size=40))
@settings(deadline=None)
def test_by_row_any_rows_groups_their_chunks(rows):
    num_rows = max(rows, default=-1) + 1
    offsets, order = np.zeros(num_rows + 1, np.int64), np.empty(len(rows), np.int64)
    kernels.by_row(np.array(rows, np.int64), np.empty(num_rows, np.int64), offsets, order)
    assert (offsets.tolist(), order.tolist()) == oracle.by_row(rows, num_rows)


@widths
@given(rows=st.lists(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 4)), max_size=3), max_size=9))
@settings(deadline=None)
def test_fill_rows_any_chunks_copies_and_pads(dtype, rows):
    tokens = np.arange(100, dtype=dtype) + 7
    chunks = [chunk for row in rows for chunk in row]
    out = np.full(len(rows) * 12, 99, dtype)
    fill = kernels.fill_rows_16 if dtype is np.uint16 else kernels.fill_rows_32
    starts, lengths = np.array([start for start, _ in chunks], np.int64), np.array([length for _, length in chunks], np.int32)
    fill(tokens, starts, lengths, np.cumsum([0, *map(len, rows)], dtype=np.int64), 3, 12, out)
    assert out.reshape(-1, 12).tolist() == oracle.fill_rows(tokens.tolist(), rows, 3, 12)
