"""Each quality rule by hand: a text that it drops, its neighbour that passes, and the value it measured."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import make_keys
from datapipe.documents import BASE_FIELDS, DocumentBatch
from stages.filter.gopher_quality import GopherQuality


def _judge(text: str, **options: float) -> tuple[str | None, float]:
    """The rule that drops the text, or None, and the value; limits that are not given let everything pass."""
    free = {"min_words": 0, "min_mean_word_length": 0, "max_mean_word_length": 1e9, "max_hash_ratio": 1e9}
    free |= {
        "max_ellipsis_ratio": 1e9,
        "max_bullet_lines": 1,
        "max_ellipsis_lines": 1,
        "min_letter_words": 0,
        "min_stop_words": 0,
    }
    stage = GopherQuality.model_validate(free | options)
    keys = make_keys(1, np.array([0], np.uint64))
    columns = [keys, pa.array(["a"], pa.large_string()), pa.array([text], pa.large_string())]
    result = stage.process(DocumentBatch(pa.RecordBatch.from_arrays(columns, schema=pa.schema(BASE_FIELDS))))
    rule = None if result.keep[0] else stage.rules()[result.rule[0]].name
    return rule, float(result.value[0])


def test_gopher_quality_defaults_are_those_of_the_paper() -> None:
    assert [rule.limit for rule in GopherQuality().rules()] == [50, 100_000, 3, 10, 0.1, 0.1, 0.9, 0.3, 0.8, 2]


def test_gopher_quality_prose_is_kept_without_a_value() -> None:
    text = "The people of the town came to the square, and those who have been there say that it was good.\n" * 3
    rule, value = _judge(text, **GopherQuality().model_dump(exclude={"mode"}))
    assert rule is None
    assert math.isnan(value)


@pytest.mark.parametrize("text", ["", " \n\t", "\u3000"])
def test_gopher_quality_text_without_words_is_too_short(text: str) -> None:
    assert _judge(text, **GopherQuality().model_dump(exclude={"mode"})) == ("too_few_words", 0)
    assert _judge(text)[0] is None


def test_gopher_quality_words_without_letters_or_digits_are_not_counted() -> None:
    assert _judge("one, -- 2 … + ☺ !", min_words=3) == ("too_few_words", 2)
    assert _judge("one, -- 2 … + ☺ !", min_words=2)[0] is None


def test_gopher_quality_too_many_words_are_dropped() -> None:
    assert _judge("a b c", max_words=2) == ("too_many_words", 3)
    assert _judge("a b c", max_words=3)[0] is None


def test_gopher_quality_mean_length_is_in_characters_with_punctuation() -> None:
    assert _judge("é 中文! ---------", min_mean_word_length=3) == ("mean_word_length_low", 2)
    assert _judge("é 中文! ---------", max_mean_word_length=1.5) == ("mean_word_length_high", 2)
    assert _judge("é 中文! ---------", min_mean_word_length=2, max_mean_word_length=2)[0] is None


def test_gopher_quality_hashes_are_counted_inside_words() -> None:
    assert _judge("##a b# c d", max_hash_ratio=0.7) == ("too_many_hashes", 0.75)
    assert _judge("##a b# c d", max_hash_ratio=0.75)[0] is None


def test_gopher_quality_ellipses_of_both_kinds_are_counted() -> None:
    assert _judge("a... b… ...... c.. d", max_ellipsis_ratio=0.5) == ("too_many_ellipses", 0.8)
    assert _judge("a. . . b", max_ellipsis_ratio=0)[0] is None


def test_gopher_quality_bullets_start_lines_that_are_not_blank() -> None:
    text = "- a\n\n  • b\r\n* c\n ● d\nplain"
    assert _judge(text, max_bullet_lines=0.7) == ("too_many_bullet_lines", 0.8)
    assert _judge(text, max_bullet_lines=0.8)[0] is None


def test_gopher_quality_ellipses_end_lines_that_are_not_blank() -> None:
    text = "read more...  \n\nand…\r\n... not here\nnor here."
    assert _judge(text, max_ellipsis_lines=0.3) == ("too_many_ellipsis_lines", 0.5)
    assert _judge(text, max_ellipsis_lines=0.5)[0] is None


def test_gopher_quality_letters_of_any_script_count() -> None:
    assert _judge("1 2nd é 中 -", min_letter_words=0.8) == ("too_few_letter_words", 0.6)
    assert _judge("1 2nd é 中 -", min_letter_words=0.6)[0] is None


@pytest.mark.parametrize("text", ["The dog and cat", "“THE” (of)", "to be,", "¿with? ...that…", "have*have*the the 'be'"])
def test_gopher_quality_two_stop_words_are_enough(text: str) -> None:
    assert _judge(text, min_stop_words=2)[0] is None


@pytest.mark.parametrize("text", ["the The THE", "then andy t'he", "the-of", "ofthe to"])
def test_gopher_quality_one_stop_word_is_too_few(text: str) -> None:
    rule, value = _judge(text, min_stop_words=2)
    assert rule == "too_few_stop_words"
    assert value < 2


def test_gopher_quality_first_rule_that_fails_gives_the_reason() -> None:
    assert _judge("# #", min_words=1, max_hash_ratio=0.1, min_letter_words=0.5)[0] == "too_few_words"
    assert _judge("# #", max_hash_ratio=0.1, min_letter_words=0.5)[0] == "too_many_hashes"
