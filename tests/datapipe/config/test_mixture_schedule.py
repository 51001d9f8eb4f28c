"""Linear schedules as staircases, and what else says how much is drawn from the sources, and when."""

from __future__ import annotations

from fractions import Fraction
from math import gcd
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from datapipe.config import Mixture, load_mixture

Share = st.integers(0, 12)


def mixture_of(own: dict[str, Any], tokens: int, phases: list[dict[str, Any]]) -> Mixture:
    sources = {name: {"path": "a", "weight": weight} for name, weight in own.items()}
    return Mixture.model_validate(
        {"name": "m", "output": "o", "sources": sources, "mixture": {"tokens": tokens, "phases": phases}}
    )


def test_linear_phase_is_a_staircase_from_the_weights_before_to_its_own():
    phases = [
        {"until": "50%", "weights": {"web": 3, "code": 1}},
        {"until": 1, "weights": {"code": 10}, "schedule": "linear", "stairs": 3},
    ]
    found = mixture_of({"web": 1, "code": 1}, 1200, phases).weight_phases()
    assert [phase.until_tokens for phase in found] == [600, 800, 1000, None]
    # web goes from 3/4 to 0: the stairs are at 1/6, 3/6 and 5/6 of the way
    assert [phase.weights for phase in found] == [
        {"web": 3, "code": 1},
        {"web": 5, "code": 3},
        {"web": 3, "code": 5},
        {"web": 1, "code": 7},
    ]


def test_linear_first_phase_begins_at_the_weights_of_the_sources():
    phases = [{"until": 1, "weights": {"code": 1}, "schedule": "linear"}]
    found = mixture_of({"web": 5, "code": 0}, 64_000, phases).weight_phases()
    assert len(found) == 64
    assert found[0].weights == {"web": 127, "code": 1}
    assert found[0].until_tokens == 1000
    assert found[-1].weights == {"web": 1, "code": 127}


@given(own=st.tuples(Share, Share), end=st.tuples(Share, Share), stairs=st.integers(2, 40))
@settings(deadline=None, max_examples=40)
def test_staircase_is_as_near_to_the_line_as_is_said(own, end, stairs):
    if not any(own) or not any(end):
        return
    length = 1000 * stairs
    phases = [{"until": 1, "weights": dict(zip("ab", end)), "schedule": "linear", "stairs": stairs}]
    mixture = mixture_of(dict(zip("ab", own)), length, phases)
    first, last = Fraction(own[0], sum(own)), Fraction(end[0], sum(end))
    drawn, start, furthest = Fraction(0), 0, Fraction(0)
    for phase in mixture.weight_phases():
        assert gcd(*phase.weights.values()) == 1
        stop = phase.until_tokens or length
        share = Fraction(phase.weights["a"], sum(phase.weights.values()))
        for at in (start, (start + stop) // 2, stop):
            line = first * at + (last - first) * Fraction(at * at, 2 * length)
            furthest = max(furthest, abs(drawn + share * (at - start) - line))
        drawn, start = drawn + share * (stop - start), stop
    assert furthest == abs(last - first) * length / (8 * stairs**2)
    assert mixture.average_shares()["a"] == drawn / length == (first + last) / 2


def test_linear_phase_between_weights_of_many_digits_is_rounded():
    linear = {"until": 1, "weights": {"a": 0.2 + 1e-17, "b": 0.1 + 0.2}, "schedule": "linear"}
    mixture = mixture_of({"a": "1/999999937", "b": 0.9999997331234567}, 100, [linear])
    start, end = Fraction(1, 999999937) / (Fraction(1, 999999937) + Fraction("0.9999997331234567")), Fraction(2, 5)
    stairs = [Fraction(phase.weights["a"], sum(phase.weights.values())) for phase in mixture.weight_phases()]
    for number, share in enumerate(stairs):
        assert float(share) == pytest.approx(float(start + (end - start) * Fraction(2 * number + 1, 128)), abs=1e-11)
    assert mixture.rounded_shares() == {}


def test_rounded_shares_tells_weights_that_are_too_small_to_count():
    phases = [{"until": 0.5, "weights": {"a": 1, "b": 1e-20}}, {"until": 1, "weights": {"a": 1, "b": 1}}]
    assert mixture_of({"a": 1, "b": 1e-20}, 100, []).rounded_shares() == {"b": (1e-20, 2.0**-40)}
    assert mixture_of({"a": 1, "b": 1}, 100, phases).rounded_shares() == {"b": (1e-20, 2.0**-40)}
    assert mixture_of({"a": 1, "b": 1e-20}, 100, phases[1:]).rounded_shares() == {}


def test_linear_phases_that_cannot_be_made_are_refused():
    linear = {"until": 1, "weights": {"a": "999999937/1000000000", "b": 1}, "schedule": "linear"}
    with pytest.raises(ValidationError, match="linear needs weights to start from"):
        mixture_of({"a": 0, "b": 0}, 100, [linear])


def test_example_of_the_mixtures_readme_is_a_mixture(tmp_path: Path):
    readme = (Path(__file__).parents[3] / "mixtures/README.md").read_text(encoding="utf-8")
    example = readme.partition("## Schedules, caps and strata")[2].split("```")[1].removeprefix("yaml\n")
    (tmp_path / "m.yaml").write_text("name: m\noutput: o\n" + example.replace("mixture:", "  code: {path: b}\nmixture:"))
    mixture = load_mixture(tmp_path / "m.yaml")
    assert len(mixture.weight_phases()) == 65
    assert mixture.average_shares()["web"] == Fraction(8, 10) * Fraction(8, 10) + Fraction(2, 10) * Fraction(6, 10)
