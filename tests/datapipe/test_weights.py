from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.weights import (
    MAX_WEIGHT_SUM,
    NOISE,
    ROUNDED_SUM,
    changed_shares,
    changes_in_words,
    exact_integers,
    exact_number,
    integer_weights,
    proportions,
)


def test_integer_weights_are_the_smallest_in_proportion():
    assert integer_weights({"web": Fraction("0.7"), "code": Fraction("0.3")}) == {"web": 7, "code": 3}
    assert integer_weights({"a": Fraction(4), "b": Fraction(6), "c": Fraction(0)}) == {"a": 2, "b": 3, "c": 0}
    assert integer_weights({"a": Fraction(1, 3), "b": Fraction(1, 7)}) == {"a": 7, "b": 3}
    assert integer_weights({"only": Fraction("0.35")}) == {"only": 1}


@given(st.dictionaries(st.text(), st.fractions(min_value=0, max_value=100, max_denominator=1000), min_size=1))
def test_exact_integers_keep_every_proportion(weights: dict[str, Fraction]):
    total = sum(weights.values())
    if not total:
        return
    whole = exact_integers(weights)
    assert proportions_of(whole) == {name: weight / total for name, weight in weights.items()}
    assert integer_weights(weights) == whole or sum(whole.values()) >= MAX_WEIGHT_SUM


def proportions_of(whole: dict[str, int]) -> dict[str, Fraction]:
    return {name: Fraction(weight, sum(whole.values())) for name, weight in whole.items()}


@pytest.mark.parametrize("weights", [{}, {"a": Fraction(0)}, {"a": Fraction(-1), "b": Fraction(2)}])
def test_integer_weights_that_nothing_follows_from_are_refused(weights: dict[str, Fraction]):
    with pytest.raises(ValueError, match="at least one above 0"):
        integer_weights(weights)


def test_proportions_add_up_to_one():
    assert proportions({"web": 7, "code": 3, "off": 0}) == {"web": 0.7, "code": 0.3, "off": 0.0}


def exact(weights: object) -> dict[str, Fraction]:
    return {f"s{number:03}": exact_number(weight) for number, weight in enumerate(weights)}


positive = st.fractions(min_value=0, max_denominator=10**20) | st.floats(0, 1e300).map(exact_number)


@given(st.dictionaries(st.text(), positive, min_size=1).filter(lambda weights: any(weights.values())))
def test_integer_weights_of_anything_can_be_counted_and_no_share_vanishes(weights: dict[str, Fraction]):
    counted = integer_weights(weights)
    assert 0 < sum(counted.values()) < MAX_WEIGHT_SUM
    assert {name for name, weight in counted.items() if weight} == {name for name, weight in weights.items() if weight}
    again = dict(reversed(weights.items()))
    assert integer_weights(again) == counted  # the order of the sources does not count
    assert integer_weights({name: Fraction(weight) for name, weight in counted.items()}) == counted
    total, raised = sum(weights.values()), sum(0 < weight * ROUNDED_SUM < sum(weights.values()) for weight in weights.values())
    for name, share in proportions_of(counted).items():  # units that tiny shares are raised to are missing elsewhere
        assert abs(share - weights[name] / total) <= Fraction(1 + raised, ROUNDED_SUM)


@pytest.mark.parametrize(
    "weights",
    [
        np.array([0.0733, 0.0164, 0.6625, 0.0549, 0.1929], np.float32),
        [round(0.001 * number, 3) * 1.1 / 1.1 + 1e-17 for number in range(1, 501)],
        [Fraction(1, prime) for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)],
        [1, 1e-30, 1e30],
        [1e-300, 1e300],
    ],
)
def test_weights_of_any_digits_can_be_counted(weights: list[float]):
    counted = integer_weights(exact(weights))
    assert sum(counted.values()) < MAX_WEIGHT_SUM
    assert all(type(weight) is int and weight > 0 for weight in counted.values())


def test_weights_that_can_be_counted_exactly_are_not_rounded():
    exact_weights = {"a": Fraction(2**61 - 1), "b": Fraction(2**61)}
    assert integer_weights(exact_weights) == {"a": 2**61 - 1, "b": 2**61}
    assert changed_shares(exact_weights, integer_weights(exact_weights)) == {}


def test_changed_shares_tells_what_is_more_than_noise():
    given = exact([1.0, 1e-30, 0.1 + 0.2])
    counted = integer_weights(given)
    assert changed_shares(given, counted) == {"s001": (pytest.approx(1e-30 / 1.3), 2.0**-40)}
    assert "'s001' from 7.69e-31 to 9.09e-13" in changes_in_words(changed_shares(given, counted))
    noisy = exact([0.1 + 0.2] * 3 + [0.1 * 3, 1 / 3, 1e-3 / 3, 0.7])
    assert changed_shares(noisy, integer_weights(noisy)) == {}
    assert Fraction(1, 1000) > NOISE


@pytest.mark.parametrize(
    "value", [True, None, "", "x", "1/0", "1e999999999", float("nan"), float("inf"), np.float64("nan"), [1], 1j, b"1"]
)
def test_exact_number_of_anything_else_is_refused(value: object):
    with pytest.raises(ValueError, match=r"not a number|not finite|exponent"):
        exact_number(value)
