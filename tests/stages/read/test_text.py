"""Plain text: one file, one document."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from stages.read.text import Text
from tests.support.reader_results import ReadResult, input_file, read_file


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
    assert (found.documents, found.excerpts, found.is_damage) == ([], [b"good \xff bad"], [False])
    assert "byte 5" in found.rejected[0][1]


@pytest.mark.medium
def test_text_file_too_long_is_rejected_without_being_held(tmp_path: Path) -> None:
    found = _read(tmp_path, gzip.compress(b"a" * (64 << 20), 1), name="a.txt.gz", max_file_bytes=1000)
    assert (found.documents, found.rejected_places, found.is_damage) == ([], [0], [False])
    assert "max_file_bytes" in found.rejected[0][1]
    assert [len(text) for text in _read(tmp_path, b"a" * 1000, max_file_bytes=1000).texts] == [1000]
