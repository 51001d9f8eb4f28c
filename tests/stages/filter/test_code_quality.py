"""Each rule on source files by hand: a file that it drops, its neighbour that passes, and the value it measured."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from datapipe.columns import make_keys
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from stages.filter.code_quality import CodeQuality

_FREE: dict[str, Any] = {
    "max_lines": None,
    "max_mean_line_length": None,
    "max_line_length": None,
    "min_alphanumeric": None,
    "min_alphabetic": None,
    "generated_marks": [],
    "max_encoded_run": None,
    "max_encoded_share": None,
    "drop_xml": False,
}
CODE = "def area(width, height):\n    # the area of a rectangle\n    return width * height\n"


def _result(text: str, stage: CodeQuality) -> tuple[str | None, float]:
    keys = make_keys(1, np.array([0], np.uint64))
    columns = [keys, pa.array(["a"], pa.large_string()), pa.array([text], pa.large_string())]
    result = stage.process(DocumentBatch(pa.RecordBatch.from_arrays(columns, schema=pa.schema(BASE_FIELDS))))
    return (None if result.keep[0] else stage.rules()[result.rule[0]].name), float(result.value[0])


def _judge(text: str, **options: Any) -> tuple[str | None, float]:
    """The rule that drops the text, or None, and the value; rules that are not given are off."""
    return _result(text, CodeQuality.model_validate(_FREE | options))


def _limits(**options: Any) -> dict[str, Any]:
    return CodeQuality.model_validate(options).model_dump(exclude={"mode", "profile", "generated_lines"})


def test_code_quality_defaults_are_those_of_starcoder2() -> None:
    assert _limits() == _limits(profile="starcoder2")
    assert [rule.limit for rule in CodeQuality().rules()] == [100_000, 100, 1000, 0.25, 1024, 0.5, 0]


def test_code_quality_profiles_hold_what_was_published() -> None:
    stack = _FREE | {"max_mean_line_length": 100, "max_line_length": 1000, "min_alphanumeric": 0.25, "generated_marks": ()}
    assert _limits(profile="the_stack") == stack
    assert _limits(profile="starcoder") == stack | {"min_alphabetic": 0.25, "drop_xml": True}


def test_code_quality_given_values_win_over_the_profile() -> None:
    assert _limits(profile="the_stack", max_line_length=7, min_alphanumeric=None) == _limits(profile="the_stack") | {
        "max_line_length": 7,
        "min_alphanumeric": None,
    }


def test_code_quality_options_in_json_are_as_strict_as_without_a_profile() -> None:
    stage = CodeQuality.model_validate_json(
        '{"profile": "the_stack", "generated_marks": ["do not edit"], "max_mean_line_length": 80}', strict=True
    )
    assert stage.generated_marks == ("do not edit",)
    assert stage.min_alphabetic is None
    with pytest.raises(ValidationError):
        CodeQuality.model_validate_json('{"profile": "the_stack", "max_lines": "7"}', strict=True)
    with pytest.raises(ValidationError, match="starcoder2"):
        CodeQuality.model_validate({"profile": "starcoder3"})


@pytest.mark.parametrize("profile", ["the_stack", "starcoder", "starcoder2"])
def test_code_quality_code_is_kept_without_a_value(profile: str) -> None:
    rule, value = _result(CODE, CodeQuality.model_validate({"profile": profile}))
    assert rule is None
    assert math.isnan(value)


def test_code_quality_empty_file_has_too_few_alphabetic() -> None:
    assert _result("", CodeQuality()) == ("too_few_alphabetic", 0)
    assert _judge("", max_lines=0, max_mean_line_length=0, max_line_length=0, max_encoded_share=0)[0] is None


def test_code_quality_last_line_needs_no_newline() -> None:
    assert _judge("a\nb\n", max_lines=1) == _judge("a\nb", max_lines=1) == ("too_many_lines", 2)
    assert _judge("\n\n", max_lines=1) == ("too_many_lines", 2)
    assert _judge("a\nb\n", max_lines=2)[0] is None


def test_code_quality_line_lengths_are_in_characters_as_they_stand() -> None:
    assert _judge("  é中\t\n\nab", max_line_length=4) == ("line_length", 5)
    assert _judge("  é中\t\n\nab", max_mean_line_length=2) == ("mean_line_length", 7 / 3)
    assert _judge("ab\r\n", max_line_length=2) == ("line_length", 3)
    assert _judge("  é中\t\n\nab", max_line_length=5, max_mean_line_length=2.4)[0] is None


def test_code_quality_letters_and_digits_of_any_script_count() -> None:
    assert _judge("aé中1٣+-*/\n", min_alphanumeric=0.6) == ("too_few_alphanumeric", 0.5)
    assert _judge("aé中1٣+-*/\n", min_alphabetic=0.5) == ("too_few_alphabetic", 0.3)
    assert _judge("aé中1٣+-*/\n", min_alphanumeric=0.5, min_alphabetic=0.3)[0] is None
    assert _judge("ab1+", min_alphabetic=0.6) == ("too_few_alphabetic", 0.5)


def test_code_quality_generated_marks_are_sought_in_the_first_lines() -> None:
    marks = {"generated_marks": ["auto-generated", "Do not edit"]}
    assert _judge("\n\n\n\n# AUTO-Generated\n", **marks) == ("generated", 1)
    assert _judge("// DO NOT EDIT", **marks) == ("generated", 1)
    assert _judge("\n\n\n\n\n# auto-generated\n", **marks)[0] is None
    assert _judge("\n\n\n\n\n# auto-generated\n", generated_lines=6, **marks)[0] == "generated"
    assert _judge("# auto-\ngenerated, do  not edit", **marks)[0] is None


def test_code_quality_empty_mark_is_refused() -> None:
    with pytest.raises(ValidationError, match="empty text"):
        CodeQuality(generated_marks=("",))


def test_code_quality_xml_declaration_is_sought_in_the_first_100_characters() -> None:
    assert _judge("é" * 86 + '<?xml version="1.0"?>', drop_xml=True) == ("xml", 1)
    assert _judge("é" * 87 + '<?xml version="1.0"?>', drop_xml=True)[0] is None


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
    rule, value = _judge(text, max_encoded_run=0)
    assert (rule, value) == (("encoded_run", length) if length else (None, value))
    share, measured = _judge(text, max_encoded_share=0)
    assert (share, measured) == (("encoded_share", length / len(text)) if length else (None, measured))


def test_code_quality_runs_of_two_kinds_count_once() -> None:
    text = "\n".join(["12"] * 30) + ";" * 11
    assert _judge(text, max_encoded_share=0) == ("encoded_share", 0.89)


def test_code_quality_longest_run_may_be_as_long_as_the_limit() -> None:
    assert _judge("A" * 1024 + ";" + "A" * 1024, max_encoded_run=1024)[0] is None
    assert _judge("A" * 1025, max_encoded_run=1024) == ("encoded_run", 1025)
