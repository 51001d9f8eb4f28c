"""Each rule of C4 by hand: a text that it edits or drops, and its neighbour that passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import make_keys
from datapipe.stage import FilterResult
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from stages.filter.c4_quality import C4Quality

LONE = {"min_sentences": 0, "min_words_per_line": 0}
"""Options by which no rule but that of a test drops anything."""


def _batch(*texts: str) -> DocumentBatch:
    keys = make_keys(1, np.arange(len(texts), dtype=np.uint64))
    columns = [keys, pa.array(["a"] * len(texts), pa.large_string()), pa.array(texts, pa.large_string())]
    return DocumentBatch(pa.RecordBatch.from_arrays(columns, schema=pa.schema(BASE_FIELDS)))


def _process(text: str, **options: Any) -> tuple[C4Quality, FilterResult]:
    stage = C4Quality.model_validate(options)
    return stage, stage.process(_batch(text))


def _edited(text: str, **options: Any) -> str:
    """The kept text, with options that drop no page."""
    _, result = _process(text, **LONE | options)
    assert result.keep[0]
    return result.columns["text"][0].as_py() if "text" in result.columns else text


def _judge(text: str, **options: Any) -> tuple[str | None, float]:
    """The rule that drops the text, or None, and the value."""
    stage, result = _process(text, **LONE | options)
    return (None if result.keep[0] else stage.rules()[result.rule[0]].name), float(result.value[0])


def test_c4_profiles_hold_the_published_values() -> None:
    names = ("min_sentences", "min_words_per_line", "words_before_citations", "need_end_mark", "apostrophe_ends_line")
    values = {name: [getattr(C4Quality(profile=name), one) for one in names] for name in ("paper", "datatrove", "fineweb")}
    assert values["paper"] == [3, 5, False, True, False]
    assert values["datatrove"] == [5, 3, True, True, True]
    assert values["fineweb"] == [5, 3, True, False, True]


def test_c4_given_values_win_over_the_profile() -> None:
    assert C4Quality.model_validate({"profile": "datatrove", "min_sentences": 1}).min_sentences == 1


@pytest.mark.parametrize("profile", ["gopher", ["paper"]])
def test_c4_unknown_profile_is_refused(profile: Any) -> None:
    with pytest.raises(ValueError, match="profile"):
        C4Quality.model_validate({"profile": profile})


@pytest.mark.parametrize("line", ["It ends.", "Does it?", "It does!", '"It does"'])
def test_c4_lines_with_an_end_mark_are_kept(line: str) -> None:
    assert _edited(line) == line


@pytest.mark.parametrize("line", ["It ends", "It goes on...", "So it goes on…", "Then:", "'It does'", "It ends.)", "It ends.’"])
def test_c4_lines_without_an_end_mark_go(line: str) -> None:
    assert _edited(f"A line.\n{line}\nMore.") == "A line.\nMore."


def test_c4_apostrophe_may_end_a_line() -> None:
    assert _edited("'It does'", apostrophe_ends_line=True) == "'It does'"


def test_c4_end_marks_need_not_be_asked_for() -> None:
    assert _edited("It goes on...\n\nand on", need_end_mark=False) == "It goes on...\nand on"


def test_c4_short_lines_go() -> None:
    assert _edited("one two three four five.\none two three four.", min_words_per_line=5) == "one two three four five."


def test_c4_words_are_counted_without_citations_or_with_them() -> None:
    line = "Only [1] three[edit] words."
    assert _edited(f"A.\n{line}", min_words_per_line=4, words_before_citations=True) == "Only  three words."
    assert _edited(f"A b c d.\n{line}", min_words_per_line=4) == "A b c d."


def test_c4_citations_are_removed_as_they_are_written() -> None:
    assert _edited("A[12] b[] c[citation needed] d[Edit] e[1,2].") == "A b c d[Edit] e[1,2]."
    assert _edited("A[12].", remove_citations=False) == "A[12]."


def test_c4_end_mark_is_looked_for_without_citations() -> None:
    assert _edited("A line.[1]\nAnother. [2]") == "A line."


def test_c4_long_words_take_their_line_with_them() -> None:
    assert _edited(f"{'é' * 9} b.\n{'é' * 8} b.", max_word_chars=8) == f"{'é' * 8} b."


@pytest.mark.parametrize(
    "phrase", ["JavaScript", "Terms of Use", "PRIVACY POLICY", "cookie policy", "uses cookies", "Use of Cookies"]
)
def test_c4_notices_go_in_any_case(phrase: str) -> None:
    assert _edited(f"The end.\nRead our {phrase} here.") == "The end."


@pytest.mark.parametrize("phrase", ["java script", "terms for use", "privacy-policy", "cookies policy", "used cookies"])
def test_c4_near_misses_of_notices_are_kept(phrase: str) -> None:
    assert _edited(f"Read our {phrase} here.") == f"Read our {phrase} here."


def test_c4_notices_are_kept_by_option() -> None:
    text = "Javascript.\nUse cookies."
    assert _edited(text, remove_javascript=False, remove_policies=False) == text


def test_c4_lorem_ipsum_drops_the_page_if_its_line_is_one() -> None:
    assert _judge("Fine.\nLorem Ipsum dolor.") == ("lorem_ipsum", 1)
    assert _judge("Fine.\nLorem Ipsum dolor")[0] is None
    assert _judge("Fine.\nLorem Ipsum dolor.", drop_lorem_ipsum=False)[0] is None


def test_c4_curly_bracket_drops_the_page_unless_its_line_is_javascript() -> None:
    assert _judge("a { b.\nc { d.") == ("curly_bracket", 2)
    assert _judge("javascript { b.\n} d.\n{")[0] is None
    assert _judge("a { b.", drop_curly_brackets=False)[0] is None


def test_c4_sentences_are_counted_in_kept_lines() -> None:
    text = "One is. Two are.\nThree here. Four there\nFive."
    assert _judge(text, min_sentences=4) == ("too_few_sentences", 3)
    assert _judge(text, min_sentences=3)[0] is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Mr. Smith met Dr. J. R. Jones of the U.S. at 9 a.m. in St. Louis, e.g. by car.", 1),
        ("He went. She stayed! Why? Who knows...", 4),
        ("“It is.” “Is it?” (It is.) So.", 4),
        ("Begin.End it.And so on.", 3),
        ("See www.Example.com or a.B@example.org now.", 1),
        ("Wait... what? Well… no.", 2),
        ("It cost 25g. of 3.5 kg. No more.", 2),
        ("中。 文。 字！", 3),
    ],
)
def test_c4_sentences_end_as_spacy_ends_them(text: str, number: int) -> None:
    assert _judge(text, min_sentences=100, need_end_mark=False) == ("too_few_sentences", number)


def test_c4_page_as_it_came_must_not_be_too_long() -> None:
    assert _judge("é\n\nb.", max_chars=4) == ("too_many_chars", 5)
    assert _judge("é\n\nb.", max_chars=5)[0] is None


def test_c4_page_as_it_came_must_have_long_lines() -> None:
    text = "éééé\nfour\nabc\nabcde"
    assert _judge(text, min_long_lines=4, long_line_chars=4) == ("too_few_long_lines", 3)
    assert _judge(text, min_long_lines=3, long_line_chars=4)[0] is None


def test_c4_unchanged_batch_keeps_its_text() -> None:
    text = "The first line of all.\nThe second line of all. And more."
    _, result = _process(text)
    assert result.keep.all()
    assert "text" not in result.columns


@pytest.mark.parametrize("text", ["A b.\n\nC d.", " A b.", "A b.\n", "A b.\r\nC d."])
def test_c4_white_space_around_lines_is_an_edit(text: str) -> None:
    assert _edited(text) == "\n".join(text.split("\n")).replace("\n\n", "\n").replace("\r", "").strip()


def test_c4_white_space_that_citations_leave_at_the_edges_is_removed() -> None:
    assert _edited("[1] \u00a0A b.\nC d [2]", need_end_mark=False) == "A b.\nC d"


def test_c4_dropped_neighbours_leave_the_others_alone() -> None:
    stage = C4Quality.model_validate(LONE)
    result = stage.process(_batch("One.\ntwo", "a { b.", "Three.[1]", ""))
    assert result.keep.tolist() == [True, False, True, True]
    assert result.columns["text"].filter(pa.array(result.keep)).to_pylist() == ["One.", "Three.", ""]


def test_c4_counts_have_the_lines_removed_from_what_is_kept() -> None:
    text = f"Kept it is.\nno mark\nGo.\nUse cookies now.\nJavascript it is.\n{'x' * 1001} a b."
    stage = C4Quality.model_validate(LONE | {"min_words_per_line": 3})
    result = stage.process(_batch(text, f"{text}\nA {{ too many."))
    assert {name: result.columns[name].to_pylist() for name in stage.counts} == {
        "long_word_lines": [1, 0],
        "lines_without_end_mark": [1, 0],
        "short_lines": [1, 0],
        "javascript_lines": [1, 0],
        "policy_lines": [1, 0],
    }
