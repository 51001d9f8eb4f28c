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
    ("text", "expected"),
    [
        (
            "${DATAPIPE_NOT_SET}/x",
            "m.yaml:4: sources.web.path: the environment variable DATAPIPE_NOT_SET is not set. "
            "Set it, or write $${DATAPIPE_NOT_SET} for the text itself.",
        ),
        (
            "${python:stdlob}",
            "m.yaml:4: sources.web.path: found ${python:stdlob}. Did you mean 'python:stdlib'? Expected the name of an "
            "environment variable, or one of: ${python:site-packages}, ${python:stdlib}. Write $${ for the text itself.",
        ),
        (
            "${a b}",
            "m.yaml:4: sources.web.path: found ${a b}. Expected the name of an environment variable, or one of: "
            "${python:site-packages}, ${python:stdlib}. Write $${ for the text itself.",
        ),
        (
            "${CORPUS/x",
            "m.yaml:4: sources.web.path: found '${' without '}'. Expected ${NAME}. Write $${ for the text itself.",
        ),
    ],
)
def test_bad_reference_is_refused_with_its_line(text: str, expected: str):
    with pytest.raises(UserError) as caught:
        interpolated({"sources": {"web": {"path": text}}}, ORIGINS)
    assert str(caught.value) == expected


def test_bad_reference_in_a_list_names_its_place():
    with pytest.raises(
        UserError, match=r"^m.yaml:9: stages\[1\].filter.length.words\[0\]: the environment variable NOT_SET_X "
    ):
        interpolated({"stages": ["a", {"filter.length": {"words": ["${NOT_SET_X}"]}}]}, ORIGINS)
