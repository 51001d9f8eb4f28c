"""Datasets of other tools hold every row or document once, in order, and a killed export is finished by the same one."""

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from datapipe.errors import CorruptionError, UserError
from datapipe.records.checksum import file_checksum
from datapipe.shards.documents.writer import DocumentWriter
from datapipe.shards.manifest import Snapshot
from datapipe.shards.shard_table import ShardEntry
from datapipe.shards.source_entry import SourceEntry
from datapipe.snapshots.export.export import ExportedSplit, ExportRequest
from datapipe.snapshots.export.folder import MARK, RECORD
from datapipe.snapshots.export.parts import Part, joined_schema, parts_of_documents, parts_of_rows
from datapipe.snapshots.export.write import loading_line, write_dataset
from datapipe.storage.root import Root
from tests.support.killed_changes import content_of, is_killed
from tests.support.mds_reader import read_mds
from tests.support.packed_shards import RemoteRoot, make_snapshot, packed_batch

pytestmark = pytest.mark.medium

LENGTH = 16
FORMATS = ("parquet", "jsonl", "mds")


def batch_of(documents: list[dict], source: str, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{**each, "source": source} for each in documents], schema=schema)


def web_schema() -> pa.Schema:
    texts = {name: pa.large_string() for name in ("id", "url")}
    return pa.schema([*texts.items(), ("source", pa.string()), ("text", pa.large_string()), ("score", pa.float64())])


def book_schema() -> pa.Schema:
    return pa.schema([("id", pa.large_string()), ("source", pa.string()), ("text", pa.large_string()), ("year", pa.int64())])


WEB = [
    {"id": f"web/a:{number}", "url": f"https://example.org/{number}" if number % 3 else None, "text": text, "score": number / 4}
    for number, text in enumerate(["One.", "", 'Two "quoted"\n\ttabs', "Ünïcode \N{GRINNING FACE}", "2020-01-01 00:00:00"] * 7)
]
BOOKS = [{"id": f"books/b:{number}", "text": "Page " * (number % 9), "year": 1900 + number} for number in range(23)]
HELD_OUT = [{"id": f"books/v:{number}", "text": f"Held out {number}", "year": number} for number in range(5)]


def parts(rows_per_batch: int = 4) -> list[Part]:
    def part(source, split, schema, documents):
        batch = batch_of(documents, source, schema)
        slices = [batch.slice(start, rows_per_batch) for start in range(0, batch.num_rows, rows_per_batch)]
        return Part(source=source, split=split, schema=schema, batches=lambda: iter(slices))

    return [
        part("books", "train", book_schema(), BOOKS),
        part("books", "validation", book_schema(), HELD_OUT),
        part("web", "train", web_schema(), WEB),
    ]


def expected(split: str) -> list[dict]:
    columns = ("id", "url", "source", "text", "year", "score")
    found = [{"source": "books", **each} for each in (BOOKS if split == "train" else HELD_OUT)]
    found += [{"source": "web", **each} for each in WEB] if split == "train" else []
    return [{name: each.get(name) for name in columns} for each in found]


def request(format, **options) -> ExportRequest:
    return ExportRequest(format=format, kind="documents", **options)


NAMED: Any = SimpleNamespace(name="a: name", fingerprint="1" * 32, sequence_length=0)


def export(folder: Path, format, found: list[Part] | None = None, to: str = "new", **options) -> Any:
    wanted = request(format, **options)
    return write_dataset(Root(str(folder / "out")), NAMED, Root(str(folder / to)), wanted, parts() if found is None else found)


def read_back(folder: Path, format: str, split: str) -> list[dict]:
    """All rows of a split, by nothing but the files, in the order of their names."""
    if format == "mds":
        return read_mds(folder / split)
    ending = "parquet" if format == "parquet" else "jsonl.zst"
    files = sorted((folder / "data").glob(f"{split}-*"))
    assert [path.name for path in files] == [f"{split}-{n:05d}.{ending}" for n in range(len(files))]
    if format == "parquet":
        return [row for path in files for row in pq.read_table(path).to_pylist()]
    lines = b"".join(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd").read() for path in files)
    return [json.loads(line) for line in lines.decode().splitlines()]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("target_bytes", [None, 300])
def test_every_document_comes_back_once_in_order_with_its_split_and_columns(tmp_path, format, target_bytes):
    done = export(tmp_path, format, target_bytes=target_bytes)
    for split in ("train", "validation"):
        assert read_back(tmp_path / "new", format, split) == expected(split)
    assert export(tmp_path, format, target_bytes=target_bytes) == done
    files = {name: text for name, text in content_of(tmp_path / "new").items() if name != RECORD}
    counts = [(part.source, part.split, part.rows) for part in done]
    assert counts == [("books", "train", 23), ("web", "train", 35), ("books", "validation", 5)]
    assert (len(files) > 6) == (target_bytes is not None)


@given(st.integers(1, 40), st.integers(200, 3000), st.sampled_from(FORMATS), st.booleans())
@settings(max_examples=10)
def test_bytes_depend_on_rows_and_options_alone(tmp_path_factory, rows_per_batch, target_bytes, format, zstd):
    folder = tmp_path_factory.mktemp("bytes")
    wanted = request(format, target_bytes=target_bytes, is_compressed=zstd and format == "mds")
    for kind, size in ((Root, rows_per_batch), (RemoteRoot, 7)):
        (folder / kind.__name__ / "data").mkdir(parents=True)  # an object store has no folders
        for name in ("train", "validation"):
            (folder / kind.__name__ / name).mkdir()
        write_dataset(Root(str(folder / "out")), NAMED, kind(str(folder / kind.__name__)), wanted, parts(size))
    assert content_of(folder / "Root") == content_of(folder / "RemoteRoot")


def test_front_matter_names_the_files_of_each_split(tmp_path):
    export(tmp_path, "parquet", target_bytes=300)
    _, front, _ = (tmp_path / "new/README.md").read_text().split("---\n", 2)
    (config,) = YAML(typ="safe", pure=True).load(front)["configs"]
    found = {
        each["split"]: {str(path.relative_to(tmp_path / "new")) for path in (tmp_path / "new").glob(each["path"])}
        for each in config["data_files"]
    }
    assert (config["config_name"], list(found)) == ("default", ["train", "validation"])
    assert set().union(*found.values()) == {name for name in content_of(tmp_path / "new") if name.startswith("data/")}
    sources = [set(pq.read_table(path)["source"].to_pylist()) for path in sorted((tmp_path / "new/data").glob("train-*"))]
    assert all(len(of_file) == 1 for of_file in sources)


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_that_is_killed_anywhere_looks_unfinished_and_the_same_one_finishes_it(tmp_path, format):
    again = partial(export, tmp_path, format, to="killed", target_bytes=700)
    export(tmp_path, format, to="whole", target_bytes=700)
    folder, kills, whole = tmp_path / "killed", 0, content_of(tmp_path / "whole")
    while is_killed(again, kills):
        kills += 1
        there = content_of(folder) if folder.exists() else {}
        assert MARK in there or not there
        if kills % 3 == 0:  # from here, and from the beginning too
            again()
            assert content_of(folder) == whole
            shutil.rmtree(folder)
    assert kills > 5
    assert content_of(folder) == whole


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"mine.txt": "mine"}, "not empty"),
        ({"_UNFINISHED": '{"format": "mds"}'}, "format 'mds' in place of 'parquet'"),
        ({"_UNFINISHED": "?"}, "_UNFINISHED"),
        ({"_UNFINISHED": None, "data/mine.txt": "mine"}, r"data/mine\.txt"),
    ],
)
def test_a_folder_with_anything_else_is_refused_and_left_as_it_is(tmp_path, files, told):
    folder = tmp_path / "new"
    assert is_killed(lambda: export(tmp_path, "parquet", to="mark"), 1)
    mark = (tmp_path / "mark/_UNFINISHED").read_text()
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(mark if text is None else text)
    before = content_of(folder)
    with pytest.raises(UserError, match=told):
        export(tmp_path, "parquet")
    assert content_of(folder) == before


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_of_no_row_is_refused_and_leaves_no_file(tmp_path, format):
    empty = Part(source="web", split="train", schema=web_schema(), batches=lambda: iter([]))
    for found in ([], [empty]):
        with pytest.raises(UserError, match="nothing to export"):
            export(tmp_path, format, found)
    assert not list((tmp_path / "new").rglob("*"))


def test_schema_of_files_holds_the_values_of_all_or_is_refused_with_both_files() -> None:
    first = pa.schema([("n", pa.int64()), ("m", pa.struct([("a", pa.int64())]))])
    second = pa.schema([("n", pa.float64()), ("m", pa.struct([("b", pa.bool_())]))])
    together = [("n", pa.float64()), ("m", pa.struct([("a", pa.int64()), ("b", pa.bool_())]))]
    assert joined_schema({"a": first, "b": second}) == pa.schema(together)
    with pytest.raises(UserError, match=r"'n' is int64 in a\.parquet and large_string in b\.parquet.*types: \{n: string\}"):
        joined_schema({"a.parquet": first, "b.parquet": pa.schema([("n", pa.large_string())])})


def test_one_column_of_two_types_is_refused(tmp_path):
    schema = web_schema().set(4, pa.field("score", pa.string()))
    other = Part(source="code", split="train", schema=schema, batches=lambda: iter([]))
    with pytest.raises(UserError, match=r"'score' is double in 'web' and string in 'code'.*--source"):
        export(tmp_path, "parquet", [*parts(), other])
    assert not (tmp_path / "new").exists()


def test_an_mds_sample_beyond_the_size_of_a_shard_is_alone_in_one(tmp_path):
    export(tmp_path, "mds", target_bytes=1)
    index = json.loads((tmp_path / "new/train/index.json").read_bytes())
    assert [shard["samples"] for shard in index["shards"]] == [1] * 58
    with pytest.raises(UserError, match="less than 4 GiB"):
        export(tmp_path, "mds", to="two", target_bytes=1 << 32)


@pytest.mark.parametrize("vocab_size", [50_000, 100_000])
@pytest.mark.parametrize("format", ["jsonl", "mds"])
def test_packed_rows_come_back_once_in_the_order_of_the_shards(tmp_path, vocab_size, format):
    batch = packed_batch(40, LENGTH, vocab_size=vocab_size)
    snapshot = make_snapshot(tmp_path / "out", batch, "arrow", 300, vocab_size)
    root = Root(str(tmp_path / "out"))
    wanted = ExportRequest(format=format, target_bytes=600)
    write_dataset(root, snapshot, Root(str(tmp_path / "new")), wanted, parts_of_rows(root, snapshot, None, None))
    rows = [{"source": "web", **row, "keys": [key.hex() for key in row["keys"]]} for row in batch.to_pylist()]
    assert read_back(tmp_path / "new", format, "train") == rows


def documents_snapshot(folder: Path, format) -> tuple[Root, Snapshot]:
    root, entries = Root(str(folder)), []
    for part in (parts()[0], parts()[2]):
        for number, rows in enumerate(part.batches()):
            writer = DocumentWriter(root, f"documents/{part.source}/part-{number:05d}.{format}", format, part.schema)
            writer.add(rows)
            done = writer.finish()
            sizes = {"documents": done.rows, "text_bytes": done.text_bytes, "bytes": done.bytes}
            checksum = file_checksum(root, done.path)[0]
            no_rows = {"split": "train", "sequences": 0, "tokens": 0}
            entries.append(ShardEntry(path=done.path, source=part.source, checksum=checksum, **no_rows, **sizes))
    sources = dict.fromkeys(("books", "web"), SourceEntry(weight=0))
    snapshot = Snapshot(name="texts", seed=1, shard_format=format, sources=sources, shards=tuple(entries)).sealed()
    return root, snapshot


@pytest.mark.parametrize("stored", ["parquet", "jsonl.zst"])
@pytest.mark.parametrize("format", FORMATS)
def test_documents_of_a_run_without_a_tokenizer_come_back_in_every_format(tmp_path, stored, format):
    root, snapshot = documents_snapshot(tmp_path / "out", stored)
    export(tmp_path, format, parts_of_documents(root, snapshot, None, None))
    assert read_back(tmp_path / "new", format, "train") == expected("train")


@pytest.mark.parametrize("damage", ["flip", "lose"])
def test_a_damaged_file_of_documents_is_reported_before_anything_is_written(tmp_path, damage):
    root, snapshot = documents_snapshot(tmp_path / "out", "parquet")
    path = tmp_path / "out" / snapshot.shards[3].path
    found = bytearray(path.read_bytes())
    found[len(found) // 2] ^= 1
    path.unlink()
    if damage == "flip":
        path.write_bytes(found)
    with pytest.raises(CorruptionError, match=snapshot.shards[3].path):
        parts_of_documents(root, snapshot, None, None)


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("format", [*FORMATS, "arrow", "megatron"])
def test_the_printed_line_is_python_that_loads_a_split(format, is_remote):
    called: list[Any] = []
    peer = SimpleNamespace(load_dataset=lambda *given, **named: called.append((given, named)))
    peer.StreamingDataset = peer.Loader = peer.IndexedDataset = peer.load_dataset
    peer.loader = peer.core = peer.datasets = peer.indexed_dataset = peer
    names = dict.fromkeys(("datasets", "streaming", "datapipe", "megatron"), peer)
    files = ("web/validation.bin", "web/validation.idx")
    first = ExportedSplit(source="web", split="validation", rows=1, files=files)
    eval(loading_line('a "folder"', is_remote, request(format), first), names)
    ((given, named),) = called
    place = "LOCAL-COPY" if is_remote and format not in ("mds", "arrow") else 'a "folder"'
    if format == "megatron":
        assert given == (f"{place}/web/validation",)
    else:
        assert (place in (*given, *named.values()), named["split"]) == (True, "validation")
