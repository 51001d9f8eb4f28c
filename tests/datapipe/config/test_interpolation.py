import sysconfig

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.config.interpolation import escaped, interpolated
from datapipe.config.origins import Origins
from datapipe.errors import UserError

ORIGINS = Origins(file="m.yaml", locations={("sources", "web", "path"): "m.yaml:4", ("stages", 1): "m.yaml:9"})


def test_environment_variables_are_filled_in_everywhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CORPUS", "/data")
    monkeypatch.setenv("PART", "a")
    data = {"path": ["${CORPUS}/${PART}.jsonl", "plain"], "deep": [{"k": "x${PART}"}], "n": 3, "none": None}
    assert interpolated(data, ORIGINS) == {"path": ["/data/a.jsonl", "plain"], "deep": [{"k": "xa"}], "n": 3, "none": None}


def test_what_is_filled_in_is_not_looked_through_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CORPUS", "${PART}")
    assert interpolated("${CORPUS}", ORIGINS) == "${PART}"


def test_keys_are_left_alone():
    assert interpolated({"${X}": 1}, ORIGINS) == {"${X}": 1}


def test_python_folders_are_those_of_this_python():
    assert interpolated("${python:stdlib}/*.py", ORIGINS) == f"{sysconfig.get_path('stdlib')}/*.py"
    assert interpolated("${python:site-packages}", ORIGINS) == sysconfig.get_path("purelib")


def test_escaped_reference_is_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("X", "1")
    assert interpolated("$${X} ${X} $X $$ {X}", ORIGINS) == "${X} 1 $X $$ {X}"


@given(st.text(alphabet="${}aX:"))
def test_escaped_text_is_read_back_as_it_was(text: str):
    assert interpolated(escaped(text), ORIGINS) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("${DATAPIPE_NOT_SET}/x", "DATAPIPE_NOT_SET is not set"),
        ("${python:stdlob}", "Did you mean 'python:stdlib'?"),
        ("${a b}", "one of: ${python:site-packages}, ${python:stdlib}"),
        ("${CORPUS/x", "without '}'"),
    ],
)
def test_bad_reference_is_refused_with_its_line(text: str, told: str):
    with pytest.raises(UserError) as caught:
        interpolated({"sources": {"web": {"path": text}}}, ORIGINS)
    assert str(caught.value).startswith("m.yaml:4: sources.web.path: ")
    assert told in str(caught.value)
    with pytest.raises(UserError, match=r"^m.yaml:9: stages\[1\].filter.length.words\[0\]: "):
        interpolated({"stages": ["a", {"filter.length": {"words": [text]}}]}, ORIGINS)
