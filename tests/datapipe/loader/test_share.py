"""The slices of all data and context ranks add up to the global batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.loader import Loader
from datapipe.loader.share import Mesh, ranks_by_attention
from datapipe.loader.trace import trace_document, trace_step
from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")


@pytest.mark.parametrize("world", range(1, 10))
def test_rows_of_all_ranks_are_the_batch(world: int) -> None:
    for size in (0, 1, 7, 9, 32):
        parts = [range(size)[Mesh(data_rank=rank, data_size=world).rows(size)] for rank in range(world)]
        assert [row for part in parts for row in part] == list(range(size))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("layout", "expected"), [("contiguous", [[0, 1, 2, 3], [4, 5, 6, 7]]), ("zigzag", [[0, 1, 6, 7], [2, 3, 4, 5]])]
)
def test_columns_share_the_tokens_of_a_row(layout, expected) -> None:
    meshes = [Mesh(data_rank=0, data_size=1, context_rank=rank, context_size=2, layout=layout) for rank in range(2)]
    assert [mesh.columns(8).tolist() for mesh in meshes] == expected
    assert Mesh(data_rank=0, data_size=1).columns(8) is None


@pytest.mark.medium
@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(1, 8), max_size=4), max_size=30), st.integers(1, 9))
def test_rows_balanced_by_attention_are_the_batch_in_equal_shares(rows: list[list[int]], world: int) -> None:
    lengths = np.array([length for row in rows for length in row], np.int32)
    dealt = ranks_by_attention(lengths, np.cumsum([0, *map(len, rows)]), 32, world)
    shares = [len(range(len(rows))[Mesh(data_rank=rank, data_size=world).rows(len(rows))]) for rank in range(world)]
    assert np.bincount(dealt, minlength=world).tolist() == shares


def test_rows_balanced_by_attention_have_even_costs() -> None:
    generator = np.random.default_rng(3)
    rows = [generator.multinomial(2048, [1 / parts] * parts) for parts in generator.integers(1, 30, 256)]
    costs = np.array([(row.astype(np.int64) ** 2).sum() for row in rows])
    dealt = ranks_by_attention(np.concatenate(rows).astype(np.int32), np.cumsum([0, *map(len, rows)]), 2048, 8)
    loads = np.bincount(dealt, costs)
    contiguous = costs.reshape(8, -1).sum(axis=1)
    assert max(loads) < 1.01 * np.mean(loads) < max(contiguous) / 1.1


@pytest.mark.medium
def test_loader_and_trace_balance_by_attention_alike(tmp_path: Path) -> None:
    folder = make_snapshot(tmp_path, {"code": 31, "web": 83}, total_tokens=16 * 200)
    options: dict[str, Any] = {"global_batch_size": 9, "fields": ("input_ids", "document_keys", "labels")}
    whole = Loader(folder, **options)
    ranks = [Loader(folder, rank=rank, world_size=4, balance="attention", **options) for rank in range(4)]
    for step in range(5):
        parts = [rank.batch(step) for rank in ranks]
        firsts = [row for part in parts for row in part["input_ids"][:, 0].tolist()]
        assert sorted(firsts) == sorted(whole.batch(step)["input_ids"][:, 0].tolist())
        for rank, part in enumerate(parts):
            rows = trace_step(folder, step, global_batch_size=9, rank=rank, world_size=4, balance="attention")
            assert [row.key for row in rows] == [key.tobytes().hex() for key in part["document_keys"]]
            for row in rows[:2]:
                found = trace_document(folder, row.key, global_batch_size=9, world_size=4, balance="attention")
                assert (step, rank, row.row) in [(one.step, one.rank, one.row) for one in found]
