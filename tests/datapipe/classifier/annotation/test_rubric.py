"""Rubrics: what is sent for a document, how answers are parsed, and errors that name file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.classifier.annotation.rubric import Rubric, Score, read_rubric
from datapipe.errors import UserError

EDUCATIONAL = Path(__file__).resolve().parents[4] / "mixtures" / "educational.md"
RUBRIC = Rubric(scale=(0, 5), template="<<{text}>>", max_chars=5)


MARKS = ["{text}", "{", "{0}", "{{text}}", "%s", "$text", "---\nscale: 1\n---", "\0"]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(MARKS))
def test_rubric_inserts_a_text_literally_and_cut_at_a_character(text):
    sent = RUBRIC.messages(text)[0]["content"]
    assert sent == f"<<{text[:5]}>>"
    assert len(sent.encode()) <= 4 + 5 * 4
    whole = RUBRIC.model_copy(update={"max_chars": 1000})
    assert whole.messages(text)[0]["content"] == f"<<{text}>>"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("It explains fractions.\n\nScore: 4", Score(value=4, reason="It explains fractions.")),
        ("Score: 0\nNothing to learn.", Score(value=0, reason="Nothing to learn.")),
        ("Score: 5\r\n", Score(value=5, reason="")),
        ("Score:  3  ", Score(value=3, reason="")),
        ("", "no_score"),
        ("Punkte: 3", "no_score"),
        ("The score is 3", "no_score"),
        ("**Score: 3**", "no_score"),
        ("Score: 3\nScore: 3", "several_scores"),
        ("Score: 2\nOn reflection:\nScore: 4", "several_scores"),
        ("Score: 3 or 4", "not_a_number"),
        ("Score: 3/5", "not_a_number"),
        ("Score: three", "not_a_number"),
        ("Score: 3.5", "not_a_number"),
        ("Score: 1e0", "not_a_number"),
        ("Score: ٣", "not_a_number"),
        ("Score: nan", "not_a_number"),
        ("Score: " + "9" * 5000, "not_a_number"),
        ("Score: ", "not_a_number"),
        ("Score: 6", "off_scale"),
        ("Score: -1", "off_scale"),
    ],
)
def test_rubric_parses_answers_strictly(answer, outcome):
    assert read_rubric(EDUCATIONAL).parse(answer) == outcome


def test_rubric_with_decimals_takes_them():
    rubric = RUBRIC.model_copy(update={"decimals": True})
    assert rubric.parse("Score: 3.5") == Score(value=3.5, reason="")
    assert rubric.parse("Score: 5.01") == "off_scale"


def test_rubric_reads_what_follows_the_thinking_of_a_model():
    rubric = RUBRIC.model_copy(update={"answer_after": "</think>"})
    assert rubric.parse("<think>Perhaps\nScore: 1\n</think>\nScore: 2") == Score(value=2, reason="")
    assert rubric.parse("Score: 2") == Score(value=2, reason="")


def test_rubric_request_has_the_options_of_the_file(tmp_path):
    path = tmp_path / "rubric.md"
    path.write_text("---\nscale: [1, 3]\nsystem: Be brief.\noptions: {top_p: 0.5}\n---\nRate {text}\n")
    body = read_rubric(path).request("m", "this")
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rate this"}]
    assert (body["model"], body["temperature"], body["top_p"], body["stream"]) == ("m", 0.0, 0.5, False)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Rate {text}", ":1: no front matter"),
        ("---\nscale: [0, 5]\nRate {text}", ":1: no front matter"),
        ("---\n---\nRate {text}", ":1: the front matter has no keys"),
        ("---\nscale: [0, 5\n---\n{text}", "invalid YAML"),
        ("---\nscale: [0, 5]\nmax_char: 3\n---\n{text}", ":3: max_char: unknown key. Did you mean 'max_chars'?"),
        ("---\nscale: [0, 5]\nmax_chars: 0\n---\n{text}", ":3: max_chars: found 0, expected at least 1"),
        ("---\nscale: [5, 0]\n---\n{text}", "expected the lower end first"),
        ("---\nscale: [0, 0.5]\n---\n{text}", "or `decimals: true`"),
        ("---\nscale: [0, 5]\nanswer: '('\n---\n{text}", ":3: answer: found '(', expected a regular expression"),
        ("---\nscale: [0, 5]\nanswer: 'x'\n---\n{text}", "expected a group (?P<score>…)"),
        ("---\nscale: [0, 5]\noptions: {stream: true}\n---\n{text}", "expected no option of this name here: stream"),
        ("---\nscale: [0, 5]\n---\nno place", ":4: found {text} 0 times in the template"),
        ("---\nscale: [0, 5]\n---\n{text} and {text}", ":4: found {text} 2 times in the template"),
    ],
)
def test_rubric_errors_name_file_and_line(tmp_path, content, expected):
    path = tmp_path / "rubric.md"
    path.write_text(content)
    with pytest.raises(UserError) as raised:
        read_rubric(path)
    assert str(raised.value).startswith(str(path))
    assert expected in str(raised.value)


def test_rubric_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "latin.md").write_bytes(b"---\nscale: [0, 5]\n---\n\xe9 {text}")
    for name, expected in (("none.md", "No such file"), ("latin.md", "0xe9"), ("", "Is a directory")):
        with pytest.raises(UserError, match=expected):
            read_rubric(tmp_path / name)
