"""Each rule of C4: a text that it edits or drops, and its neighbour that passes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from stages.filter.c4_quality import C4Quality
from tests.support.decisions import assert_decides, edited
from tests.support.global_stages import batch_of

LONE = {"min_sentences": 0, "min_words_per_line": 0}
"""Options by which no rule but that of a test drops anything."""


def test_c4_profiles_hold_the_published_values_and_given_values_win() -> None:
    names = ("min_sentences", "min_words_per_line", "words_before_citations", "need_end_mark", "apostrophe_ends_line")
    values = {name: [getattr(C4Quality(profile=name), one) for one in names] for name in ("paper", "datatrove", "fineweb")}
    assert values["paper"] == [3, 5, False, True, False]
    assert values["datatrove"] == [5, 3, True, True, True]
    assert values["fineweb"] == [5, 3, True, False, True]
    assert C4Quality.model_validate({"profile": "datatrove", "min_sentences": 1}).min_sentences == 1


@pytest.mark.parametrize("profile", ["gopher", ["paper"]])
def test_c4_unknown_profile_is_refused(profile: Any) -> None:
    with pytest.raises(ValueError, match="profile"):
        C4Quality.model_validate({"profile": profile})


KEPT = ["It ends.", "Does it?", "It does!", '"It does"']
REMOVED = ["It ends", "It goes on...", "So it goes on…", "Then:", "'It does'", "It ends.)", "It ends.’"]
NOTICES = ["JavaScript", "Terms of Use", "PRIVACY POLICY", "cookie policy", "uses cookies", "Use of Cookies"]
NO_NOTICES = ["java script", "terms for use", "privacy-policy", "cookies policy", "used cookies"]
CITED = "Only [1] three[edit] words."
LONG = "é" * 9
NO_MARK = {"need_end_mark": False}

EDITS: list[tuple[dict[str, Any], str, str]] = [
    *(({}, f"A line.\n{line}\nMore.", f"A line.\n{line}\nMore.") for line in KEPT),
    *(({}, f"A line.\n{line}\nMore.", "A line.\nMore.") for line in REMOVED),
    *(({}, f"The end.\nRead our {phrase} here.", "The end.") for phrase in NOTICES),
    *(({}, f"Read our {phrase} here.", f"Read our {phrase} here.") for phrase in NO_NOTICES),
    ({"remove_javascript": False}, "Javascript.\nUse cookies.", "Javascript."),
    ({"remove_policies": False}, "Javascript.\nUse cookies.", "Use cookies."),
    ({"apostrophe_ends_line": True}, "'It does'", "'It does'"),
    (NO_MARK, "It goes on...\n\nand on", "It goes on...\nand on"),
    ({"min_words_per_line": 5}, "one two three four five.\none two three four.", "one two three four five."),
    ({"min_words_per_line": 4, "words_before_citations": True}, f"A.\n{CITED}", "Only  three words."),
    ({"min_words_per_line": 4}, f"A b c d.\n{CITED}", "A b c d."),
    ({}, "A[12] b[] c[citation needed] d[Edit] e[1,2].", "A b c d[Edit] e[1,2]."),
    ({"remove_citations": False}, "A[12].", "A[12]."),
    ({}, "A line.[1]\nAnother. [2]", "A line."),  # the end mark is looked for without citations
    ({"max_word_chars": 8}, f"{LONG} b.\n{LONG[1:]} b.", f"{LONG[1:]} b."),
    # white space around lines is an edit
    ({}, "A b.\n\nC d.", "A b.\nC d."),
    ({}, " A b.\n", "A b."),
    ({}, "A b.\r\nC d.", "A b.\nC d."),
    (NO_MARK, "[1] \u00a0A b.\nC d [2]", "A b.\nC d"),
]


@pytest.mark.parametrize(("options", "text", "expected"), EDITS)
def test_c4_lines_are_edited_by_their_rule(options: dict[str, Any], text: str, expected: str) -> None:
    assert edited(C4Quality, LONE | options, text) == expected


LOREM = "Fine.\nLorem Ipsum dolor."
PAGE = "éééé\nfour\nabc\nabcde"
DROPS: list[tuple[dict[str, Any], str, str | None, float]] = [
    ({}, LOREM, "lorem_ipsum", 1),
    ({}, LOREM[:-1], None, 0),  # the line goes first
    ({"drop_lorem_ipsum": False}, LOREM, None, 0),
    ({}, "a { b.\nc { d.", "curly_bracket", 2),
    ({}, "javascript { b.\n} d.\n{", None, 0),
    ({"drop_curly_brackets": False}, "a { b.", None, 0),
    ({"min_sentences": 4}, "One is. Two are.\nThree here. Four there\nFive.", "too_few_sentences", 3),
    ({"max_chars": 4}, "é\n\nb.", "too_many_chars", 5),  # of the page as it came
    ({"min_long_lines": 4, "long_line_chars": 4}, PAGE, "too_few_long_lines", 3),
    *(
        (NO_MARK | {"min_sentences": 100}, text, "too_few_sentences", number)
        for text, number in (
            ("Mr. Smith met Dr. J. R. Jones of the U.S. at 9 a.m. in St. Louis, e.g. by car.", 1),
            ("He went. She stayed! Why? Who knows...", 4),
            ("“It is.” “Is it?” (It is.) So.", 4),
            ("Begin.End it.And so on.", 3),
            ("See www.Example.com or a.B@example.org now.", 1),
            ("Wait... what? Well… no.", 2),
            ("It cost 25g. of 3.5 kg. No more.", 2),
            ("中。 文。 字！", 3),
        )
    ),
]


@pytest.mark.parametrize(("options", "text", "rule", "value"), DROPS)
def test_c4_page_is_decided_by_rule_and_value(options: dict[str, Any], text: str, rule: str | None, value: float) -> None:
    assert_decides(C4Quality, LONE | options, text, rule, value)


def test_c4_unchanged_batch_keeps_its_text() -> None:
    result = C4Quality().process(batch_of(["The first line of all.\nThe second line of all. And more."]))
    assert result.keep.all()
    assert "text" not in result.columns


def test_c4_dropped_neighbours_leave_the_others_alone() -> None:
    result = C4Quality.model_validate(LONE).process(batch_of(["One.\ntwo", "a { b.", "Three.[1]", ""]))
    assert result.keep.tolist() == [True, False, True, True]
    assert result.columns["text"].filter(pa.array(result.keep)).to_pylist() == ["One.", "Three.", ""]


def test_c4_counts_have_the_lines_removed_from_what_is_kept() -> None:
    text = f"Kept it is.\nno mark\nGo.\nUse cookies now.\nJavascript it is.\n{'x' * 1001} a b."
    stage = C4Quality.model_validate(LONE | {"min_words_per_line": 3})
    result = stage.process(batch_of([text, f"{text}\nA {{ too many."]))
    counted = {"long_word_lines", "lines_without_end_mark", "short_lines", "javascript_lines", "policy_lines"}
    assert set(stage.counts) == counted
    assert all(result.columns[name].to_pylist() == [1, 0] for name in counted)
