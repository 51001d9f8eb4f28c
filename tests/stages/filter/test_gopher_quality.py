"""Each quality rule: a text that it drops, with the value it measured; at a limit of that value the text passes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stages.filter.gopher_quality import GopherQuality
from tests.support.decisions import assert_decides, decision

LEAST = {"min_words": 0, "min_mean_word_length": 0, "min_letter_words": 0, "min_stop_words": 0}
MOST = {"max_mean_word_length": 1e9, "max_hash_ratio": 1e9, "max_ellipsis_ratio": 1e9}
FREE = LEAST | MOST | {"max_bullet_lines": 1, "max_ellipsis_lines": 1}
"""Limits that every text passes."""

MEAN = "é 中文! ---------"
BULLETS = "- a\n\n  • b\r\n* c\n ● d\nplain"
ENDS = "read more...  \n\nand…\r\n... not here\nnor here."
DATATROVE, DCLM = {"profile": "datatrove"}, {"profile": "dclm"}
SIGNS = "Well, it is so: yes."  # Well , it is so : yes .
THEM = "The cat, and (to) them"
UNSPACED = "吾輩は猫である。名前はまだ無い。"

CASES: list[tuple[dict[str, Any], str, str | None, float]] = [
    ({"min_words": 50}, "\u3000", "too_few_words", 0),
    ({"min_words": 50}, " \n\t", "too_few_words", 0),
    ({}, "", None, 0),
    ({"min_words": 3}, "one, -- 2 … + ☺ !", "too_few_words", 2),  # words without letters or digits do not count
    ({"max_words": 2}, "a b c", "too_many_words", 3),
    ({"min_mean_word_length": 3}, MEAN, "mean_word_length_low", 2),
    ({"max_mean_word_length": 1.5}, MEAN, "mean_word_length_high", 2),
    ({"max_hash_ratio": 0.7}, "##a b# c d", "hash_ratio", 0.75),
    ({"max_ellipsis_ratio": 0.5}, "a... b… ...... c.. d", "ellipsis_ratio", 0.8),
    ({"max_ellipsis_ratio": 0}, "a. . . b", None, 0),
    ({"max_bullet_lines": 0.7}, BULLETS, "too_many_bullet_lines", 0.8),  # of the lines that are not blank
    ({"max_bullet_lines": 0, "bullets": ""}, BULLETS, None, 0),
    ({"max_ellipsis_lines": 0.3}, ENDS, "too_many_ellipsis_lines", 0.5),
    ({"min_letter_words": 0.8}, "1 2nd é 中 -", "too_few_letter_words", 0.6),
    # stop words
    ({"min_stop_words": 2}, "The dog and cat", None, 0),
    ({"min_stop_words": 2}, "“THE” (of)", None, 0),
    ({"min_stop_words": 2}, "¿with? ...that…", None, 0),
    ({"min_stop_words": 2}, "have*have*the the 'be'", None, 0),
    ({"min_stop_words": 2}, "the The THE", "too_few_stop_words", 1),
    ({"min_stop_words": 2}, "then andy t'he", "too_few_stop_words", 0),
    ({"min_stop_words": 2}, "ofthe to", "too_few_stop_words", 1),
    ({"min_stop_words": 3}, "tHe oF aNd thE", None, 0),
    ({"min_stop_words": 1}, "tHé oƑ", "too_few_stop_words", 0),
    # the first rule that fails gives the reason
    ({"min_words": 1, "max_hash_ratio": 0.1, "min_letter_words": 0.5}, "# #", "too_few_words", 0),
    ({"max_hash_ratio": 0.1, "min_letter_words": 0.5}, "# #", "hash_ratio", 1),
    # datatrove: signs are words, but not in the length; stop words as they stand; blank lines count
    (DATATROVE | {"min_words": 6}, SIGNS, "too_few_words", 5),
    (DATATROVE | {"min_letter_words": 0.7}, SIGNS, "too_few_letter_words", 5 / 8),
    ({"min_letter_words": 1.0}, SIGNS, None, 0),
    (DATATROVE | {"min_stop_words": 3}, THEM, "too_few_stop_words", 2),
    ({"min_stop_words": 3}, THEM, None, 0),
    (DATATROVE | {"max_bullet_lines": 0.4}, "- a\n\n- b\n\n", "too_many_bullet_lines", 0.5),
    ({"max_bullet_lines": 0.99}, "- a\n\n- b", "too_many_bullet_lines", 1),
    (DATATROVE | {"max_bullet_lines": 0}, "* a\n* b", None, 0),
    # dclm: symbols are summed, spaced ellipses count, stop words may repeat, the length is in words of fastText
    (DCLM | {"max_hash_ratio": 0.49}, "# one . . . two…", "hash_ratio", 0.5),
    (DCLM | {"max_ellipsis_lines": 0.4}, "and so . . .\nno", "too_many_ellipsis_lines", 0.5),
    (DCLM | {"min_words": 4}, "one - two - three", "too_few_words", 3),
    (DCLM | {"min_words": 3}, "(hello) " * 60 + "the of", "too_few_words", 2),
    (DCLM | {"min_mean_word_length": 2.7}, "one - two - three", "mean_word_length_low", 13 / 5),
    (DCLM | {"min_words": 4, "words": "unicode"}, "re-use (it)", "too_few_words", 3),
    (DCLM | {"min_stop_words": 3}, "The the THE", None, 0),
    (DCLM | {"min_stop_words": 3}, "The the, THE", "too_few_stop_words", 2),
    (DCLM | {"min_stop_words": 1}, "tHé oƑ", "too_few_stop_words", 0),
    *(
        (DCLM | {"min_words": words + 1}, text, "too_few_words", words)
        for text, words in (
            ("one\u00a0two three", 2),  # fastText separates at ASCII white space
            ("one\u3000two\u2028three\x85four\x1cfive", 1),
            ("one\0two\vthree\ffour\r\nfive", 5),
            ("don't re-use x.y.z", 3),
            ("_one “two” three 4th ½ Ⅳ", 4),
            ("吾輩は猫である。 名前はまだ無い。", 2),
            ("\u0301a ّب ①", 1),
        )
    ),
    # scripts without spaces are counted by character where that is asked for
    ({"min_words": 15, "words": "unicode"}, UNSPACED, "too_few_words", 14),
    ({"min_words": 2}, UNSPACED, "too_few_words", 1),
]


@pytest.mark.parametrize(("options", "text", "rule", "value"), CASES)
def test_gopher_quality_text_is_decided_by_rule_and_value(
    options: dict[str, Any], text: str, rule: str | None, value: float
) -> None:
    assert_decides(GopherQuality, FREE | options, text, rule, value)


def test_gopher_quality_defaults_keep_prose_without_a_value() -> None:
    text = "The people of the town came to the square, and those who have been there say that it was good.\n" * 3
    rule, value = decision(GopherQuality, {}, text)
    assert rule is None
    assert math.isnan(value)
    assert decision(GopherQuality, {}, "") == ("too_few_words", 0)


@pytest.mark.parametrize("profile", ["paper", "datatrove", "dclm"])
def test_gopher_quality_every_profile_has_the_thresholds_of_the_paper(profile: str) -> None:
    limits = [rule.limit for rule in GopherQuality.model_validate({"profile": profile}).rules()]
    assert limits == [50, 100_000, 3, 10, 0.1, 0.1, 0.9, 0.3, 0.8, 2] == [rule.limit for rule in GopherQuality().rules()]


@pytest.mark.parametrize(("words", "rule"), [(49, "too_few_words"), (50, None), (100_000, None), (100_001, "too_many_words")])
def test_gopher_quality_dclm_page_length_is_50_to_100_000(words: int, rule: str | None) -> None:
    assert decision(GopherQuality, FREE | DCLM | {"min_words": 50, "max_words": 100_000}, "word " * words)[0] == rule


def test_gopher_quality_profile_and_language_fill_in_what_is_not_given() -> None:
    dclm = GopherQuality.model_validate({"profile": "dclm", "bullets": "-"})
    assert (dclm.words, dclm.stop_word_match, dclm.bullets) == ("whitespace", "folded", "-")
    german = GopherQuality.model_validate({"language": "de", "min_words": 10})
    assert (german.profile, german.words, german.max_mean_word_length, german.min_words) == ("datatrove", "english", 15, 10)
    assert german.stop_words[:3] == ("der", "und", "die")
    assert GopherQuality.model_validate({"language": "jpn_Jpan"}).words == "unicode"
    with pytest.raises(ValueError, match="'deu_Latn'"):
        GopherQuality.model_validate({"language": "deu_Latin"})
