"""Each quality rule by hand: a text that it drops, its neighbour that passes, and the value it measured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import make_keys
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from stages.filter.gopher_quality import GopherQuality


def _judge(text: str, **options: Any) -> tuple[str | None, float]:
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
    assert _judge("##a b# c d", max_hash_ratio=0.7) == ("hash_ratio", 0.75)
    assert _judge("##a b# c d", max_hash_ratio=0.75)[0] is None


def test_gopher_quality_ellipses_of_both_kinds_are_counted() -> None:
    assert _judge("a... b… ...... c.. d", max_ellipsis_ratio=0.5) == ("ellipsis_ratio", 0.8)
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
    assert _judge("# #", max_hash_ratio=0.1, min_letter_words=0.5)[0] == "hash_ratio"


def test_gopher_quality_profile_fills_in_what_is_not_given() -> None:
    dclm = GopherQuality.model_validate({"profile": "dclm", "bullets": "-"})
    assert (dclm.words, dclm.stop_word_match, dclm.bullets) == ("whitespace", "folded", "-")
    assert GopherQuality.model_validate({"profile": "datatrove"}).words == "english"


def test_gopher_quality_datatrove_counts_signs_as_words_but_not_in_the_length() -> None:
    text = "Well, it is so: yes."  # Well , it is so : yes .
    assert _judge(text, profile="datatrove", min_words=6) == ("too_few_words", 5)
    assert _judge(text, profile="datatrove", min_letter_words=0.7) == ("too_few_letter_words", 5 / 8)
    assert _judge(text, min_letter_words=1.0)[0] is None


def test_gopher_quality_datatrove_compares_stop_words_as_they_stand() -> None:
    assert _judge("The cat, and (to) them", profile="datatrove", min_stop_words=3) == ("too_few_stop_words", 2)
    assert _judge("The cat, and (to) them", min_stop_words=3)[0] is None


def test_gopher_quality_datatrove_counts_blank_lines() -> None:
    assert _judge("- a\n\n- b\n\n", profile="datatrove", max_bullet_lines=0.4) == ("too_many_bullet_lines", 0.5)
    assert _judge("- a\n\n- b", max_bullet_lines=0.99) == ("too_many_bullet_lines", 1.0)
    assert _judge("* a\n* b", profile="datatrove", max_bullet_lines=0.0)[0] is None


def test_gopher_quality_dclm_sums_symbols_and_counts_spaced_ellipses() -> None:
    text = "# one . . . two…"  # six words, three symbols
    assert _judge(text, profile="dclm", max_hash_ratio=0.49) == ("hash_ratio", 0.5)
    assert _judge(text, profile="dclm", max_hash_ratio=0.5)[0] is None
    assert _judge("and so . . .\nno", profile="dclm", max_ellipsis_lines=0.4) == ("too_many_ellipsis_lines", 0.5)


def test_gopher_quality_dclm_length_is_without_signs_and_means_are_of_all_words() -> None:
    assert _judge("one - two - three", profile="dclm", min_words=4) == ("too_few_words", 3)
    assert _judge("(hello) " * 60 + "the of", profile="dclm", min_words=3) == ("too_few_words", 2)
    assert _judge("one - two - three", profile="dclm", min_mean_word_length=2.7) == ("mean_word_length_low", 13 / 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("one\u00a0two three", 2),  # fastText separates at ASCII white space
        ("one\u3000two\u2028three\x85four\x1cfive", 1),
        ("one\0two\vthree\ffour\r\nfive", 5),
        ("don't re-use x.y.z", 3),
        ("_one “two” three 4th ½ Ⅳ", 4),
        ("吾輩は猫である。 名前はまだ無い。", 2),
        ("\u0301a ّب ①", 1),
    ],
)
def test_gopher_quality_dclm_length_is_in_words_of_fasttext(text: str, words: int) -> None:
    assert _judge(text, profile="dclm", min_words=words)[0] is None
    assert _judge(text, profile="dclm", min_words=words + 1) == ("too_few_words", words)


def test_gopher_quality_dclm_other_words_are_counted_where_they_are_asked_for() -> None:
    assert _judge("re-use (it)", profile="dclm", words="unicode", min_words=4) == ("too_few_words", 3)


@pytest.mark.parametrize("profile", ["paper", "dclm"])
def test_gopher_quality_stop_words_count_in_any_case(profile: str) -> None:
    assert _judge("tHe oF aNd thE", profile=profile, min_stop_words=3)[0] is None
    assert _judge("tHé oƑ", profile=profile, min_stop_words=1) == ("too_few_stop_words", 0)


def test_gopher_quality_dclm_stop_words_may_repeat_in_any_case() -> None:
    assert _judge("The the THE", profile="dclm", min_stop_words=3)[0] is None
    assert _judge("The the, THE", profile="dclm", min_stop_words=3) == ("too_few_stop_words", 2)


@pytest.mark.parametrize(("words", "rule"), [(49, "too_few_words"), (50, None), (100_000, None), (100_001, "too_many_words")])
def test_gopher_quality_dclm_page_length_is_50_to_100_000(words: int, rule: str | None) -> None:
    limits = {"min_words": 50, "max_words": 100_000}
    assert _judge("word " * words, profile="dclm", **limits)[0] == rule


@pytest.mark.parametrize("profile", ["paper", "datatrove", "dclm"])
def test_gopher_quality_every_profile_has_the_thresholds_of_the_paper(profile: str) -> None:
    limits = [rule.limit for rule in GopherQuality.model_validate({"profile": profile}).rules()]
    assert limits == [50, 100_000, 3, 10, 0.1, 0.1, 0.9, 0.3, 0.8, 2]


def test_gopher_quality_language_takes_the_settings_of_fineweb_2() -> None:
    german = GopherQuality.model_validate({"language": "de", "min_words": 10})
    assert (german.profile, german.words, german.max_mean_word_length, german.min_words) == ("datatrove", "english", 15, 10)
    assert german.stop_words[:3] == ("der", "und", "die")
    assert GopherQuality.model_validate({"language": "jpn_Jpan"}).words == "unicode"


def test_gopher_quality_unknown_language_is_refused() -> None:
    with pytest.raises(ValueError, match="Did you mean 'deu_Latn'"):
        GopherQuality.model_validate({"language": "deu_Latin"})


def test_gopher_quality_script_without_spaces_is_counted_by_character() -> None:
    text = "吾輩は猫である。名前はまだ無い。"
    assert _judge(text, words="unicode", min_words=15) == ("too_few_words", 14)
    assert _judge(text, min_words=2) == ("too_few_words", 1)


def test_gopher_quality_without_bullets_no_line_is_one() -> None:
    assert _judge("- a\n- b", bullets="", max_bullet_lines=0.0)[0] is None
