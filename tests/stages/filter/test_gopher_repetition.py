"""Each repetition rule by hand: its measure, and the limit at which a text passes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import make_keys
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from stages.filter.gopher_repetition import GopherRepetition

FREE = {option: 1e9 for option in GopherRepetition.model_fields if option.startswith("max_")}


def _batch(texts: list[str]) -> DocumentBatch:
    keys = make_keys(1, np.arange(len(texts), dtype=np.uint64))
    columns = [keys, pa.array(["a"] * len(texts), pa.large_string()), pa.array(texts, pa.large_string())]
    return DocumentBatch(pa.RecordBatch.from_arrays(columns, schema=pa.schema(BASE_FIELDS)))


def _judge(text: str, **options: Any) -> tuple[str | None, float]:
    """The rule that drops the text, or None, and the value; limits that are not given let everything pass."""
    stage = GopherRepetition.model_validate(FREE | options)
    result = stage.process(_batch([text]))
    return (None if result.keep[0] else stage.rules()[result.rule[0]].name), float(result.value[0])


def _measures(rule: str, text: str, **options: Any) -> float:
    """The measure of a rule: the value with which it drops at limit 0, or 0."""
    dropped, value = _judge(text, **{f"max_{rule}": 0.0}, **options)
    return 0.0 if dropped is None else value


def test_gopher_repetition_defaults_are_those_of_the_paper() -> None:
    limits = [0.3, 0.3, 0.2, 0.2, 0.2, 0.18, 0.16, 0.15, 0.14, 0.13, 0.12, 0.11, 0.1]
    assert [rule.limit for rule in GopherRepetition().rules()] == limits


def test_gopher_repetition_rules_are_named_as_the_options() -> None:
    assert [f"max_{rule.name}" for rule in GopherRepetition().rules()] == list(FREE)


@pytest.mark.parametrize("text", ["", " \n ", "word", "The quick brown fox jumps over the lazy dog near a river."])
def test_gopher_repetition_short_text_that_repeats_nothing_is_kept(text: str) -> None:
    assert GopherRepetition().process(_batch([text])).keep.all()


def test_gopher_repetition_copied_lines_count_from_the_second_on() -> None:
    text = "one\ntwo\n\n  one\r\none\nthree"
    assert _measures("duplicate_lines", text) == 2 / 5
    assert _measures("duplicate_line_chars", text) == 6 / 17
    assert _judge(text, max_duplicate_lines=0.4)[0] is None


def test_gopher_repetition_copied_paragraphs_are_runs_of_equal_lines() -> None:
    text = "one\ntwo\n\nthree\n \n\none \n two\n\ntwo\none"
    assert _measures("duplicate_paragraphs", text) == 1 / 4
    assert _measures("duplicate_paragraph_chars", text) == 6 / 23
    assert _judge(text, max_duplicate_paragraphs=0.25)[0] is None


def test_gopher_repetition_most_frequent_ngram_counts_all_its_occurrences() -> None:
    text = "aa b x aa b y aa b z"
    assert _measures("top_2_gram", text) == 9 / 12
    assert _measures("top_3_gram", text) == 0


def test_gopher_repetition_longest_of_equally_frequent_ngrams_counts() -> None:
    assert _measures("top_2_gram", "a b 1 a b 2 cc dd 3 cc dd") == 8 / 15


def test_gopher_repetition_overlapping_occurrences_may_exceed_the_whole() -> None:
    assert _measures("top_3_gram", "a a a a a a") == 12 / 6


def test_gopher_repetition_case_and_punctuation_make_another_word() -> None:
    assert _measures("top_2_gram", "a b A b a b.") == 0


@pytest.mark.parametrize("n", [5, 6, 7, 8, 9, 10])
def test_gopher_repetition_repeated_ngrams_mark_each_word_once(n: int) -> None:
    words = [f"w{place}" for place in range(n)]
    assert _measures(f"duplicate_{n}_grams", " ".join([*words, "x1", "x2", *words])) == 4 * n / (4 * n + 4)
    longer = [*words, "v1", "v2"]  # three n-grams that overlap
    assert _measures(f"duplicate_{n}_grams", " ".join([*longer, "x1", "x2", *longer])) == (4 * n + 8) / (4 * n + 12)
    assert _measures(f"duplicate_{n}_grams", " ".join([*words, "x1", "x2", *words[1:]])) == 0


def test_gopher_repetition_boundaries_of_words_count() -> None:
    assert _measures("top_2_gram", "ab c a bc") == 0


def test_gopher_repetition_first_rule_that_fails_gives_the_reason() -> None:
    assert _judge("a\n" * 30, max_duplicate_line_chars=0.1, max_top_2_gram=0.1)[0] == "duplicate_line_chars"


def test_gopher_repetition_datatrove_lines_are_raw_and_shares_are_of_the_text() -> None:
    text = "one\ntwo\n one\none"
    assert _measures("duplicate_lines", text, profile="datatrove") == 1 / 4
    assert _measures("duplicate_line_chars", text, profile="datatrove") == 3 / 16
    assert _measures("duplicate_lines", "\nab\n", profile="datatrove") == 1 / 3  # empty lines at both ends
    assert _measures("duplicate_paragraph_chars", "a\nb\n\na\nb", profile="datatrove") == 3 / 8


def test_gopher_repetition_datatrove_counts_the_first_of_ngrams_that_occur_once() -> None:
    assert _measures("top_2_gram", "one three two", profile="datatrove") == 9 / 13
    assert _measures("top_2_gram", "a b, a b", profile="datatrove") == 6 / 8  # "a b" twice
    assert _measures("top_3_gram", "a b", profile="datatrove") == 0


def test_gopher_repetition_datatrove_passes_over_ngrams_it_has_seen() -> None:
    text = " ".join("abcde" * 3)
    assert _measures("duplicate_5_grams", text, profile="datatrove") == 10 / 29
    assert _measures("duplicate_6_grams", text, profile="datatrove") == 6 / 29
    assert _measures("duplicate_5_grams", text) == 1


def test_gopher_repetition_datatrove_tries_paragraphs_first() -> None:
    names = [rule.name for rule in GopherRepetition.model_validate({"profile": "datatrove"}).rules()]
    assert names[:5] == [
        "duplicate_paragraphs",
        "duplicate_paragraph_chars",
        "duplicate_lines",
        "duplicate_line_chars",
        "top_2_gram",
    ]


def test_gopher_repetition_dclm_counts_first_occurrences_and_words_without_signs() -> None:
    assert _measures("duplicate_lines", "one\ntwo\none\nthree", profile="dclm") == 2 / 4
    assert _measures("duplicate_line_chars", "one\ntwo\none", profile="dclm") == 6 / 9
    assert _measures("top_2_gram", "a b, x (a b) y", profile="dclm") == 4 / 6


def test_gopher_repetition_dclm_paragraphs_are_between_empty_lines_with_their_newlines() -> None:
    text = "Hello, World.\n\nHello, World.\n\nHello, World.\nHello"
    assert _measures("duplicate_paragraph_chars", text, profile="dclm") == 26 / 45
    assert _measures("duplicate_paragraphs", "a\n \nb\n\nb\n\na\n \nb", profile="dclm") == 2 / 3
    assert _measures("duplicate_paragraphs", "a\r\n\r\na", profile="dclm") == 0
    assert _measures("duplicate_paragraphs", "\n\n\na b\n\n\n\n\n a b \n", profile="dclm") == 1
    assert _measures("duplicate_paragraphs", "a\n \nb\n\nb") == 1 / 3


def test_gopher_repetition_carriage_returns_make_no_lines() -> None:
    text = "one\n\ntwo\n\nthree\n\nfour"
    for profile in ("paper", "datatrove", "dclm"):
        for ends in (text, text.replace("\n", "\r\n"), text.replace("\n", " \n")):
            assert _measures("duplicate_lines", ends, profile=profile) == 0


def test_gopher_repetition_dclm_words_begin_with_a_letter_or_a_digit() -> None:
    assert _measures("top_2_gram", "__a __b __a __b c", profile="dclm") == 0
    assert _measures("top_2_gram", "a_ b_ a_ b_ c", profile="dclm") == 8 / 9
    assert _measures("top_2_gram", "Ⓐ1 b Ⓐ1 b c d", profile="dclm") == 0


@pytest.mark.parametrize("profile", ["paper", "datatrove", "dclm"])
def test_gopher_repetition_every_profile_has_the_thresholds_of_the_paper(profile: str) -> None:
    given = {rule.option: rule.limit for rule in GopherRepetition.model_validate({"profile": profile}).rules()}
    assert given == {rule.option: rule.limit for rule in GopherRepetition().rules()}


def test_gopher_repetition_language_takes_the_settings_of_fineweb_2() -> None:
    stage = GopherRepetition.model_validate({"language": "pt"})
    tops = (stage.max_top_2_gram, stage.max_top_3_gram, stage.max_top_4_gram)
    assert (stage.max_duplicate_lines, *tops, stage.max_duplicate_10_grams) == (0.287, 0.371, 0.191, 0.163, 0.108)
    assert (stage.max_duplicate_paragraphs, stage.max_duplicate_line_chars) == (1, 1)


@pytest.mark.real
def test_gopher_repetition_articles_of_a_newspaper_are_kept(real_data) -> None:
    lines = pa.input_stream(real_data / "prose" / "c4_theguardian.jsonl.gz", compression="gzip").read().splitlines()
    assert GopherRepetition().process(_batch([json.loads(line)["text"] for line in lines])).keep.all()
