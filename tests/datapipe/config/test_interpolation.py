import sysconfig

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.config.interpolation import escaped, interpolated
from datapipe.config.origins import Origins
from datapipe.errors import UserError

ORIGINS = Origins(file="m.yaml", locations={("sources", "web", "path"): "m.yaml:4", ("stages", 1): "m.yaml:9"})


@pytest.mark.parametrize(
    ("data", "filled"),
    [
        ({"path": ["${CORPUS}/${PART}.jsonl", "plain"], "n": 3}, {"path": ["/data/a.jsonl", "plain"], "n": 3}),
        ([{"k": "x${PART}"}, None], [{"k": "xa"}, None]),
        ("${ITSELF}", "${PART}"),  # what is filled in is not looked through again
        ({"${X}": 1}, {"${X}": 1}),
        ("$${PART} ${PART} $PART $$ {X}", "${PART} a $PART $$ {X}"),
        ("${python:stdlib}/*.py", f"{sysconfig.get_path('stdlib')}/*.py"),
        ("${python:site-packages}", sysconfig.get_path("purelib")),
    ],
)
def test_references_are_filled_in_everywhere(data: object, filled: object, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"CORPUS": "/data", "PART": "a", "ITSELF": "${PART}"}.items():
        monkeypatch.setenv(name, value)
    assert interpolated(data, ORIGINS) == filled


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
