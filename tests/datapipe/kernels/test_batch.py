"""Labels, positions and segments equal their oracles on any pieces, full rows and empty ones included."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.kernels import batch
from tests.oracles import batch as oracle

S = 12
row_lengths = st.lists(st.integers(1, S), max_size=6).map(
    lambda lengths: [length for place, length in enumerate(lengths) if sum(lengths[: place + 1]) <= S]
)


@settings(deadline=None, max_examples=100)
@given(st.lists(row_lengths, max_size=5))
def test_fields_any_pieces_equal_oracles(rows: list[list[int]]) -> None:
    tokens = np.arange(len(rows) * S, dtype=np.int64).reshape(len(rows), S)
    lengths = np.array([length for row in rows for length in row], np.int32)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    shifted, unshifted, positions, segments = (np.full((len(rows), S), -7, np.int64) for _ in range(4))
    batch.shifted_labels(tokens, offsets, lengths, shifted)
    batch.unshifted_labels(tokens, offsets, lengths, unshifted)
    batch.positions(offsets, lengths, positions)
    batch.segments(offsets, lengths, segments)
    for row, pieces in enumerate(rows):
        assert shifted[row].tolist() == oracle.shifted_labels(tokens[row].tolist(), pieces)
        assert unshifted[row].tolist() == oracle.unshifted_labels(tokens[row].tolist(), pieces)
        assert positions[row].tolist() == oracle.positions(pieces, S)
        assert segments[row].tolist() == oracle.segments(pieces, S)
