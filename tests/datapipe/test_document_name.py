"""Names of documents: what is printed is taken back, and so are the forms of earlier versions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.document_name import InputFiles, document_name, named_key, with_own_id
from datapipe.errors import UserError

FILES = {
    1: ("web", "part-0.jsonl"),
    2: ("web", "2024/part-1 (copy).jsonl"),
    3: ("books", "2024/a:7.txt"),
    4: ("code", "lib.py"),
    5: ("docs", "lib.py"),
    6: ("x", "web/part-0.jsonl"),
    7: ("y", "two  spaces.jsonl"),
    8: ("web", "odd #1.jsonl"),
    9: ("web", ' "a\nb"\t'),
}
ODD = FILES | {
    10: ("web", "part-0.jsonl:1 (of 3)"),
    11: ("web", "part-0.jsonl:1 (of 3)  7 characters"),
    12: ("web", "part-0.jsonl:1 #2"),
    13: ("web", "part-0.jsonl:1  more"),
}
"""With names that are lines about documents of the first."""


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


@pytest.mark.parametrize("after", ["", " # ticket 7: see web/part-0.jsonl:9", "\t#", "  12 characters  # twice"])
@pytest.mark.parametrize("number", list(ODD))
def test_named_key_in_quotes_is_that_name_whatever_it_holds(number: int, after: str) -> None:
    comment = after if after.lstrip().startswith("#") else ""
    assert named_key(json.dumps(document_name(*ODD[number], 5)) + comment, ODD) == key_of(number, 5)


@pytest.mark.parametrize("after", [" # ticket 7: see web/part-0.jsonl:9", "\t# why", "  12 characters  # twice", " #"])
@pytest.mark.parametrize("number", list(FILES))
def test_named_key_with_a_comment_is_the_name_before_it(number: int, after: str) -> None:
    assert named_key(document_name(*FILES[number], 5) + after, FILES) == key_of(number, 5)


@pytest.mark.parametrize(
    ("text", "number", "position"),
    [
        ("web/part-0.jsonl:1 (of 3):0", 10, 0),
        ("web/part-0.jsonl:1 (of 3)  7 characters:0", 11, 0),
        ("part-0.jsonl:1 (of 3):0", 10, 0),
        ("web/part-0.jsonl:1 #2:0", 12, 0),
        ("web/part-0.jsonl:1 (of 3)", 1, 1),
        ("web/part-0.jsonl:1 #2", 1, 1),
        ("\ufeffweb/part-0.jsonl:1", 1, 1),
        ("y  two  spaces.jsonl:4", 7, 4),
    ],
)
def test_named_key_is_the_whole_name_before_it_is_the_beginning_of_a_line(text: str, number: int, position: int) -> None:
    assert named_key(text, ODD) == key_of(number, position)


def test_named_key_of_a_line_that_begins_with_two_names_is_refused_with_both() -> None:
    with pytest.raises(UserError, match=r"may be 'web/part-0\.jsonl:1' and 'web/part-0\.jsonl:1  more:2'\. Expected a whole"):
        named_key("web/part-0.jsonl:1  more:2  7 characters", ODD)
    assert named_key("web/part-0.jsonl:1  more:2", ODD) == key_of(13, 2)
    assert named_key('"web/part-0.jsonl:1  more:2"', ODD) == key_of(13, 2)


@pytest.mark.parametrize("text", ['"web/part-0.jsonl:1', '"web/part-0.jsonl":1', '"web/part-0.jsonl"', '""', '"a:1" b'])
def test_named_key_of_a_wrong_string_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"JSON string|expected SOURCE/PATH:POSITION"):
        named_key(text, FILES)


def test_files_of_two_sources_with_one_hash_and_path_are_one_document() -> None:
    files = InputFiles([(1, "old.web", "a.jsonl"), (1, "new.web", "a.jsonl"), (2, "b", "a.jsonl")])
    assert files.key("new.web/a.jsonl:3") == files.key("old.web/a.jsonl:3") == key_of(1, 3)
    with pytest.raises(UserError, match=r"may be 'b/a\.jsonl:3' and 'new\.web/a\.jsonl:3'"):
        files.key("a.jsonl:3")


@given(st.binary(min_size=16, max_size=16))
def test_named_key_takes_hex_digits_of_any_case(key: bytes) -> None:
    assert named_key(key.hex(), {}) == key == named_key(f"\ufeff{key.hex().upper()} # why", FILES)


def test_named_key_without_source_that_two_sources_have_is_refused_with_both() -> None:
    with pytest.raises(UserError, match=r"'lib\.py:3' may be 'code/lib\.py:3' and 'docs/lib\.py:3'"):
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
