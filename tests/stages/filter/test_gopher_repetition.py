"""Each repetition rule: its measure of a text, and that the text passes at a limit of that measure."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from stages.filter.gopher_repetition import GopherRepetition
from tests.support.decisions import assert_decides, decision
from tests.support.global_stages import batch_of

FREE = {option: 1e9 for option in GopherRepetition.model_fields if option.startswith("max_")}
PROFILES = ("paper", "datatrove", "dclm")

LINES = "one\ntwo\n\n  one\r\none\nthree"
PARAGRAPHS = "one\ntwo\n\nthree\n \n\none \n two\n\ntwo\none"
SEEN = " ".join("abcde" * 3)
WORLD = "Hello, World.\n\nHello, World.\n\nHello, World.\nHello"

MEASURES: dict[str, list[tuple[str, str, float]]] = {
    "paper": [
        ("duplicate_lines", LINES, 2 / 5),  # copies count from the second on
        ("duplicate_line_chars", LINES, 6 / 17),
        ("duplicate_paragraphs", PARAGRAPHS, 1 / 4),
        ("duplicate_paragraph_chars", PARAGRAPHS, 6 / 23),
        ("duplicate_paragraphs", "a\n \nb\n\nb", 1 / 3),
        ("top_2_gram", "aa b x aa b y aa b z", 9 / 12),  # all occurrences of the most frequent one
        ("top_3_gram", "aa b x aa b y aa b z", 0),
        ("top_2_gram", "a b 1 a b 2 cc dd 3 cc dd", 8 / 15),  # the longest of equally frequent ones
        ("top_3_gram", "a a a a a a", 12 / 6),  # overlapping occurrences may exceed the whole
        ("top_2_gram", "a b A b a b.", 0),
        ("top_2_gram", "ab c a bc", 0),
        ("duplicate_5_grams", SEEN, 1),
    ],
    "datatrove": [  # lines are raw, and shares are of the text
        ("duplicate_lines", "one\ntwo\n one\none", 1 / 4),
        ("duplicate_line_chars", "one\ntwo\n one\none", 3 / 16),
        ("duplicate_lines", "\nab\n", 1 / 3),  # empty lines at both ends
        ("duplicate_lines", "\nab", 0),
        ("duplicate_paragraph_chars", "a\nb\n\na\nb", 3 / 8),
        ("top_2_gram", "one three two", 9 / 13),  # the first of n-grams that occur once
        ("top_2_gram", "a b, a b", 6 / 8),
        ("top_3_gram", "a b", 0),
        ("duplicate_5_grams", SEEN, 10 / 29),  # an n-gram that was seen is passed over
        ("duplicate_6_grams", SEEN, 6 / 29),
    ],
    "dclm": [  # first occurrences count, and words are without signs
        ("duplicate_lines", "one\ntwo\none\nthree", 2 / 4),
        ("duplicate_line_chars", "one\ntwo\none", 6 / 9),
        ("top_2_gram", "a b, x (a b) y", 4 / 6),
        ("duplicate_paragraph_chars", WORLD, 26 / 45),  # between empty lines, with their newlines
        ("duplicate_paragraphs", "a\n \nb\n\nb\n\na\n \nb", 2 / 3),
        ("duplicate_paragraphs", "a\r\n\r\na", 0),
        ("duplicate_paragraphs", "\n\n\na b\n\n\n\n\n a b \n", 1),
        ("top_2_gram", "__a __b __a __b c", 0),  # words begin with a letter or a digit
        ("top_2_gram", "a_ b_ a_ b_ c", 8 / 9),
        ("top_2_gram", "Ⓐ1 b Ⓐ1 b c d", 0),
    ],
}
CASES = [(profile, *row) for profile, rows in MEASURES.items() for row in rows]


def _assert_measures(profile: str, rule: str, text: str, value: float) -> None:
    options: dict[str, Any] = FREE | {"profile": profile, f"max_{rule}": 0}
    assert_decides(GopherRepetition, options, text, rule if value else None, value)


@pytest.mark.parametrize(("profile", "rule", "text", "value"), CASES)
def test_gopher_repetition_rule_measures_its_share(profile: str, rule: str, text: str, value: float) -> None:
    _assert_measures(profile, rule, text, value)


@pytest.mark.parametrize("n", [5, 6, 7, 8, 9, 10])
def test_gopher_repetition_repeated_ngrams_mark_each_word_once(n: int) -> None:
    words = [f"w{place}" for place in range(n)]
    longer = [*words, "v1", "v2"]  # three n-grams that overlap
    rule = f"duplicate_{n}_grams"
    _assert_measures("paper", rule, " ".join([*words, "x1", "x2", *words]), 4 * n / (4 * n + 4))
    _assert_measures("paper", rule, " ".join([*longer, "x1", "x2", *longer]), (4 * n + 8) / (4 * n + 12))
    _assert_measures("paper", rule, " ".join([*words, "x1", "x2", *words[1:]]), 0)


@pytest.mark.parametrize("profile", PROFILES)
def test_gopher_repetition_carriage_returns_make_no_lines(profile: str) -> None:
    text = "one\n\ntwo\n\nthree\n\nfour"
    for ends in (text, text.replace("\n", "\r\n"), text.replace("\n", " \n")):
        _assert_measures(profile, "duplicate_lines", ends, 0)


@pytest.mark.parametrize("profile", PROFILES)
def test_gopher_repetition_every_profile_has_the_thresholds_of_the_paper(profile: str) -> None:
    limits = [0.3, 0.3, 0.2, 0.2, 0.2, 0.18, 0.16, 0.15, 0.14, 0.13, 0.12, 0.11, 0.1]
    assert [rule.limit for rule in GopherRepetition().rules()] == limits
    rules = GopherRepetition.model_validate({"profile": profile}).rules()
    assert {rule.name: rule.limit for rule in rules} == {rule.name: rule.limit for rule in GopherRepetition().rules()}


def test_gopher_repetition_datatrove_tries_paragraphs_first() -> None:
    assert [f"max_{rule.name}" for rule in GopherRepetition().rules()] == list(FREE)
    names = [rule.name for rule in GopherRepetition.model_validate({"profile": "datatrove"}).rules()]
    assert names[:4] == ["duplicate_paragraphs", "duplicate_paragraph_chars", "duplicate_lines", "duplicate_line_chars"]
    limits = {"max_duplicate_lines": 0.1, "max_duplicate_paragraphs": 0.1, "max_top_2_gram": 0.1}
    for profile, rule in {"paper": "duplicate_lines", "datatrove": "duplicate_paragraphs"}.items():
        assert decision(GopherRepetition, FREE | limits | {"profile": profile}, "a\n\n" * 30)[0] == rule


@pytest.mark.parametrize("text", ["", " \n ", "word", "The quick brown fox jumps over the lazy dog near a river."])
def test_gopher_repetition_short_text_that_repeats_nothing_is_kept(text: str) -> None:
    assert decision(GopherRepetition, {}, text)[0] is None


def test_gopher_repetition_language_takes_the_settings_of_fineweb_2() -> None:
    stage = GopherRepetition.model_validate({"language": "pt"})
    tops = (stage.max_top_2_gram, stage.max_top_3_gram, stage.max_top_4_gram)
    assert (stage.max_duplicate_lines, *tops, stage.max_duplicate_10_grams) == (0.287, 0.371, 0.191, 0.163, 0.108)
    assert (stage.max_duplicate_paragraphs, stage.max_duplicate_line_chars) == (1, 1)


@pytest.mark.real
def test_gopher_repetition_articles_of_a_newspaper_are_kept(real_data) -> None:
    lines = pa.input_stream(real_data / "prose" / "c4_theguardian.jsonl.gz", compression="gzip").read().splitlines()
    assert GopherRepetition().process(batch_of([json.loads(line)["text"] for line in lines])).keep.all()
