"""Draws have the moments of their distribution, depend on names alone, and stay within limits."""

import numpy as np
import pytest

from datapipe.mixtures.draws import dirichlet, rounded, within

NAMES, ALPHAS = ("web", "code", "crawl/en/science/19", "books"), np.array([0.2, 1.0, 3.0, 0.8])


def test_dirichlet_has_its_mean_and_its_spread() -> None:
    shares, mean = dirichlet(NAMES, ALPHAS, 20_000, seed=1), ALPHAS / ALPHAS.sum()

    assert shares.sum(axis=1) == pytest.approx(np.ones(20_000))
    assert shares.mean(axis=0) == pytest.approx(mean, abs=0.005)
    assert shares.std(axis=0) == pytest.approx(np.sqrt(mean * (1 - mean) / (ALPHAS.sum() + 1)), rel=0.03)


def test_dirichlet_gives_these_shares_on_every_machine() -> None:
    found = [[rounded(share) for share in row] for row in dirichlet(NAMES[:3], ALPHAS[:3], 2, seed=3).tolist()]

    assert found == [["0.0017322", "0.1364", "0.86187"], ["0.038505", "0.01599", "0.9455"]]


def test_a_further_source_leaves_the_proportions_of_the_others() -> None:
    without, whole = dirichlet(NAMES[:3], ALPHAS[:3], 50, seed=7), dirichlet(NAMES, ALPHAS, 50, seed=7)

    assert whole[:, :2] / whole[:, 1:3] == pytest.approx(without[:, :2] / without[:, 1:], rel=1e-9)


def test_shares_within_limits_keep_their_proportions_where_no_limit_is() -> None:
    shares = dirichlet(NAMES, ALPHAS, 500, seed=2)
    low, high = np.array([0.0, 0.0, 0.1, 0.05]), np.array([0.3, 0.5, 0.6, 1.0])

    found = within(shares, low, high)

    assert found.sum(axis=1) == pytest.approx(np.ones(500))
    assert (found >= low - 1e-12).all()
    assert (found <= high + 1e-12).all()
    is_free = (found[:, :2] < high[:2] - 1e-9).all(axis=1) & (shares[:, :2] > 1e-9).all(axis=1)
    assert (found[:, 0] / found[:, 1])[is_free] == pytest.approx((shares[:, 0] / shares[:, 1])[is_free])


def test_shares_are_written_in_five_digits_without_exponent() -> None:
    assert [*map(rounded, (0.3729123, 1.234567e-7, 0.0, 1.0, 0.5))] == ["0.37291", "0.00000012346", "0", "1", "0.5"]
