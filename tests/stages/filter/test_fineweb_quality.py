"""Each FineWeb rule: a text that it drops, with the value it measured; at a limit of that value the text passes."""

from __future__ import annotations

from typing import Any

import pytest

from stages.filter.fineweb_quality import FinewebQuality
from tests.support.decisions import assert_decides

FREE = {"min_ended_lines": 0, "max_short_lines": 1, "max_duplicate_line_chars": 9, "max_newlines_per_word": 9}

ENDED = "One.\nTwo\n\nThree?\nFour. \nFive.\r\n"  # white space behind the stop is the last character
THIRTY = "é" * 30 + "\n" + "x" * 31
PER_WORD = "one, two\n\nthree\n"  # four words as spaCy cuts, three between white space
CASES: list[tuple[dict[str, Any], str, str | None, float]] = [
    *(({}, text, "empty", 0) for text in ("", "\n \n\t", "\u3000")),
    ({"min_ended_lines": 0.5}, ENDED, "too_few_ended_lines", 2 / 5),
    *(({"min_ended_lines": 1}, f"word{end}", None, 0) for end in ".!。।؟"),
    *(({"min_ended_lines": 1}, f"word{end}", "too_few_ended_lines", 0) for end in (",", '."', ")", "…")),
    ({"min_ended_lines": 0.1}, "one\ntwo", "too_few_ended_lines", 0),
    ({"min_ended_lines": 0.1, "allow_no_ended_lines": True}, "one\ntwo", None, 0),
    ({"min_ended_lines": 0.6, "sentence_ends": ";"}, "one;\ntwo", "too_few_ended_lines", 0.5),
    ({"max_short_lines": 0.4}, THIRTY, "short_lines", 0.5),  # of at most 30 characters
    ({"max_short_lines": 0.4}, f" {THIRTY}", None, 0),  # 31 with the white space
    ({"max_duplicate_line_chars": 0.2}, "abcd\nef\nabcd\n abcd\n", "duplicate_line_chars", 4 / 15),  # newlines do not count
    ({"max_newlines_per_word": 0.5}, PER_WORD, "newlines_per_word", 3 / 4),
    ({"max_newlines_per_word": 0.5, "words": "whitespace"}, PER_WORD, "newlines_per_word", 1),
]


@pytest.mark.parametrize(("options", "text", "rule", "value"), CASES)
def test_fineweb_quality_text_is_decided_by_rule_and_value(
    options: dict[str, Any], text: str, rule: str | None, value: float
) -> None:
    assert_decides(FinewebQuality, FREE | options, text, rule, value)


def test_fineweb_quality_profiles_have_the_published_thresholds() -> None:
    assert [rule.limit for rule in FinewebQuality().rules()] == [1, 0.12, 0.67, 0.01, 0.3]
    paper = FinewebQuality.model_validate({"profile": "paper"})
    assert ([rule.limit for rule in paper.rules()], paper.words) == ([1, 0.12, 0.67, 0.1, 0.3], "whitespace")
    portuguese = FinewebQuality.model_validate({"language": "pt"})
    assert [rule.limit for rule in portuguese.rules()] == [1, 0.077, 1, 0.1, 0.186]
