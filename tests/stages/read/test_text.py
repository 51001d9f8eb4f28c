"""Plain text: one file, one document."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from datapipe.stage import FieldNames, Split
from datapipe.storage import open_input
from stages.read.text import Text
from tests.support.reader_results import ReadResult, broken_storage, input_file, read_file, read_splits


def _read(folder: Path, content: bytes, name: str = "a.txt", **options: int) -> ReadResult:
    return read_file(Text(**options), input_file(folder / name, content))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", ""),
        (b"\n", "\n"),
        (b"one\r\ntwo\n", "one\r\ntwo\n"),
        (b"a\x00b", "a\0b"),
        ("été 中😀\u2028".encode(), "été 中😀\u2028"),
        (b"\xef\xbb\xbfmarked", "marked"),
        (b"\xef\xbb\xbf\xef\xbb\xbftwice", "\ufefftwice"),
        (b'{"text": "a"}\n', '{"text": "a"}\n'),
    ],
)
def test_text_file_is_one_document_as_it_is(tmp_path: Path, content: bytes, text: str) -> None:
    for name, stored in (("a.txt", content), ("a.txt.gz", gzip.compress(content)), ("a.txt.zst", zstandard.compress(content))):
        found = _read(tmp_path, stored, name=name)
        assert (found.documents, found.rejected, found.input_bytes) == ([(0, text, None)], [], len(text.encode()))


def test_text_invalid_utf8_is_one_reject(tmp_path: Path) -> None:
    found = _read(tmp_path, b"good \xff bad")
    assert found.documents == []
    assert found.rejected == [(0, "invalid UTF-8 at byte 5: invalid start byte; expected a file of UTF-8 text")]
    assert found.excerpts == [b"good \xff bad"]


@pytest.mark.parametrize("stored", [b"", b"no archive", gzip.compress(b"cut off" * 100, mtime=0)[:-9]])
def test_text_broken_archive_is_one_reject(tmp_path: Path, stored: bytes) -> None:
    found = _read(tmp_path, stored, name="a.txt.gz")
    assert (found.documents, found.rejected_places) == ([], [0])


@pytest.mark.medium
def test_text_file_too_long_is_rejected_without_being_held(tmp_path: Path) -> None:
    found = _read(tmp_path, gzip.compress(b"a" * (64 << 20), 1), name="a.txt.gz", max_file_bytes=1000)
    error = "the file has more than 1000 bytes, the limit max_file_bytes"
    assert (found.documents, found.rejected) == ([], [(0, error)])
    assert [len(text) for text in _read(tmp_path, b"a" * 1000, max_file_bytes=1000).texts] == [1000]


def test_text_has_no_other_fields(tmp_path: Path) -> None:
    found = read_file(Text(), input_file(tmp_path / "a.txt", b"a"), FieldNames(keep=("url",)))
    assert found.extra == {"url": [None]}


def test_text_what_storage_raises_is_no_fault_of_the_file(tmp_path: Path) -> None:
    file = input_file(tmp_path / "a.txt", b"a" * 100)
    with pytest.raises(OSError, match="the disk is gone"):
        read_splits(Text(), [Split(file=file)], opened=broken_storage(fails_at=10))


def test_text_read_one_returns_the_document_at_offset_0(tmp_path: Path) -> None:
    file = input_file(tmp_path / "a.txt", b"text")
    assert Text().read_document(file, 0, FieldNames(), open_input) == "text"
    assert Text().read_document(file, 1, FieldNames(), open_input) is None
    assert Text().read_document(input_file(tmp_path / "b.txt", b"\xff"), 0, FieldNames(), open_input) is None
