from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.weights import (
    MAX_WEIGHT_SUM,
    ROUNDED_SUM,
    changed_shares,
    changes_in_words,
    exact_integers,
    exact_number,
    integer_weights,
    proportions,
)


def exact(weights: object) -> dict[str, Fraction]:
    return {f"s{number:03}": exact_number(weight) for number, weight in enumerate(weights)}


def proportions_of(whole: dict[str, int]) -> dict[str, Fraction]:
    return {name: Fraction(weight, sum(whole.values())) for name, weight in whole.items()}


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([Fraction("0.7"), Fraction("0.3")], [7, 3]),
        ([4, 6, 0], [2, 3, 0]),
        ([Fraction(1, 3), Fraction(1, 7)], [7, 3]),
        ([Fraction("0.35")], [1]),
        ([2**61 - 1, 2**61], [2**61 - 1, 2**61]),  # not rounded
    ],
)
def test_integer_weights_are_the_smallest_in_proportion(weights: list[Fraction], expected: list[int]):
    whole = integer_weights(exact(weights))
    assert list(whole.values()) == expected
    assert list(proportions(whole).values()) == [weight / sum(expected) for weight in expected]
    assert changed_shares(exact(weights), whole) == {}


@given(st.dictionaries(st.text(), st.fractions(min_value=0, max_value=100, max_denominator=1000), min_size=1))
def test_exact_integers_keep_every_proportion(weights: dict[str, Fraction]):
    total = sum(weights.values())
    if not total:
        return
    whole = exact_integers(weights)
    assert proportions_of(whole) == {name: weight / total for name, weight in weights.items()}
    assert integer_weights(weights) == whole or sum(whole.values()) >= MAX_WEIGHT_SUM


@pytest.mark.parametrize("weights", [{}, {"a": Fraction(0)}, {"a": Fraction(-1), "b": Fraction(2)}])
def test_integer_weights_that_nothing_follows_from_are_refused(weights: dict[str, Fraction]):
    with pytest.raises(ValueError):
        integer_weights(weights)


positive = st.fractions(min_value=0, max_denominator=10**20) | st.floats(0, 1e300).map(exact_number)


@given(st.dictionaries(st.text(), positive, min_size=1).filter(lambda weights: any(weights.values())))
def test_integer_weights_of_anything_can_be_counted_and_no_share_vanishes(weights: dict[str, Fraction]):
    counted = integer_weights(weights)
    assert 0 < sum(counted.values()) < MAX_WEIGHT_SUM
    assert {name for name, weight in counted.items() if weight} == {name for name, weight in weights.items() if weight}
    assert integer_weights(dict(reversed(weights.items()))) == counted  # the order of the sources does not count
    assert integer_weights({name: Fraction(weight) for name, weight in counted.items()}) == counted
    total, raised = sum(weights.values()), sum(0 < weight * ROUNDED_SUM < sum(weights.values()) for weight in weights.values())
    for name, share in proportions_of(counted).items():  # units that tiny shares are raised to are missing elsewhere
        assert abs(share - weights[name] / total) <= Fraction(1 + raised, ROUNDED_SUM)


def test_changed_shares_tells_what_is_more_than_noise():
    given = exact([1.0, 1e-30, 0.1 + 0.2])
    changed = changed_shares(given, integer_weights(given))
    assert changed == {"s001": (pytest.approx(1e-30 / 1.3), 2.0**-40)}
    assert "'s001'" in changes_in_words(changed)
    noisy = exact([0.1 + 0.2] * 3 + [0.1 * 3, 1 / 3, 1e-3 / 3, 0.7])
    assert changed_shares(noisy, integer_weights(noisy)) == {}


@pytest.mark.parametrize(
    "value", [True, None, "", "x", "1/0", "1e999999999", float("nan"), float("inf"), np.float64("nan"), [1], 1j, b"1"]
)
def test_exact_number_of_anything_else_is_refused(value: object):
    with pytest.raises(ValueError):
        exact_number(value)
