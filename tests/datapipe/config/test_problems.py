from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from datapipe.config.problems import ProblemsError, described, known_keys, problems_error
from datapipe.config.yaml import dotted


class Inner(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    size: int = Field(default=1, gt=0, lt=9, description="How large it is. In pieces.")


class Outer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    needed: str = Field(description="What is needed. Always.")
    ratio: float | Literal["auto"] = "auto"
    shape: Literal["round", "square"] = "round"
    label: str = Field(default="x", max_length=3, pattern="^[a-z]+$")
    inner: Inner | None = None
    many: dict[str, list[Inner]] = {}
    checked: int = 0

    @field_validator("checked")
    @classmethod
    def _check(cls, value: int) -> int:
        if value == 1:
            raise ValueError("expected an even number")
        if value == 2:
            raise ValueError("two is not for you")
        if value == 3:
            raise ProblemsError([(("a", 0), "first"), (("b",), "second")])
        return value


def lines(data: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(data)
    return str(problems_error(caught.value, Outer, data, dotted)).splitlines()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, ["needed: missing. Expected: what is needed."]),
        (
            {"needded": "x"},
            [
                "needded: unknown key. Did you mean 'needed'? Expected one of: needed, ratio, shape, label, "
                "inner, many, checked.",
                "needed: missing. Expected: what is needed.",
            ],
        ),
        ({"needed": 1}, ["needed: found 1, expected text: put it in quotes."]),
        ({"needed": "x", "ratio": "slowly"}, ["ratio: found 'slowly', expected a number or auto."]),
        ({"needed": "x", "ratio": "aut"}, ["ratio: found 'aut', expected a number or auto. Did you mean 'auto'?"]),
        ({"needed": "x", "shape": "squere"}, ["shape: found 'squere', expected one of: round, square. Did you mean 'square'?"]),
        ({"needed": "x", "shape": 3}, ["shape: found 3, expected one of: round, square."]),
        ({"needed": "x", "ratio": True}, ["ratio: found true, expected a number or auto."]),
        ({"needed": "x", "label": "long"}, ["label: found 'long', expected text of at most 3 characters."]),
        ({"needed": "x", "label": "A"}, ["label: found 'A', expected text that matches ^[a-z]+$."]),
        ({"needed": "x", "inner": {"size": 0}}, ["inner.size: found 0, expected more than 0."]),
        ({"needed": "x", "inner": {"size": 12}}, ["inner.size: found 12, expected less than 9."]),
        ({"needed": "x", "inner": 4}, ["inner: found 4, expected a mapping with keys of: size."]),
        ({"needed": "x", "inner": {"sise": 0}}, ["inner.sise: unknown key. Did you mean 'size'? Expected one of: size."]),
        (
            {"needed": "x", "many": {"k": [{"sise": 0}]}},
            ["many.k[0].sise: unknown key. Did you mean 'size'? Expected one of: size."],
        ),
        ({"needed": "x", "many": {"k": {}}}, ["many.k: found an empty mapping, expected a list."]),
        ({"needed": "x", "many": 3}, ["many: found 3, expected a mapping."]),
        ({"needed": "x", "checked": 1}, ["checked: found 1, expected an even number."]),
        ({"needed": "x", "checked": 2}, ["checked: two is not for you."]),
        ({"needed": "x", "checked": 3}, ["checked.a[0]: first.", "checked.b: second."]),
        ({"needed": "x", "checked": 2.5}, ["checked: found 2.5, expected a whole number."]),
    ],
)
def test_problem_says_what_was_found_and_expected(data: object, expected: list[str]):
    assert lines(data) == expected


def test_more_than_ten_problems_are_counted():
    found = lines({"needed": "x"} | {f"k{index}": 1 for index in range(14)})
    assert len(found) == 11
    assert found[-1] == "… and 4 more."


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "nothing"),
        (True, "true"),
        ("a", "'a'"),
        ("x" * 100, f"'{'x' * 57}…'"),
        ([], "an empty list"),
        ([1], "a list"),
        ({}, "an empty mapping"),
        ({"a": 1}, "a mapping"),
        (1.5, "1.5"),
    ],
)
def test_described_points_at_a_value(value: object, words: str):
    assert described(value) == words


def test_known_keys_are_found_below_containers():
    assert known_keys(Outer, ("many", "k", 0)) == ["size"]
    assert known_keys(Outer, ("inner",)) == ["size"]
    assert known_keys(Outer, ("label", "x")) == []
