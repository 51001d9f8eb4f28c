"""Bins of distributions: every number lies in one, between its edges."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datapipe.kernels.distributions import LAST_BIN, bin_edges, bins_of


@given(st.floats(min_value=-(2.0**48), max_value=2.0**48, exclude_min=True, exclude_max=True))
def test_a_number_lies_between_the_edges_of_its_bin(value: float) -> None:
    number = int(bins_of(np.array([value]))[0])

    low, high = bin_edges(number)
    if number > 0:
        assert low <= value < high
    elif number < 0:
        assert low < value <= high
    else:
        assert abs(value) < high


def test_bins_follow_each_other_without_gaps() -> None:
    edges = [bin_edges(number) for number in range(-LAST_BIN, LAST_BIN + 1) if number]

    positive, negative = edges[LAST_BIN:], edges[:LAST_BIN]
    for of_sign in (positive, negative):
        assert all(one[1] == next_one[0] for one, next_one in zip(of_sign, of_sign[1:]))
    assert bin_edges(0) == (0.0, positive[0][0])
