"""Names of documents: what is printed is taken back, and so are the forms of earlier versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.document_name import document_name, named_key, with_own_id
from datapipe.errors import UserError

FILES = {
    1: ("web", "part-0.jsonl"),
    2: ("web", "2024/part-1 (copy).jsonl"),
    3: ("books", "2024/a:7.txt"),
    4: ("code", "lib.py"),
    5: ("docs", "lib.py"),
    6: ("x", "web/part-0.jsonl"),
    7: ("y", "two  spaces.jsonl"),
}


def key_of(number: int, position: int) -> bytes:
    return number.to_bytes(8, "big") + position.to_bytes(8, "big")


@pytest.mark.parametrize(
    "after", ["", "  4,194 characters", " (of runs/2024)", " (of runs/2024:7)  4,194 characters", "  id doc-1 ──"]
)
@pytest.mark.parametrize("number", list(FILES))
@pytest.mark.parametrize("position", [0, 123, 2**64 - 1])
def test_named_key_takes_lines_as_they_are_printed(number: int, position: int, after: str) -> None:
    assert named_key(f" {document_name(*FILES[number], position)}{after}\n", FILES) == key_of(number, position)


@pytest.mark.parametrize(
    ("text", "number"),
    [("web  part-0.jsonl:5 (of a)  7 characters", 1), ("2024/a:7.txt:5", 3), ("2024/part-1 (copy).jsonl:5", 2)],
)
def test_named_key_takes_older_forms(text: str, number: int) -> None:
    assert named_key(text, FILES) == key_of(number, 5)


@given(st.binary(min_size=16, max_size=16))
def test_named_key_takes_hex_digits_of_any_case(key: bytes) -> None:
    assert named_key(key.hex(), {}) == key == named_key(key.hex().upper(), FILES)


def test_named_key_without_source_that_two_sources_have_is_refused_with_both() -> None:
    with pytest.raises(UserError, match=r"'lib\.py:3': the sources code and docs have such a file"):
        named_key("lib.py:3", FILES)
    assert named_key("docs/lib.py:3", FILES) == key_of(5, 3)


@pytest.mark.parametrize("text", ["web/gone.jsonl:3", "gone.jsonl:3", "books/part-0.jsonl:0"])
def test_named_key_of_a_file_that_is_not_there_is_none(text: str) -> None:
    assert named_key(text, FILES) is None


@pytest.mark.parametrize(
    "text", ["", "web/part-0.jsonl", ":7", "part-0.jsonl:-1", "part-0.jsonl:٣", f"part-0.jsonl:{2**64}", "0" * 31]
)
def test_named_key_of_other_text_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected SOURCE/PATH:POSITION"):
        named_key(text, FILES)


def test_own_id_stands_before_the_name() -> None:
    assert with_own_id("doc-17", "web/a.jsonl:120") == "doc-17 (web/a.jsonl:120)"
    assert with_own_id("web/a.jsonl:120", "web/a.jsonl:120") == with_own_id("", "web/a.jsonl:120") == "web/a.jsonl:120"
