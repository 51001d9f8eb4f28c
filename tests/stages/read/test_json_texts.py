"""Files of JSON that are no JSON lines, and texts of UTF-16 and UTF-32: read whole, by every reader of text."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import UnsplittableInputError
from datapipe.stage import FieldNames, Reader, Split
from datapipe.storage import open_input
from stages.read.csv import Csv
from stages.read.jsonl import Jsonl
from stages.read.mds import Mds
from stages.read.text import Text
from tests.support.reader_formats import LFS_POINTER
from tests.support.reader_results import input_file, read_file, read_splits

_PACKED: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
_RECORDS = [{"text": "one, [two]", "n": {"a": [1, 2]}}, {"text": 'qu"ote\n}', "n": None}, {"text": "ü中😀\\", "id": "x"}]
_TEXTS = [record["text"] for record in _RECORDS]
_WIDE = ["utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-32-le"]


def _wide(text: str, codec: str) -> bytes:
    return (text if codec in ("utf-16", "utf-32") else "\ufeff" + text).encode(codec)


def _pretty(**options: Any) -> str:
    return "\n".join(json.dumps(record, indent=2, **options) for record in _RECORDS)


_WRITTEN = {
    "array": json.dumps(_RECORDS),
    "array, compact": json.dumps(_RECORDS, separators=(",", ":"), ensure_ascii=False),
    "array, pretty": json.dumps(_RECORDS, indent=2) + "\n",
    "array, pretty, CRLF": json.dumps(_RECORDS, indent="\t").replace("\n", "\r\n"),
    "array of lines": "[\n" + ",\n".join(map(json.dumps, _RECORDS)) + "\n]",
    "arrays": "\n".join(json.dumps([record]) for record in _RECORDS),
    "objects": _pretty() + "\n",
    "objects, CRLF": _pretty(ensure_ascii=False).replace("\n", "\r\n"),
}


@pytest.mark.parametrize("written", _WRITTEN)
def test_json_over_lines_is_read_as_json_lines_are(tmp_path: Path, written: str) -> None:
    fields = FieldNames(keep=("n.a",))
    for ending, mark in ((ending, mark) for ending in _PACKED for mark in ("", "\ufeff")):
        file = input_file(tmp_path / f"a.json{ending}", _PACKED[ending]((mark + _WRITTEN[written]).encode()))
        found = read_file(Jsonl(), file, fields)
        assert (found.texts, found.ids, found.rejected) == (_TEXTS, [None, None, "x"], [])
        assert found.places == sorted(set(found.places))
        assert [Jsonl().read_document(file, place, fields, open_input) for place in found.places] == _TEXTS
        assert Jsonl().fields_seen(Split(file=file), fields, open_input).num_records == 3


def test_json_array_rejects_elements_alone(tmp_path: Path) -> None:
    content = b'[{"text": "a"}, 7, {"txt": 1}, {"text": "raw\nline"}, null, {"text": "b"}]'
    found = read_file(Jsonl(), input_file(tmp_path / "a.json", content))
    assert found.texts == ["a", "b"]
    assert ["control character" in error for _, error in found.rejected] == [False, False, True, False]


@pytest.mark.parametrize("content", [b'[{"text": "a"}, {"text": "b', b'[{"text": "a"},', b'[{"text": "a"}', b'{\n"text": "a",'])
def test_json_text_that_is_cut_off_is_damage(tmp_path: Path, content: bytes) -> None:
    assert read_file(Jsonl(), input_file(tmp_path / "a.json", content)).is_damage == [True]


def test_json_lines_that_begin_with_brackets_stay_lines(tmp_path: Path) -> None:
    content = b'[INFO] begin\n{"text": "a"}\n{\n{"text": "b"}\n["x"]\n'
    found = read_file(Jsonl(), input_file(tmp_path / "a.jsonl", content))
    assert found.texts == ["a", "b"]
    assert len(found.rejected) == 3


@pytest.mark.parametrize("written", [*_WRITTEN, "utf-16", "lines"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_json_text_is_planned_as_one_split_and_refused_in_ranges(tmp_path: Path, written: str, ending: str) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in _RECORDS * 100)
    content = {"utf-16": lines.encode("utf-16"), "lines": lines.encode()}.get(written) or _WRITTEN[written].encode()
    members = [content[start : start + 2000] for start in range(0, len(content), 2000)]
    file = input_file(tmp_path / f"a.json{ending}", b"".join(map(_PACKED[ending], members)))
    splits = Jsonl().cut(Jsonl().probe_large(file, open_input), 40)
    assert read_splits(Jsonl(), splits).texts == _TEXTS * (100 if written in ("utf-16", "lines") else 1)
    if written != "lines":
        assert len(splits) == 1
        with pytest.raises(UnsplittableInputError):
            read_splits(Jsonl(), [Split(file=file, start=0, stop=file.num_bytes // 2)])


@pytest.mark.parametrize("codec", _WIDE)
def test_wide_encodings_are_read_as_utf8_is(tmp_path: Path, codec: str) -> None:
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in _RECORDS)
    written: list[tuple[Reader, str, str]] = [
        (Jsonl(), "a.jsonl", lines),
        (Jsonl(), "a.json", _WRITTEN["array, pretty"]),
        (Csv(), "a.csv", 'text,n\nü中😀,1\n"a\n""b",2\n'),
        (Text(), "a.txt", "ü中😀\r\nb"),
    ]
    for reader, name, text in written:
        expected = read_file(reader, input_file(tmp_path / f"utf8.{name}", text.encode()))
        for ending, pack in _PACKED.items():
            file = input_file(tmp_path / f"{name}{ending}", pack(_wide(text, codec)))
            found = read_file(reader, file)
            assert (found.documents, found.rejected) == (expected.documents, [])
            assert [reader.read_document(file, place, FieldNames(), open_input) for place in found.places] == found.texts != []


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_wide_encoding_that_is_cut_off_is_damage(tmp_path: Path, cut: int) -> None:
    content = _wide('{"text": "a"}\n{"text": "😀"}\n', "utf-32")
    found = read_file(Jsonl(), input_file(tmp_path / "a.jsonl", content[:-cut]))
    assert (found.texts, found.is_damage) == (["a"], [True])
    assert "UTF-32" in found.rejected[0][1]


def test_text_about_git_lfs_is_text(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    for content in (f"A pointer:\n{pointer}", pointer + "and a long text about it. " * 50):
        assert read_file(Text(), input_file(tmp_path / "a.txt", content.encode())).texts == [content]


def test_shard_that_is_a_pointer_of_git_lfs_is_told_so_where_its_index_gives_another_size(tmp_path: Path) -> None:
    file = input_file(tmp_path / "a.mds", LFS_POINTER)
    shard = {"raw_data": {"basename": "a.mds", "bytes": 5000, "hashes": {}}, "samples": 3, "zip_data": None}
    (tmp_path / "index.json").write_text(json.dumps({"shards": [shard]}))
    [(_, error)] = read_file(Mds(), file).rejected
    assert "Git LFS" in error


@pytest.mark.parametrize(("codec", "name"), [("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE")])
@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (Jsonl(), '{"text": "ein Text", "n": 1}\n' * 3),
        (Csv(), "text,n\nein Text,1\n"),
        (Text(), "ein Text, der lang genug ist, und noch 中"),
    ],
)
def test_utf16_without_a_mark_is_told_as_what_it_is(tmp_path: Path, codec: str, name: str, reader: Reader, text: str) -> None:
    found = read_file(reader, input_file(tmp_path / "a", text.encode(codec)))
    assert found.documents == []
    assert [error for _, error in found.rejected if name in error]
    assert read_file(reader, input_file(tmp_path / "a", text.encode())).texts
