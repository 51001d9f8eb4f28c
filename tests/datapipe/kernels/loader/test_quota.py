"""The walk down the split tree equals its oracle, to the last integer, for weights of any size it accepts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datapipe.kernels.loader import quota
from tests.oracles import quota as oracle

totals_and_lefts = st.integers(2, 2**62 - 1).flatmap(lambda total: st.tuples(st.just(total), st.integers(1, total - 1)))


@pytest.mark.medium
@settings(deadline=None, max_examples=100)
@given(totals_and_lefts, st.integers(0, 2**52))
@example((2**62 - 1, 2**62 - 2), 2**52)
@example((2**31, 2**31 - 1), 2**52)
@example((2**31 - 1, 1), 2**52)
def test_descend_one_split_equals_oracle(weights: tuple[int, int], start: int) -> None:
    total, left = weights
    tree = [np.array([value], np.int64) for value in (left, total, ~0, ~1)]
    samples = np.arange(start, start + 8, dtype=np.int64)
    leaves, ordinals = np.empty(8, np.int64), np.empty(8, np.int64)
    quota.descend(samples, *tree, leaves, ordinals)
    expected = [oracle.descend(sample, [left], [total], [~0], [~1]) for sample in samples.tolist()]
    assert list(zip(leaves.tolist(), ordinals.tolist())) == expected


def test_descend_tree_of_three_equals_oracle() -> None:
    columns = [[5, 2], [9, 5], [1, ~0], [~2, ~1]]
    samples = np.arange(500)
    leaves, ordinals = np.empty(500, np.int64), np.empty(500, np.int64)
    quota.descend(samples, *(np.array(column, np.int64) for column in columns), leaves, ordinals)
    expected = [oracle.descend(sample, *columns) for sample in range(500)]
    assert list(zip(leaves.tolist(), ordinals.tolist())) == expected


def test_descend_without_nodes_is_one_leaf() -> None:
    empty, leaves, ordinals = np.zeros(0, np.int64), np.empty(3, np.int64), np.empty(3, np.int64)
    quota.descend(np.array([0, 7, 10**15]), empty, empty, empty, empty, leaves, ordinals)
    assert (leaves.tolist(), ordinals.tolist()) == ([0, 0, 0], [0, 7, 10**15])
