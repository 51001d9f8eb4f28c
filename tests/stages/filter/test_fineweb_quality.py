"""Each FineWeb rule by hand: a text that it drops, its neighbour that passes, and the value it measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import make_keys
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from stages.filter.fineweb_quality import FinewebQuality

FREE = {"min_ended_lines": 0, "max_short_lines": 1, "max_duplicate_line_chars": 9, "max_newlines_per_word": 9}


def _judge(text: str, **options: Any) -> tuple[str | None, float]:
    """The rule that drops the text, or None, and the value; limits that are not given let everything pass."""
    stage = FinewebQuality.model_validate(FREE | options)
    keys = make_keys(1, np.array([0], np.uint64))
    columns = [keys, pa.array(["a"], pa.large_string()), pa.array([text], pa.large_string())]
    result = stage.process(DocumentBatch(pa.RecordBatch.from_arrays(columns, schema=pa.schema(BASE_FIELDS))))
    return (None if result.keep[0] else stage.rules()[result.rule[0]].name), float(result.value[0])


def test_fineweb_quality_profiles_have_the_published_thresholds() -> None:
    assert [rule.limit for rule in FinewebQuality().rules()] == [1, 0.12, 0.67, 0.01, 0.3]
    paper = FinewebQuality.model_validate({"profile": "paper"})
    assert ([rule.limit for rule in paper.rules()], paper.words) == ([1, 0.12, 0.67, 0.1, 0.3], "whitespace")
    portuguese = FinewebQuality.model_validate({"language": "pt"})
    assert [rule.limit for rule in portuguese.rules()] == [1, 0.077, 1, 0.1, 0.186]


@pytest.mark.parametrize("text", ["", "\n \n\t", "\u3000"])
def test_fineweb_quality_text_without_lines_is_empty(text: str) -> None:
    assert _judge(text) == ("empty", 0)


def test_fineweb_quality_lines_that_end_no_sentence_are_counted() -> None:
    text = "One.\nTwo\n\nThree?\nFour. \nFive.\r\n"  # white space behind the stop is the last character
    assert _judge(text, min_ended_lines=0.5) == ("too_few_ended_lines", 2 / 5)
    assert _judge(text, min_ended_lines=0.4)[0] is None


@pytest.mark.parametrize(
    ("end", "ends"), [(".", 1), ("!", 1), ("。", 1), ("।", 1), ("؟", 1), (",", 0), ('."', 0), (")", 0), ("…", 0)]
)
def test_fineweb_quality_sentence_ends_of_every_script(end: str, ends: int) -> None:
    assert (_judge(f"word{end}", min_ended_lines=1)[0] is None) == ends


def test_fineweb_quality_text_without_any_sentence_end_may_be_allowed() -> None:
    assert _judge("one\ntwo", min_ended_lines=0.1) == ("too_few_ended_lines", 0)
    assert _judge("one\ntwo", min_ended_lines=0.1, allow_no_ended_lines=True)[0] is None
    assert _judge("one;\ntwo", min_ended_lines=0.6, sentence_ends=";") == ("too_few_ended_lines", 0.5)


def test_fineweb_quality_short_lines_are_of_at_most_thirty_characters() -> None:
    text = "é" * 30 + "\n" + "x" * 31
    assert _judge(text, max_short_lines=0.4) == ("short_lines", 0.5)
    assert _judge(" " + text, max_short_lines=0.4)[0] is None  # 31 with the white space


def test_fineweb_quality_copied_lines_are_shares_of_the_text_without_newlines() -> None:
    text = "abcd\nef\nabcd\n abcd\n"
    assert _judge(text, max_duplicate_line_chars=0.2) == ("duplicate_line_chars", 4 / 15)
    assert _judge(text, max_duplicate_line_chars=0.27)[0] is None


def test_fineweb_quality_newlines_are_counted_per_word() -> None:
    text = "one, two\n\nthree\n"  # four words as spaCy cuts, three between white space
    assert _judge(text, max_newlines_per_word=0.5) == ("newlines_per_word", 3 / 4)
    assert _judge(text, max_newlines_per_word=0.5, words="whitespace") == ("newlines_per_word", 1)
