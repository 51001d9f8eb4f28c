"""Weights by temperature and UniMax: limits, exactness and epoch caps."""

from fractions import Fraction
from math import gcd
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.config import Mixture, WeightPhase
from datapipe.errors import DatapipeError
from datapipe.steps.weighting import bounded, by_temperature, sample_fractions, sample_quotas, shares_of, weight_phases
from datapipe.weights import MAX_WEIGHT_SUM

Tokens = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 10**13), min_size=1)


def _unimax(caps: dict[str, Fraction], budget: int) -> dict[str, Fraction]:
    return sample_quotas(caps, dict.fromkeys(caps, Fraction(1)), budget)


def mixture_of(sources: dict[str, dict[str, Any]], **mixture: Any) -> Mixture:
    data = {"name": "m", "output": "o", "sources": {name: {"path": "a"} | source for name, source in sources.items()}}
    return Mixture.model_validate(data | {"mixture": mixture})


@given(tokens=Tokens, temperature=st.fractions(1, 100, max_denominator=50))
@settings(deadline=None, max_examples=40)
def test_temperature_keeps_the_order_is_even_when_high_and_proportional_at_one(tokens, temperature):
    weights = by_temperature(tokens, temperature)
    assert gcd(*weights.values()) == 1
    assert min(weights.values()) > 0
    assert sum(weights.values()) < MAX_WEIGHT_SUM
    names = sorted(tokens, key=lambda name: (tokens[name], name))
    for small, large in zip(names, names[1:]):
        assert weights[large] / weights[small] * (1 + 1e-9) >= 1
    high = by_temperature(tokens, Fraction(10**9))
    assert max(high.values()) / min(high.values()) < 1 + 1e-6
    proportional = by_temperature(tokens, Fraction(1))
    for name, count in tokens.items():
        share = Fraction(proportional[name], sum(proportional.values()))
        assert abs(share - Fraction(count, sum(tokens.values()))) < Fraction(len(tokens), 10**12)


@pytest.mark.slow
@given(
    caps=st.dictionaries(st.integers(0, 30), st.fractions(1, 10**6, max_denominator=8), min_size=1),
    budget=st.integers(1, 10**6),
)
def test_unimax_never_passes_a_cap_spends_the_budget_and_is_even_where_not_capped(caps, budget):
    shares = _unimax(caps, budget)
    assert shares.keys() == caps.keys()
    assert all(0 < shares[name] <= caps[name] for name in caps)
    assert sum(shares.values()) == min(budget, sum(caps.values()))
    free = {shares[name] for name in caps if shares[name] < caps[name]}
    assert len(free) <= 1
    assert all(shares[name] <= even for even in free for name in caps)


def test_unimax_shares_what_small_sources_cannot_give():
    assert _unimax({"a": Fraction(1800), "b": Fraction(180), "c": Fraction(20)}, 600) == {"a": 400, "b": 180, "c": 20}
    sources = {name: {"max_epochs": 2} for name in "abc"}
    mixture = mixture_of(sources, weighting="unimax", tokens=600)
    (phase,) = weight_phases(mixture, {"a": 900, "b": 90, "c": 10})
    assert phase == WeightPhase(until_tokens=None, weights={"a": 20, "b": 9, "c": 1})


def test_unimax_stays_below_the_cap_by_the_rows_that_quotas_may_be_ahead():
    mixture = mixture_of({"a": {"max_epochs": 1.5}, "b": {}}, weighting="unimax", tokens=10_000, max_epochs=1000)
    (phase,) = weight_phases(mixture, {"a": 1000, "b": 50_000}, spare=32)
    assert Fraction(phase.weights["a"], sum(phase.weights.values())) == Fraction(1500 - 32, 10_000)


def test_sources_without_weight_or_tokens_are_not_drawn():
    sources = {"a": {}, "b": {}, "held": {"weight": 0}}
    mixture = mixture_of(sources, weighting="temperature", temperature=2)
    (phase,) = weight_phases(mixture, {"a": 16, "b": 0, "held": 9})
    assert phase.weights == {"a": 1, "b": 0, "held": 0}
    with pytest.raises(DatapipeError, match=r"nothing to train on.*without: a, b"):
        weight_phases(mixture, {"held": 9})
    assert shares_of(mixture, {}) == {"a": Fraction(1, 2), "b": Fraction(1, 2), "held": 0}


def test_phases_keep_their_weights_except_of_empty_sources():
    phases = [{"until": "50%", "weights": {"a": 1, "b": 1}}, {"until": 1, "weights": {"a": 2, "b": 1}}]
    mixture = mixture_of({"a": {}, "b": {}}, tokens=100, phases=phases)
    assert weight_phases(mixture, {"a": 5, "b": 5}) == mixture.weight_phases()
    assert [phase.weights for phase in weight_phases(mixture, {"a": 5})] == [{"a": 1, "b": 0}, {"a": 2, "b": 0}]


def test_weights_of_too_many_digits_are_bounded():
    weights = bounded({"a": Fraction(10**30 + 1), "b": Fraction(10**29), "c": Fraction(1, 7)})
    assert sum(weights.values()) < MAX_WEIGHT_SUM
    assert weights["a"] / weights["b"] == pytest.approx(10)
    assert weights["c"] == 1


# ------------------------------------------------------------------------------------------------ the tokenizer's sample


def quotas(sizes: dict[str, int], shares: dict[str, int], sample_bytes: int) -> dict[str, Fraction]:
    total = sum(shares.values())
    return sample_quotas(
        {name: Fraction(size) for name, size in sizes.items()},
        {name: Fraction(share, total) for name, share in shares.items()},
        sample_bytes,
    )


@pytest.mark.parametrize(
    ("sizes", "shares", "expected"),
    [
        ({"a": 1000, "b": 1000}, {"a": 3, "b": 1}, {"a": 75, "b": 25}),  # by weight, whatever the sizes
        ({"a": 9000, "b": 30}, {"a": 3, "b": 1}, {"a": 75, "b": 25}),
        ({"a": 1000, "b": 10, "c": 1000}, {"a": 2, "b": 1, "c": 1}, {"a": 60, "b": 10, "c": 30}),  # b is short
        ({"a": 40, "b": 10, "c": 1000}, {"a": 2, "b": 1, "c": 1}, {"a": 40, "b": 10, "c": 50}),  # then a is, too
        ({"a": 40, "b": 10}, {"a": 1, "b": 1}, {"a": 40, "b": 10}),  # all there is
        ({"a": 1000, "b": 1000}, {"a": 1, "b": 0}, {"a": 100, "b": 0}),  # never drawn, never sampled
        ({"a": 0, "b": 1000}, {"a": 1, "b": 1}, {"a": 0, "b": 100}),  # kept nothing
        ({"a": 0}, {"a": 1}, {"a": 0}),
    ],
)
def test_quotas_follow_weights_as_far_as_there_is_text(sizes, shares, expected):
    assert quotas(sizes, shares, 100) == expected == quotas(dict(reversed(sizes.items())), shares, 100)


def test_fractions_are_of_the_training_split():
    shares = {"a": Fraction(1, 2), "b": Fraction(1, 2)}
    fractions = sample_fractions({"a": 200, "b": 800}, shares, 200, validation=0.5)
    assert fractions == {"a": 1.0, "b": 0.25}
    assert sample_fractions({"a": 0, "b": 0}, shares, 200, validation=0.0) == {"a": 0.0, "b": 0.0}
