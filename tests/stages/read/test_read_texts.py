"""Plain texts, JSON that is no JSON lines, texts of UTF-16 and UTF-32, and shards of MDS."""

import bz2
import gzip
import hashlib
import json
import lzma
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard

from datapipe.errors import UnsplittableInputError
from datapipe.stage import FieldNames, InputFile, Reader, Split
from datapipe.storage.root import open_input
from stages.read.csv import Csv
from stages.read.jsonl import Jsonl
from stages.read.mds import Mds
from stages.read.text import Text
from tests.support.reader_formats import mds
from tests.support.reader_results import ReadResult, input_file, read_file, read_splits, text_at


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
        assert [text_at(Jsonl(), file, place, fields) for place in found.places] == _TEXTS
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
            assert [text_at(reader, file, place) for place in found.places] == found.texts != []


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


@pytest.mark.parametrize(("codec", "name"), [("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE")])
@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (Jsonl(), '{"text": "ein Text", "n": 1}\n' * 3),
        (Csv(), "text,n\nein Text,1\n"),
        (Text(), "ein Text, der lang genug ist, und noch 中"),
    ],
)
def test_utf16_without_a_mark_is_reported_as_what_it_is(
    tmp_path: Path, codec: str, name: str, reader: Reader, text: str
) -> None:
    found = read_file(reader, input_file(tmp_path / "a", text.encode(codec)))
    assert found.documents == []
    assert [error for _, error in found.rejected if name in error]
    assert read_file(reader, input_file(tmp_path / "a", text.encode())).texts


def _index(folder: Path, shards: Mapping[str, tuple[bytes, bytes]], **changed: Any) -> None:
    """The index of shards by the names of their files: content, and what is stored."""
    entries = []
    for name, (raw, stored) in shards.items():
        plain = name.removesuffix(".zstd")
        hashes = {"xxh64": xxhash.xxh64(raw).hexdigest(), "sha1": hashlib.sha1(raw).hexdigest()}
        entry = {"samples": int.from_bytes(raw[:4], "little"), "zip_data": None}
        entry["raw_data"] = {"basename": plain, "bytes": len(raw), "hashes": hashes} | changed
        if plain != name:
            entry["zip_data"] = {"basename": name, "bytes": len(stored), "hashes": {}}
        entries.append(entry)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))


def _file(folder: Path, content: bytes, name: str = "shard.00000.mds") -> InputFile:
    return input_file(folder / name, content, reader=Mds())


TEXTS = {"text": "str"}


def test_mds_samples_are_documents_at_their_numbers(tmp_path: Path) -> None:
    columns = {"text": "str", "id": "int", "score": "float32", "n": "uint8", "meta": "json", "raw": "bytes", "big": "str_int"}
    more, meta = {"raw": b"r", "big": 10**30}, {"x": 1.5, "y": {"b": [1, 1e30, "1", True]}}
    rows = [
        {"text": f"text {n} é", "id": n - 1, "score": n / 2, "n": n, "meta": {"url": f"u{n}", **meta}, **more} for n in range(5)
    ]
    keep = ("score", "n", "meta", "meta.url", "meta.y", "meta.y.b", "meta.none", "big", "none")
    found = read_file(Mds(), _file(tmp_path, mds(columns, rows)), FieldNames(keep=keep))
    assert found.documents == [(n, f"text {n} é", str(n - 1)) for n in range(5)]
    assert found.rejected == []
    assert found.extra["score"] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert (found.extra["n"], found.extra["big"]) == ([0, 1, 2, 3, 4], [str(10**30)] * 5)
    assert json.loads(found.extra["meta"][1]) == rows[1]["meta"]
    assert (found.extra["meta.y"][1], found.extra["meta.y.b"][1]) == ('{"b":[1,1e+30,"1",true]}', '[1,1e+30,"1",true]')
    assert (found.extra["meta.url"], found.extra["meta.none"]) == ([f"u{n}" for n in range(5)], [None] * 5)


def test_mds_texts_of_json_and_of_bytes(tmp_path: Path) -> None:
    found = read_file(Mds(), _file(tmp_path, mds({"text": "json"}, [{"text": "a"}, {"text": None}, {"text": "é"}])))
    assert (found.texts, found.rejected_places) == (["a", "é"], [1])
    found = read_file(Mds(), _file(tmp_path, mds({"text": "bytes"}, [{"text": b"a"}, {"text": b"\xff"}])))
    assert (found.texts, found.rejected_places) == (["a"], [1])
    inside = _file(tmp_path, mds({"c": "json"}, [{"c": {"text": "in"}}]))
    assert read_file(Mds(), inside, FieldNames(text="c.text")).texts == ["in"]


@pytest.mark.parametrize(
    ("columns", "row", "error"),
    [
        ({"body": "str"}, {"body": "a"}, "field 'text' is not in the shard"),
        ({"text": "int"}, {"text": 1}, "field 'text' is int64"),
        ({"text": "pkl"}, {"text": b"anything"}, "encoded as pkl"),
    ],
)
def test_mds_without_a_text_that_can_be_read(tmp_path: Path, columns: dict[str, str], row: dict[str, Any], error: str) -> None:
    file = _file(tmp_path, mds(columns, [row]))
    seen = Mds().fields_seen(Split(file=file), FieldNames(), open_input)
    assert "text" in columns or (seen.num_records, seen.found, seen.names) == (1, frozenset(), tuple(columns))
    found = read_file(Mds(), file)
    assert (found.documents, found.rejected_places) == ([], [0])
    assert error in found.rejected[0][1]


@pytest.mark.parametrize("name", ["shard.00000.mds", "shard.00000.mds.zstd"])
def test_mds_index_is_checked(tmp_path: Path, name: str) -> None:
    raw = mds(TEXTS, [{"text": f"text {n}"} for n in range(9)])
    stored = zstandard.compress(raw) if name.endswith(".zstd") else raw
    file, texts = _file(tmp_path, stored, name), [f"text {n}" for n in range(9)]
    _index(tmp_path, {name: (raw, stored)})
    found = read_file(Mds(), file)
    assert (found.texts, found.rejected) == (texts, [])
    _index(tmp_path, {name: (raw, stored)}, hashes={"md5": "0" * 32, "unheard_of": "1"})
    found = read_file(Mds(), file)
    assert found.rejected_places == [9]
    assert hashlib.md5(raw).hexdigest() in found.rejected[0][1]
    _index(tmp_path, {name: (raw, stored + b"?")}, bytes=len(raw) + 1)
    assert read_file(Mds(), file).is_damage == [True]
    _index(tmp_path, {"shard.00001.mds": (raw, stored)})
    found = read_file(Mds(), file)
    assert (found.documents, found.rejected_places, found.is_damage) == ([], [0], [True])
    (tmp_path / "index.json").write_text("{")
    assert "index.json" in read_file(Mds(), file).rejected[0][1]


def test_mds_sample_whose_columns_do_not_fill_it_costs_itself(tmp_path: Path) -> None:
    raw = bytearray(mds(TEXTS, [{"text": "aaaa"}, {"text": "bbbb"}, {"text": "cccc"}]))
    at = raw.index(b"bbbb") - 4
    for size in (3, 5, 0xFFFFFFFF):
        raw[at : at + 4] = np.uint32(size).tobytes()
        found = read_file(Mds(), _file(tmp_path, bytes(raw)))
        assert found.texts == ["aaaa", "cccc"]
        assert (found.rejected_places, found.is_damage) == ([1], [False])


def test_mds_shard_that_reports_it_has_too_many_samples_is_damage(tmp_path: Path) -> None:
    found = read_file(Mds(), _file(tmp_path, b"\xff" * 100))
    assert (found.documents, found.rejected_places, found.is_damage) == ([], [0], [True])


def test_mds_bytes_behind_the_last_sample_are_damage(tmp_path: Path) -> None:
    found = read_file(Mds(), _file(tmp_path, mds(TEXTS, [{"text": "a"}]) + b"x"))
    assert (found.texts, found.rejected_places, found.is_damage) == (["a"], [1], [True])
