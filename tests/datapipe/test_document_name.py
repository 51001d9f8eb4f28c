"""Names of documents: what is printed is taken back, and so are the forms of earlier versions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.document_name import InputFiles, document_name, named_key
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

COMMENTS = ["", " # ticket 7: see web/part-0.jsonl:9", "\t# why", "  12 characters  # twice", " #"]
PRINTED = ["", "  4,194 characters", " (of runs/2024)", " (of runs/2024:7)  4,194 characters", "  id doc-1 ──"]


def key_of(number: int, position: int) -> bytes:
    return number.to_bytes(8, "big") + position.to_bytes(8, "big")


@given(st.sampled_from(list(FILES)), st.integers(0, 2**64 - 1), st.sampled_from([*PRINTED, *COMMENTS]))
def test_named_key_takes_lines_as_they_are_printed_and_with_comments(number: int, position: int, after: str) -> None:
    assert named_key(f" {document_name(*FILES[number], position)}{after}\n", FILES) == key_of(number, position)


@pytest.mark.parametrize("after", [comment for comment in COMMENTS if comment.lstrip().startswith("#") or not comment])
@pytest.mark.parametrize("number", list(ODD))
def test_named_key_in_quotes_is_that_name_whatever_it_holds(number: int, after: str) -> None:
    assert named_key(json.dumps(document_name(*ODD[number], 5)) + after, ODD) == key_of(number, 5)


@pytest.mark.parametrize(
    ("text", "number", "position"),
    [
        ("web  part-0.jsonl:5 (of a)  7 characters", 1, 5),  # older forms
        ("2024/a:7.txt:5", 3, 5),
        ("2024/part-1 (copy).jsonl:5", 2, 5),
        ("web/part-0.jsonl:1 (of 3):0", 10, 0),  # the whole name before the beginning of a line
        ("web/part-0.jsonl:1 (of 3)  7 characters:0", 11, 0),
        ("part-0.jsonl:1 (of 3):0", 10, 0),
        ("web/part-0.jsonl:1 #2:0", 12, 0),
        ("web/part-0.jsonl:1 (of 3)", 1, 1),
        ("web/part-0.jsonl:1 #2", 1, 1),
        ("\ufeffweb/part-0.jsonl:1", 1, 1),
        ("y  two  spaces.jsonl:4", 7, 4),
        ("web/part-0.jsonl:1  more:2", 13, 2),
        ("docs/lib.py:3", 5, 3),
    ],
)
def test_named_key_takes_older_forms_and_whole_names(text: str, number: int, position: int) -> None:
    assert named_key(text, ODD) == key_of(number, position)


@given(st.binary(min_size=16, max_size=16))
def test_named_key_takes_hex_digits_of_any_case(key: bytes) -> None:
    assert named_key(key.hex(), {}) == key == named_key(f"\ufeff{key.hex().upper()} # why", FILES)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("web/part-0.jsonl:1  more:2  7 characters", ["'web/part-0.jsonl:1'", "'web/part-0.jsonl:1  more:2'"]),
        ("lib.py:3", ["'code/lib.py:3'", "'docs/lib.py:3'"]),
        *((text, []) for text in ("", "web/part-0.jsonl", ":7", "part-0.jsonl:-1", f"part-0.jsonl:{2**64}", "0" * 31)),
        *((text, []) for text in ('"web/part-0.jsonl:1', '"web/part-0.jsonl":1', '"web/part-0.jsonl"', '""', '"a:1" b')),
    ],
)
def test_named_key_of_text_with_no_meaning_or_two_is_refused(text: str, names: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        named_key(text, ODD)
    assert all(name in str(caught.value) for name in names)


def test_named_key_of_a_file_that_is_not_there_is_none() -> None:
    assert [named_key(text, FILES) for text in ("web/gone.jsonl:3", "gone.jsonl:3", "books/part-0.jsonl:0")] == [None] * 3


def test_files_of_two_sources_with_one_hash_and_path_are_one_document() -> None:
    files = InputFiles([(1, "old.web", "a.jsonl"), (1, "new.web", "a.jsonl"), (2, "b", "a.jsonl")])
    assert files.key("new.web/a.jsonl:3") == files.key("old.web/a.jsonl:3") == key_of(1, 3)
    with pytest.raises(UserError, match=r"b/a\.jsonl:3.*new\.web/a\.jsonl:3"):
        files.key("a.jsonl:3")
