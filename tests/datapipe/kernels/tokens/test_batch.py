"""Labels, positions and segments equal their oracles for any chunks, full and empty rows included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.kernels.tokens import batch
from tests.oracles import batch as oracle

pytestmark = pytest.mark.medium

S = 12
row_lengths = st.lists(st.integers(1, S), max_size=6).map(
    lambda lengths: [length for index, length in enumerate(lengths) if sum(lengths[: index + 1]) <= S]
)


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@settings(deadline=None, max_examples=100)
@given(rows=st.lists(row_lengths, max_size=5))
def test_fields_any_chunks_equal_oracles(rows: list[list[int]], dtype: type) -> None:
    tokens = np.arange(len(rows) * S, dtype=dtype).reshape(len(rows), S)
    lengths = np.array([length for row in rows for length in row], np.int32)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    width = "64" if dtype is np.int64 else "32"
    made = {}
    for name in ("shifted_labels", "unshifted_labels", "positions", "segments"):
        made[name] = np.full((len(rows), S), -7, dtype)
        inputs = (tokens, offsets, lengths) if "labels" in name else (offsets, lengths)
        getattr(batch, f"{name}_{width}")(*inputs, made[name])
    for row, chunks in enumerate(rows):
        assert made["shifted_labels"][row].tolist() == oracle.shifted_labels(tokens[row].tolist(), chunks)
        assert made["unshifted_labels"][row].tolist() == oracle.unshifted_labels(tokens[row].tolist(), chunks)
        assert made["positions"][row].tolist() == oracle.positions(chunks, S)
        assert made["segments"][row].tolist() == oracle.segments(chunks, S)
