from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.weights import integer_weights, proportions


def test_integer_weights_are_the_smallest_in_proportion():
    assert integer_weights({"web": Fraction("0.7"), "code": Fraction("0.3")}) == {"web": 7, "code": 3}
    assert integer_weights({"a": Fraction(4), "b": Fraction(6), "c": Fraction(0)}) == {"a": 2, "b": 3, "c": 0}
    assert integer_weights({"a": Fraction(1, 3), "b": Fraction(1, 7)}) == {"a": 7, "b": 3}
    assert integer_weights({"only": Fraction("0.35")}) == {"only": 1}


@pytest.mark.medium
@given(st.dictionaries(st.text(), st.fractions(min_value=0, max_value=100, max_denominator=1000), min_size=1))
def test_integer_weights_keep_every_proportion(weights: dict[str, Fraction]):
    total = sum(weights.values())
    if not total:
        return
    whole = integer_weights(weights)
    assert {name: Fraction(weight, sum(whole.values())) for name, weight in whole.items()} == {
        name: weight / total for name, weight in weights.items()
    }


@pytest.mark.parametrize("weights", [{}, {"a": Fraction(0)}, {"a": Fraction(-1), "b": Fraction(2)}])
def test_integer_weights_that_nothing_follows_from_are_refused(weights: dict[str, Fraction]):
    with pytest.raises(ValueError, match="at least one above 0"):
        integer_weights(weights)


def test_proportions_add_up_to_one():
    assert proportions({"web": 7, "code": 3, "off": 0}) == {"web": 0.7, "code": 0.3, "off": 0.0}
