"""The table of FineWeb-2's settings: its structure, and values compared with the published files."""

from __future__ import annotations

import pytest

from datapipe.errors import UserError
from stages.filter._thresholds.fineweb2 import language_settings, languages, names_of
from stages.filter._thresholds.fineweb2_scores import least_score


@pytest.mark.parametrize("code", languages())
def test_fineweb2_settings_are_shares_that_fall_with_n(code: str) -> None:
    one = language_settings(code)
    assert one.code == code
    assert language_settings(code.partition("_")[0]) is one
    top, duplicate = one.max_top_n_grams, one.max_duplicate_n_grams
    assert list(top) == sorted(top, reverse=True)
    assert list(duplicate) == sorted(duplicate, reverse=True)
    shares = [one.max_duplicate_lines, *top, *duplicate, one.max_newline_ratio, one.min_letter_words]
    assert all(0 < share < 1 for share in shares)
    assert 0 <= one.min_punctuation_lines < 0.5
    assert 0 <= one.min_mean_word_length < one.max_mean_word_length
    assert 8 <= len(one.stop_words) == len(set(one.stop_words)) <= 22
    assert all(word == word.strip() and "\\" not in word for word in one.stop_words)


def test_fineweb2_has_forty_languages_with_two_short_names_each() -> None:
    assert len(languages()) == 40
    assert language_settings("de") is language_settings("deu") is language_settings("deu_Latn")


def test_fineweb2_every_label_has_a_least_score() -> None:
    assert [least_score(label, 0.65) for label in ("aai_Latn", "abk_Cyrl", "eng_Latn", "xxx_Latn")] == [0.755, 0.812, 0.65, 0.3]
    assert set(names_of("de")) == {"de", "deu", "deu_Latn"}
    assert set(names_of("eng_Latn")) == {"en", "eng", "eng_Latn"}
    assert names_of("xx") == []


def test_fineweb2_portuguese_has_the_published_values() -> None:
    one = language_settings("pt")
    assert least_score("por_Latn", 1.0) == 0.799
    assert one.max_duplicate_lines == 0.287
    assert one.max_top_n_grams == (0.371, 0.191, 0.163)
    assert one.max_duplicate_n_grams == (0.163, 0.153, 0.141, 0.13, 0.119, 0.108)
    assert (one.min_punctuation_lines, one.max_newline_ratio) == (0.077, 0.186)
    assert (one.min_mean_word_length, one.max_mean_word_length, one.min_letter_words) == (3, 13, 0.814)
    assert one.stop_words == ("de", "a", "e", "o", "em", "do", "da", "que", "um", "no", "uma", "com", "para", "na", "é", "foi")


def test_fineweb2_other_scripts_have_the_published_values() -> None:
    telugu, mandarin = language_settings("te"), language_settings("zh")
    assert (telugu.min_mean_word_length, telugu.max_mean_word_length, telugu.max_top_n_grams[0]) == (4, 68, 0.21)
    assert mandarin.stop_words[:3] == ("的", "年", "在")
    assert (mandarin.max_newline_ratio, mandarin.min_letter_words) == (0.178, 0.735)


@pytest.mark.parametrize(
    ("name", "code"), [("no", "nob_Latn"), ("est", "ekk_Latn"), ("ara", "arb_Arab"), ("zho", "cmn_Hani"), ("lav", "lvs_Latn")]
)
def test_fineweb2_macrolanguages_are_known(name: str, code: str) -> None:
    assert language_settings(name).code == code


def test_fineweb2_unknown_language_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'deu_Latin'\. Did you mean 'deu_Latn'\?.*cmn_Hani.*ISO 639-1"):
        language_settings("deu_Latin")
