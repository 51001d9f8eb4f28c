"""Whole runs over hostile files: every source's books are known to the document, and so is each text and each reject."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from datapipe.errors import DatapipeError, UserError
from datapipe.inspect.documents import DocumentQuery, InspectedDocument, Inspector, Outcome
from tests.support import runs

pytestmark = pytest.mark.slow

_STAGES = "stages:\n  - filter.length: {min_words: 3}\n"
_DEEP = 100_000


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """Files of a source, and what a run must make of them.

    Attributes:
        kept: text by (path, place).
        dropped, quarantined: (path, place).
        unreadable: files that are damaged, and from which place on.
    """

    files: Mapping[str, bytes]
    kept: Mapping[tuple[str, int], str] = field(default_factory=dict)
    dropped: frozenset[tuple[str, int]] = frozenset()
    quarantined: frozenset[tuple[str, int]] = frozenset()
    unreadable: frozenset[tuple[str, int]] = frozenset()


def _line(text: Any, **rest: Any) -> bytes:
    return json.dumps({"text": text, **rest}, ensure_ascii=False).encode()


def _of_lines(name: str, lines: list[tuple[bytes, str]], stored: Callable[[bytes], bytes] = bytes) -> Hostile:
    """A file of lines, each with the text that is kept of it; or "-" where it is dropped, "!" quarantined, "" no document."""
    kept, dropped, quarantined, place = {}, set(), set(), 0
    for line, outcome in lines:
        where = (name, place)
        if outcome == "-":
            dropped.add(where)
        elif outcome == "!":
            quarantined.add(where)
        elif outcome:
            kept[where] = outcome
        place += len(line) + 1
    content = b"".join(line + b"\n" for line, _ in lines)
    return Hostile(files={name: stored(content)}, kept=kept, dropped=frozenset(dropped), quarantined=frozenset(quarantined))


def _good(count: int, word: str = "good") -> list[tuple[bytes, str]]:
    texts = [f"{word} document number {number}" for number in range(count)]
    return [(_line(text, id=number), text) for number, text in enumerate(texts)]


def _lines() -> Hostile:
    text = "three words here"
    quoted = json.dumps(text).encode()
    return _of_lines(
        "a.jsonl",
        [
            (_line(text, id="a"), text),
            (_line(text, id=7), text),
            (_line(text, id=7.5), text),
            (_line(text, id=True), text),
            (_line(text, id=None), text),
            (_line(text, id=10**40), text),
            (_line(text, id={"a": [1]}), text),
            (_line("two words"), "-"),
            (_line(""), "-"),
            (b"", ""),
            (b" \t ", ""),
            (b'{"text": %s}\r' % quoted, text),
            (b"\t{\t" + b'"text":%s}' % quoted, text),
            (b'{"text": %s, "x": NaN}' % quoted, text),
            (b'{"text": %s, "id": 1, "id": "2"}' % quoted, text),
            (b'{"text": "a \\u0000 b"}', "a \0 b"),
            (b'{"text": %s, "x": %s}' % (quoted, b"[" * _DEEP + b"]" * _DEEP), text),
            (b'{"text": %s}' % (b"[" * _DEEP + b"]" * _DEEP), "!"),
            (b'{"x":' * _DEEP + b"1" + b"}" * _DEEP, "!"),
            (b'{"x":' * _DEEP + b"}", "!"),
            (_line(None), "!"),
            (_line(3), "!"),
            (_line([text]), "!"),
            (_line({"text": text}), "!"),
            (b"{}", "!"),
            (b"[]", "!"),
            (b"[%s]" % _line(text), "!"),
            (quoted, "!"),
            (_line(text) + _line(text), "!"),
            (_line(text) + b",", "!"),
            (_line(text)[:-1], "!"),
            (b'{"text": "three words he', "!"),
            (b'{"text": %s,}' % quoted, "!"),
            (b'{"text": %s, "text": %s}' % (quoted, quoted), "!"),
            (b'{"text": "three\twords here"}', "!"),
            (b'{"text": "a \xff b"}', "!"),
            (b'{"text": %s, "x": "\xc3"}' % quoted, "!"),
            (b'{"text": %s, "\xe4\xb8": 1}' % quoted, "!"),
            (b'{"text": "a \\ud800 b"}', "!"),
            (b'{"text": %s, "x": "\\udc00"}' % quoted, "!"),
            (b'{"text": "a \0 b"}', "!"),
            (b"\0", "!"),
            (b"\xef\xbb\xbf" + _line(text), "!"),
            (_line(text, id="last"), text),
        ],
    )


def _byte_order_mark() -> Hostile:
    lines = _of_lines("a.jsonl", _good(3))
    kept = {(path, place + 3): text for (path, place), text in lines.kept.items()}
    return Hostile(files={"a.jsonl": b"\xef\xbb\xbf" + lines.files["a.jsonl"]}, kept=kept)


def _only_bad_lines() -> Hostile:
    return _of_lines("a.ndjson", [(b"no json %d" % number, "!") for number in range(50)])


def _long_lines() -> Hostile:
    """Lines longer than a block between short ones, in byte ranges that are shorter than they are."""
    texts = [f"{number} of many " + "long words " * size for number, size in enumerate([1, 20_000, 1, 450_000, 1])]
    return _of_lines("a.jsonl", [(_line(text), text) for text in texts])


def _zstd_of_small_blocks(content: bytes) -> bytes:
    packer = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    parts = [content[start : start + 1000] for start in range(0, len(content), 1000)]
    return b"".join(packer.compress(part) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for part in parts) + packer.flush()


def _cut(whole: Hostile, unpacked: Callable[[bytes], bytes]) -> Hostile:
    """An archive that ends after three quarters: a reject where the last line begins that is not all there."""
    ((name, stored),) = whole.files.items()
    stored = stored[: len(stored) * 3 // 4]
    end = unpacked(stored).rfind(b"\n") + 1
    kept = {where: text for where, text in whole.kept.items() if where[1] < end}
    assert 0 < len(kept) < len(whole.kept)
    damage = frozenset({(name, end)})
    return Hostile(files={name: stored}, kept=kept, quarantined=damage, unreadable=damage)


def _cut_gzip() -> Hostile:
    return _cut(_of_lines("a.jsonl.gz", _good(200), gzip.compress), zlib.decompressobj(31).decompress)


def _cut_zstd() -> Hostile:
    whole = _of_lines("a.jsonl.zst", _good(200), _zstd_of_small_blocks)
    return _cut(whole, zstandard.ZstdDecompressor().decompressobj().decompress)


def _cut_xz() -> Hostile:
    """Streams of a few lines each, of which the last that is there is cut."""
    whole = _of_lines("a.jsonl.xz", _good(200), lambda content: b"".join(map(lzma.compress, _in_parts(content))))
    return _cut(whole, lambda stored: b"".join(_in_parts(_content_of(whole))[: stored.count(b"\xfd7zXZ\0") - 1]))


def _in_parts(content: bytes) -> list[bytes]:
    return [content[start : start + 1000] for start in range(0, len(content), 1000)]


def _content_of(source: Hostile) -> bytes:
    ((_, stored),) = source.files.items()
    return lzma.decompress(stored)


def _tables() -> Hostile:
    """CSV and TSV: rows of every kind, and files that are damaged from some row on."""
    text = "three words here"
    rows: list[tuple[bytes, str]] = [
        (b"1,three words here,", text),
        (b'2,"a ""quoted"" row, and\r\na new line",x', 'a "quoted" row, and\r\na new line'),
        (b'"3","three" words here,"', text),  # its last value is a new line
        (b'"', ""),
        (b'4,"three" words here,', text),
        (b"5,two words,", "-"),
        (b"6,,", "-"),
        (b"7", "!"),
        (b"8,a b c,d,e", "!"),
        (b"", ""),
        (b"9,\xff b c,", "!"),
        (b"10,a \0 b c,", "!"),
        (b"11,=1+2 + 'a b',", "=1+2 + 'a b'"),
        (b",007 NA 2024-01-02,", "007 NA 2024-01-02"),
    ]
    found = _of_lines("a.csv", [(b"id,text,x", ""), *rows])
    more = {
        "b.tsv": "text\nthree words here\n".encode("utf-16"),
        "c.csv": b"id,body\n1,three words here\n",
        "d.csv": b'text\nthree words here\n"not closed\nthree words here\n',
        "e.csv": b"id,text\n",
        "f.csv": b"",
        "g.tsv.bz2": bz2.compress(b"id\ttext\n1\tthree words, here\n"),
        "h.csv": b"id,text\n1,three words here\n2",
    }
    damage = {("c.csv", 0), ("d.csv", 22), ("h.csv", 27)}
    kept = {("b.tsv", 5): text, ("d.csv", 5): text, ("g.tsv.bz2", 8): "three words, here", ("h.csv", 8): text}
    return Hostile(
        files={**found.files, **more},
        kept={**found.kept, **kept},
        dropped=found.dropped,
        quarantined=found.quarantined | damage,
        unreadable=frozenset(damage),
    )


def _members_with_garbage() -> Hostile:
    found = _of_lines("a.jsonl.gz", _good(20))
    content = found.files["a.jsonl.gz"]  # not packed yet
    first, second = gzip.compress(content[:333]), gzip.compress(content[333:])

    def position(offset: int) -> int:
        """Of the line that begins at this byte of the content: by the member that holds it."""
        return offset if offset < 333 else (len(first) << 24) + offset - 333

    kept = {(path, position(offset)): text for (path, offset), text in found.kept.items()}
    damage = frozenset({("a.jsonl.gz", position(len(content)))})
    return Hostile(files={"a.jsonl.gz": first + second + b"garbage"}, kept=kept, quarantined=damage, unreadable=damage)


def _no_archives() -> Hostile:
    files = {
        "a.jsonl.gz": b"",
        "b.jsonl.zst": b"",
        "c.jsonl.gz": b"plain",
        "d.jsonl.zst": b"{}\n",
        "e.jsonl": b"",
        "f.jsonl": b"\n",
        "g.jsonl": gzip.compress(_line("three words here")) + bytes(200_000),
        "h.jsonl.zst": gzip.compress(_line("three words here")),
    }
    damage = frozenset((name, 0) for name in files if name not in ("e.jsonl", "f.jsonl"))
    return Hostile(files=files, quarantined=damage, unreadable=damage)


def _parquet(columns: dict[str, Any], **writing: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **writing)
    return sink.getvalue()


def _rows() -> Hostile:
    text = "three words here"
    return Hostile(
        files={
            "ints.parquet": _parquet({"text": [text, None, "two words"], "id": [1, 2, 3], "url": [1, 2, 3]}),
            "lists.parquet": _parquet(
                {"text": pa.array([text, text]).dictionary_encode(), "id": [[1], None], "url": pa.nulls(2)}
            ),
            "bytes.parquet": _parquet({"text": pa.array([b"\xff", text.encode()]), "id": pa.array([1.5, 2.5])}),
            "none.parquet": _parquet({"body": [text] * 3}),
            "struct.parquet": _parquet({"text": [{"text": text}], "url": [5]}),
            "empty.parquet": _parquet({"text": pa.array([], pa.string())}),
        },
        kept={
            ("ints.parquet", 0): text,
            ("lists.parquet", 0): text,
            ("lists.parquet", 1): text,
            ("bytes.parquet", 1): text,
        },
        dropped=frozenset({("ints.parquet", 2)}),
        quarantined=frozenset(
            {("ints.parquet", 1), ("bytes.parquet", 0), ("struct.parquet", 0), *(("none.parquet", row) for row in range(3))}
        ),
    )


def _damaged_parquet() -> Hostile:
    """The second of three row groups is damaged in one file, and another is cut short."""
    texts = [f"good document number {number}" for number in range(30)]
    stored = bytearray(_parquet({"text": texts}, row_group_size=10, compression="zstd"))
    column = pq.ParquetFile(io.BytesIO(bytes(stored))).metadata.row_group(1).column(0)
    start = column.dictionary_page_offset
    stored[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    return Hostile(
        files={"a.parquet": bytes(stored), "b.parquet": bytes(stored[:-20]), "c.parquet": b""},
        kept={("a.parquet", row): texts[row] for row in (*range(10), *range(20, 30))},
        quarantined=frozenset({("a.parquet", 10), ("b.parquet", 0), ("c.parquet", 0)}),
        unreadable=frozenset({("a.parquet", 10), ("b.parquet", 0), ("c.parquet", 0)}),
    )


def _texts() -> Hostile:
    return Hostile(
        files={
            "a.txt": b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n",
            "b.txt": b"",
            "c.txt": b"three words \xff",
            "d.txt.gz": gzip.compress(b"three packed words"),
            "e.txt.gz": gzip.compress(b"three packed words")[:-9],
            "f.md": b"one two three\0",
            "sp ace/[x].txt": b"a b c",
        },
        kept={
            ("a.txt", 0): "one\r\ntwo\r\nthree\r\n",
            ("d.txt.gz", 0): "three packed words",
            ("f.md", 0): "one two three\0",
            ("sp ace/[x].txt", 0): "a b c",
        },
        dropped=frozenset({("b.txt", 0)}),
        quarantined=frozenset({("c.txt", 0), ("e.txt.gz", 0)}),
        unreadable=frozenset({("e.txt.gz", 0)}),
    )


HOSTILE: dict[str, Callable[[], Hostile]] = {
    "lines": _lines,
    "mark": _byte_order_mark,
    "only_bad": _only_bad_lines,
    "long": _long_lines,
    "cut_gzip": _cut_gzip,
    "cut_zstd": _cut_zstd,
    "cut_xz": _cut_xz,
    "tables": _tables,
    "garbage": _members_with_garbage,
    "no_archive": _no_archives,
    "rows": _rows,
    "damaged": _damaged_parquet,
    "texts": _texts,
}


_Run = tuple[dict[str, Hostile], runs.Finished]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> _Run:
    """What each source must give, and one run over them all."""
    folder = tmp_path_factory.mktemp("hostile")
    expected = {name: make() for name, make in HOSTILE.items()}
    sources = ""
    for name, source in expected.items():
        for path, content in source.files.items():
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_bytes(content)
        sources += f"  {name}:\n    path: {folder}/{name}/**\n    keep: [url, x]\n"
    mixture = runs.write_mixture(folder, sources, _STAGES)
    return expected, runs.run_mixture(mixture, overrides=["max_quarantined=100%", "max_unreadable_files=100"])


def _seen(finished: runs.Finished, outcome: Outcome, source: str) -> list[InspectedDocument]:
    inspector = Inspector.open(finished.mixture.output)
    return inspector.find(DocumentQuery(outcome=outcome, source=source, count=10_000))


@pytest.mark.parametrize("source", HOSTILE)
def test_hostile_source_has_exact_books(hostile: _Run, source: str) -> None:
    expected, finished = hostile
    one = expected[source]
    dropped = {"filter.length:too_few_words": len(one.dropped)} if one.dropped else {}
    documents = finished.report["sources"][source]["documents"]
    assert sum(documents.pop("quarantine_reasons").values()) == len(one.quarantined)
    assert documents == {
        "read": len(one.kept) + len(one.dropped) + len(one.quarantined),
        "kept": len(one.kept),
        "dropped": dropped,
        "quarantined": len(one.quarantined),
    }


@pytest.mark.parametrize("source", HOSTILE)
def test_hostile_source_gives_each_document_at_its_place(hostile: _Run, source: str) -> None:
    expected, finished = hostile
    one = expected[source]
    assert {(seen.path, seen.position): seen.text for seen in _seen(finished, "kept", source)} == one.kept
    assert {(seen.path, seen.position) for seen in _seen(finished, "dropped", source)} == one.dropped
    quarantined = _seen(finished, "quarantined", source)
    assert {(seen.path, seen.position) for seen in quarantined} == one.quarantined
    assert [seen for seen in quarantined if seen.reason != "read" or not seen.error or "\n" in seen.error] == []


@pytest.mark.parametrize("source", HOSTILE)
def test_hostile_source_has_its_unreadable_files_in_the_report(hostile: _Run, source: str) -> None:
    expected, finished = hostile
    listed = {entry["source"]: entry for entry in finished.report["unreadable_files"]}
    files = listed[source]["files"] if source in listed else []
    assert {(file["path"], file["position"]) for file in files} == expected[source].unreadable
    assert all(file["error"] for file in files)


def test_hostile_files_without_a_record_are_counted(hostile: _Run) -> None:
    _, finished = hostile
    empty = {name: entry["counts"].get("read:empty_files", 0) for name, entry in finished.report["sources"].items()}
    assert {name: count for name, count in empty.items() if count} == {"no_archive": 2, "rows": 1, "tables": 2}


# ------------------------------------------------------------------------------------------------ damaged among good ones

_DAMAGES: dict[str, tuple[str, bytes, str]] = {
    "gzip_as_zstd": ("b.jsonl.zst", gzip.compress(_line("lost")), "the file is a gzip archive, and its name is that of a zstd"),
    "plain_as_zstd": ("b.jsonl.zst", _line("lost"), "the file is plain text, and its name is that of a zstd archive"),
    "gzip_as_plain": (
        "b.jsonl",
        gzip.compress(_line("lost")),
        "the file is a gzip archive, and its name is that of a plain",
    ),
    "cut_plain": ("b.jsonl", _line("lost")[:-3], "the file is cut off: it ends within the object on its last line"),
    "cut_gzip": ("b.jsonl.gz", gzip.compress(_line("lost"))[:-9], "the gzip archive is cut off"),
    "garbage": ("b.jsonl.zst", zstandard.compress(b"\n") + b"garbage", "bytes that are no zstd archive follow the end"),
    "empty": ("b.jsonl.gz", b"", "the file is empty, expected a gzip archive"),
    "footer": ("b.parquet", _parquet({"text": ["lost"]})[:-1], "the Parquet file is damaged: "),
}
_DAMAGES_BY_DEFAULT = ("cut_gzip", "garbage", "empty", "footer")
"""Whole runs over the others are slow tests."""


@pytest.mark.parametrize(
    "damage",
    [damage if damage in _DAMAGES_BY_DEFAULT else pytest.param(damage, marks=pytest.mark.slow) for damage in _DAMAGES],
)
def test_run_over_an_unreadable_file_fails_and_names_it_however_few_records_that_is(tmp_path: Any, damage: str) -> None:
    name, content, error = _DAMAGES[damage]
    (tmp_path / "a.jsonl").write_bytes(b"".join(line + b"\n" for line, _ in _good(1500)))
    (tmp_path / name).write_bytes(content)
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: ['{tmp_path}/a.jsonl', '{tmp_path}/b.*']\n", _STAGES)
    with pytest.raises(DatapipeError) as raised:
        runs.run_mixture(mixture, make_engine=runs.InProcess)
    assert f"source 'web': 1 input file cannot be read whole: {name} from " in str(raised.value)
    assert error in str(raised.value)
    assert "max_unreadable_files allows 0" in str(raised.value)
    assert isinstance(raised.value, UserError)
    is_found_by_plan = damage == "footer"
    assert (tmp_path / "out").exists() is not is_found_by_plan
    done = runs.run_mixture(mixture, make_engine=runs.InProcess, overrides=["max_unreadable_files=1"])
    assert ("web/read" in done.watcher.steps) is is_found_by_plan  # what the first run read is kept
    assert done.report["sources"]["web"]["documents"]["kept"] == 1500
