"""The walk down the split tree equals its oracle, to the last integer, for weights of any size it accepts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datapipe.kernels.tokens import quota
from tests.oracles import quota as oracle

totals_and_lefts = st.integers(2, 2**62 - 1).flatmap(lambda total: st.tuples(st.just(total), st.integers(1, total - 1)))


def assign(samples: np.ndarray, *columns: list[int]) -> list[tuple[int, int]]:
    """Leaf and ordinal of each sample, for a tree given by the columns of its nodes."""
    nodes = np.array(columns, np.int64).reshape(4, -1).T.copy()
    leaves = np.array([(leaf, 0) for leaf in range(len(nodes) + 1)])
    sources, ordinals = np.empty(len(samples), np.int64), np.empty(len(samples), np.int64)
    assert quota.assign(samples, 0, 1 << 62, nodes, leaves, sources, ordinals) == 0
    return list(zip(sources.tolist(), ordinals.tolist()))


@pytest.mark.medium
@settings(deadline=None, max_examples=100)
@given(totals_and_lefts, st.integers(0, 2**52))
@example((2**62 - 1, 2**62 - 2), 2**52)
@example((2**31, 2**31 - 1), 2**52)
@example((2**31 - 1, 1), 2**52)
def test_assign_one_split_equals_oracle(weights: tuple[int, int], start: int) -> None:
    total, left = weights
    samples = np.arange(start, start + 8, dtype=np.int64)
    expected = [oracle.descend(sample, [left], [total], [~0], [~1]) for sample in samples.tolist()]
    assert assign(samples, [left], [total], [~0], [~1]) == expected


def test_assign_tree_of_three_equals_oracle() -> None:
    columns = [[5, 2], [9, 5], [1, ~0], [~2, ~1]]
    assert assign(np.arange(500), *columns) == [oracle.descend(sample, *columns) for sample in range(500)]
