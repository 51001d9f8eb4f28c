"""Slices of a global batch make it up again, over data and context coordinates."""

from __future__ import annotations

import numpy as np
import pytest

from datapipe.errors import UserError
from datapipe.loader.share import Mesh


@pytest.mark.parametrize("size", [0, 1, 7, 9, 32])
@pytest.mark.parametrize("world", range(1, 10))
def test_rows_of_all_ranks_are_the_batch(size: int, world: int) -> None:
    batch = np.arange(size)
    parts = [batch[Mesh(data_rank=rank, data_size=world).rows(size)] for rank in range(world)]
    assert np.concatenate(parts).tolist() == batch.tolist()
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("layout", "expected"), [("contiguous", [[0, 1, 2, 3], [4, 5, 6, 7]]), ("zigzag", [[0, 1, 6, 7], [2, 3, 4, 5]])]
)
def test_columns_share_the_tokens_of_a_row(layout, expected) -> None:
    meshes = [Mesh(data_rank=0, data_size=1, context_rank=rank, context_size=2, layout=layout) for rank in range(2)]
    assert [mesh.columns(8).tolist() for mesh in meshes] == expected
    assert Mesh(data_rank=0, data_size=1).columns(8) is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"data_rank": 2, "data_size": 2}, "rank 2 of a world of 2"),
        ({"data_rank": 0, "data_size": 0}, "rank 0 of a world of 0"),
        ({"data_rank": 0, "data_size": 1, "context_rank": 3, "context_size": 2}, "context rank 3"),
        ({"data_rank": 0, "data_size": 1, "context_size": 3}, "3 equal parts"),
        ({"data_rank": 0, "data_size": 1, "context_size": 16, "layout": "zigzag"}, "32 equal parts"),
        ({"data_rank": 0, "data_size": 1, "layout": "striped"}, "contiguous or zigzag"),
    ],
)
def test_impossible_meshes_are_refused(options, reason) -> None:
    with pytest.raises(UserError, match=reason):
        Mesh(**options).check(16)
