from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from datapipe.config.problems import ProblemsError, problems_error
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
    ("value", "expected"),
    [
        ({"ratio": "slowly"}, "ratio: found 'slowly', expected a number or auto."),
        ({"ratio": "aut"}, "ratio: found 'aut', expected a number or auto. Did you mean 'auto'?"),
        ({"shape": "squere"}, "shape: found 'squere', expected one of: round, square. Did you mean 'square'?"),
        ({"label": "long"}, "label: found 'long', expected text of at most 3 characters."),
        ({"label": "A"}, "label: found 'A', expected text that matches ^[a-z]+$."),
        ({"inner": {"size": 12}}, "inner.size: found 12, expected less than 9."),
        ({"inner": 4}, "inner: found 4, expected a mapping with keys of: size."),
        ({"many": {"k": [{"sise": 0}]}}, "many.k[0].sise: unknown key. Did you mean 'size'? Expected one of: size."),
        ({"many": {"k": {}}}, "many.k: found an empty mapping, expected a list."),
        ({"checked": 1}, "checked: found 1, expected an even number."),
        ({"checked": 2}, "checked: two is not for you."),
        ({"checked": 3}, "checked.a[0]: first.\nchecked.b: second."),
    ],
)
def test_problem_says_what_was_found_and_expected(value: dict[str, object], expected: str):
    assert "\n".join(lines({"needed": "x"} | value)) == expected


def test_unknown_keys_come_before_missing_ones():
    assert [line.split(". ")[0] for line in lines({"needded": "x"})] == ["needded: unknown key", "needed: missing"]


def test_more_than_ten_problems_are_counted():
    found = lines({"needed": "x"} | {f"k{index}": 1 for index in range(14)})
    assert len(found) == 11
    assert found[-1] == "… and 4 more."
