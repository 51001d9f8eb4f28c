"""Each rule on source files: a file that it drops, with the value it measured; at a limit of that value the file passes."""

from __future__ import annotations

import base64
import math
from typing import Any

import pytest
from pydantic import ValidationError

from stages.filter.code_quality import CodeQuality
from tests.support.decisions import assert_decides, decision

_LIMITS = ("max_lines", "max_mean_line_length", "max_line_length", "min_alphanumeric", "min_alphabetic")
FREE: dict[str, Any] = dict.fromkeys((*_LIMITS, "max_encoded_run", "max_encoded_share")) | {
    "generated_marks": [],
    "drop_xml": False,
}
"""Every rule is off."""

CODE = "def area(width, height):\n    # the area of a rectangle\n    return width * height\n"
WIDE = "  é中\t\n\nab"
MIXED = "aé中1٣+-*/\n"
MARKS = {"generated_marks": ["auto-generated", "Do not edit"]}
BEHIND = "\n\n\n\n\n# auto-generated\n"
XML = '<?xml version="1.0"?>'

CASES: list[tuple[dict[str, Any], str, str | None, float]] = [
    ({"max_lines": 1}, "a\nb\n", "too_many_lines", 2),
    ({"max_lines": 1}, "a\nb", "too_many_lines", 2),  # the last line needs no newline
    ({"max_lines": 1}, "\n\n", "too_many_lines", 2),
    ({"max_lines": 0, "max_mean_line_length": 0, "max_line_length": 0, "max_encoded_share": 0}, "", None, 0),
    ({"max_line_length": 4}, WIDE, "line_length", 5),  # in characters, as they stand
    ({"max_mean_line_length": 2}, WIDE, "mean_line_length", 7 / 3),
    ({"max_line_length": 2}, "ab\r\n", "line_length", 3),
    ({"min_alphanumeric": 0.6}, MIXED, "too_few_alphanumeric", 0.5),
    ({"min_alphabetic": 0.5}, MIXED, "too_few_alphabetic", 0.3),
    ({"min_alphabetic": 0.6}, "ab1+", "too_few_alphabetic", 0.5),
    (MARKS, "\n\n\n\n# AUTO-Generated\n", "generated", 1),
    (MARKS, "// DO NOT EDIT", "generated", 1),
    (MARKS, BEHIND, None, 0),
    (MARKS | {"generated_lines": 6}, BEHIND, "generated", 1),
    (MARKS, "# auto-\ngenerated, do  not edit", None, 0),
    ({"drop_xml": True}, "é" * 86 + XML, "xml", 1),  # in the first 100 characters
    ({"drop_xml": True}, "é" * 87 + XML, None, 0),
    ({"max_encoded_share": 0}, "\n".join(["12"] * 30) + ";" * 11, "encoded_share", 0.89),  # runs of two kinds count once
    ({"max_encoded_run": 1023}, "A" * 1024 + ";" + "A" * 1024, "encoded_run", 1024),
]


@pytest.mark.parametrize(("options", "text", "rule", "value"), CASES)
def test_code_quality_file_is_decided_by_rule_and_value(
    options: dict[str, Any], text: str, rule: str | None, value: float
) -> None:
    assert_decides(CodeQuality, FREE | options, text, rule, value)


@pytest.mark.parametrize(
    ("run", "length"),
    [
        ("A" * 64, 64),
        ("A" * 63, 0),
        (base64.encodebytes(bytes(90)).decode(), 122),
        (",".join(["0x1f"] * 8), 39),
        (",".join(["0x1f"] * 7), 0),
        ("de ad be ef 00 11 22 33 ", 24),
        (r"\x48\x31\xc0\x50\x68\x2f\x2f\x73\x68", 32),  # the first has no border before it, as in the published expression
        (r"\u00e9" * 8, 48),
        (r"\u00e9" * 7, 0),
        ("0x1f, " * 100, 0),
    ],
)
def test_code_quality_encoded_runs_are_those_of_the_paper(run: str, length: int) -> None:
    text = f'x = "{run}"; y = 1'
    assert_decides(CodeQuality, FREE | {"max_encoded_run": 0}, text, "encoded_run" if length else None, length)
    share = length / len(text)
    assert_decides(CodeQuality, FREE | {"max_encoded_share": 0}, text, "encoded_share" if length else None, share)


def _limits(**options: Any) -> dict[str, Any]:
    return CodeQuality.model_validate(options).model_dump(exclude={"mode", "profile", "generated_lines"})


def test_code_quality_profiles_hold_what_was_published_and_given_values_win() -> None:
    stack = FREE | {"max_mean_line_length": 100, "max_line_length": 1000, "min_alphanumeric": 0.25, "generated_marks": ()}
    assert _limits(profile="the_stack") == stack
    assert _limits(profile="starcoder") == stack | {"min_alphabetic": 0.25, "drop_xml": True}
    assert _limits() == _limits(profile="starcoder2")
    assert [rule.limit for rule in CodeQuality().rules()] == [100_000, 100, 1000, 0.25, 1024, 0.5, 0]
    changed = {"max_line_length": 7, "min_alphanumeric": None}
    assert _limits(profile="the_stack", **changed) == stack | changed


def test_code_quality_options_in_json_are_as_strict_as_without_a_profile() -> None:
    given = '{"profile": "the_stack", "generated_marks": ["do not edit"], "max_mean_line_length": 80}'
    stage = CodeQuality.model_validate_json(given, strict=True)
    assert stage.generated_marks == ("do not edit",)
    assert stage.min_alphabetic is None
    for wrong in ('{"profile": "the_stack", "max_lines": "7"}', '{"profile": "starcoder3"}', '{"generated_marks": [""]}'):
        with pytest.raises(ValidationError):
            CodeQuality.model_validate_json(wrong, strict=True)


@pytest.mark.parametrize("profile", ["the_stack", "starcoder", "starcoder2"])
def test_code_quality_code_is_kept_without_a_value(profile: str) -> None:
    rule, value = decision(CodeQuality, {"profile": profile}, CODE)
    assert rule is None
    assert math.isnan(value)


def test_code_quality_empty_file_has_too_few_alphabetic() -> None:
    assert decision(CodeQuality, {}, "") == ("too_few_alphabetic", 0)
