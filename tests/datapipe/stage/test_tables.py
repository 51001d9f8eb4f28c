"""The top bit of ranks: who is of this run, and who was there before."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe.errors import UserError
from datapipe.stage.tables import as_reference, is_new, new_bit, source_rank


def test_source_rank_is_of_this_run_and_ascends_with_the_place() -> None:
    ranks = [source_rank(place) for place in (None, 0, 1, 32_767)]
    assert [int(rank) for rank in ranks] == [0x8000, 0x8000, 0x8001, 0xFFFF]
    assert {rank.dtype for rank in ranks} == {np.dtype(np.uint16)}
    with pytest.raises(UserError, match="source number 32,769, expected at most 32,768 sources"):
        source_rank(32_768)


@pytest.mark.parametrize("kind", [np.uint16, np.uint64])
def test_as_settled_clears_the_bit_that_is_new_asks_for(kind: type) -> None:
    ranks = np.array([0, 3, new_bit(kind), new_bit(kind) + kind(3)], kind)
    rows = pa.record_batch({"hash": np.zeros(4, np.uint64), "rank": ranks})
    assert is_new(rows).tolist() == [False, False, True, True]
    old = as_reference(rows)
    assert old.schema == rows.schema
    assert old.column("rank").to_pylist() == [0, 3, 0, 3]
