"""Limits in each unit, and that the limits themselves pass."""

from __future__ import annotations

import pytest

from stages.filter.length import Length
from tests.support.decisions import reasons
from tests.support.global_stages import batch_of

TEXTS = ["", "one", "zwölf 中", "four words are here"]
LENGTHS = {"bytes": [0, 3, 10, 19], "chars": [0, 3, 7, 19], "words": [0, 1, 2, 4]}


@pytest.mark.parametrize("unit", LENGTHS)
def test_length_each_unit_is_compared_with_its_limits(unit: str) -> None:
    shortest, least, most, longest = LENGTHS[unit]
    stage = Length.model_validate({f"min_{unit}": least, f"max_{unit}": most})
    assert reasons(stage, batch_of(TEXTS)) == [f"too_few_{unit}", None, None, f"too_many_{unit}"]
    assert stage.process(batch_of(TEXTS)).value[[0, 3]].tolist() == [shortest, longest]
    assert reasons(stage, batch_of(TEXTS).slice(2, 4)) == [None, f"too_many_{unit}"]


def test_length_first_rule_that_fails_gives_the_reason_and_no_rule_keeps_everything() -> None:
    assert reasons(Length(min_chars=5, min_words=2), batch_of(["one", "longer"])) == ["too_few_chars", "too_few_words"]
    assert reasons(Length(), batch_of(TEXTS)) == [None] * 4
