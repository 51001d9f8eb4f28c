"""Arrow IPC: files and streams, odd types, and files that are damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather

from datapipe.errors import DatapipeError, UserError
from datapipe.stage import FieldNames, InputFile, Split
from datapipe.storage import open_input
from stages.read.arrow import Arrow
from tests.support.reader_results import ReadResult, broken_storage, input_file, read_file, read_splits

_WRITERS: dict[str, Callable[..., Any]] = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}
both = pytest.mark.parametrize("kind", ["file", "stream"])


def _write(path: Path, kind: str, table: pa.Table, rows: int | None = None, compression: str | None = None) -> bytes:
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=kind == "stream")
    with _WRITERS[kind](str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path.read_bytes()


def _file(folder: Path, content: bytes) -> InputFile:
    return input_file(folder / "b.arrow", content, reader=Arrow())


def _read(folder: Path, columns: dict[str, Any], fields: FieldNames | None = None, kind: str = "file") -> ReadResult:
    _write(folder / "a.arrow", kind, pa.table(columns))
    return read_file(Arrow(), input_file(folder / "a.arrow", reader=Arrow()), fields)


@both
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_rows_are_documents_at_their_numbers_in_splits_of_any_size(
    tmp_path: Path, kind: str, compression: str | None
) -> None:
    texts = [f"row {number} é中" for number in range(100)]
    table = pa.table({"id": [f"i{number}" for number in range(100)], "text": texts, "other": range(100)})
    _write(tmp_path / "a.arrow", kind, table, 7, compression)
    file = input_file(tmp_path / "a.arrow", reader=Arrow())
    assert [rows for rows, _ in file.row_groups] == [7] * 14 + [2]
    whole = read_file(Arrow(), file)
    assert whole.documents == [(number, text, f"i{number}") for number, text in enumerate(texts)]
    assert whole.rejected == []
    for target in (1, 1500, 1 << 30):
        assert read_splits(Arrow(), Arrow().cut(file, target)).documents == whole.documents
    assert len(Arrow().cut(file, 1)) == 15


@both
@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b", None], pa.string()),
        pa.array(["a", "b", None], pa.large_string()),
        pa.array(["a", "b", None], pa.string_view()),
        pa.array(["a", "b", None]).dictionary_encode(),
        pa.array([b"a", b"b", b"\xff"], pa.binary()),
        pa.array([b"a", b"b", b"\xff"], pa.binary_view()),
        pa.array([b"a", b"b", b"\xff"], pa.binary(1)),
        pa.array([b"a", b"b", b"\xff"]).dictionary_encode(),
        pa.array(["a", "b", None], pa.json_(pa.string())),
        pa.RunEndEncodedArray.from_arrays([1, 2, 3], ["a", "b", None]),
    ],
)
def test_arrow_text_of_every_string_type_is_read_and_the_rest_rejected(tmp_path: Path, kind: str, column: pa.Array) -> None:
    found = _read(tmp_path, {"text": column, "id": column}, kind=kind)
    assert found.documents == [(0, "a", "a"), (1, "b", "b")]
    assert found.rejected == [(2, "field 'text' is null or invalid UTF-8; expected UTF-8 text")]


def test_arrow_strings_of_invalid_utf8_are_rejected_row_by_row(tmp_path: Path) -> None:
    offsets, data = pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])), pa.py_buffer(b"\xffb")
    column = pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])
    assert _read(tmp_path, {"text": column}).rejected_places == [0]
    assert _read(tmp_path, {"text": pa.DictionaryArray.from_arrays([1, 0], column)}).rejected_places == [1]
    inner = pa.StructArray.from_arrays([column], ["body"])
    assert _read(tmp_path, {"c": inner}, FieldNames(text="c.body")).documents == [(1, "b", None)]
    found = _read(tmp_path, {"text": ["a", "b"], "id": column, "k": column}, FieldNames(keep=("k",)))
    assert (found.ids, found.extra) == ([None, "b"], {"k": [None, "b"]})


def test_arrow_dots_reach_into_structs_and_kept_columns_keep_their_types(tmp_path: Path) -> None:
    columns = {
        "c": [{"text": "a", "x": 0}, None, {"text": "b", "x": 1}],
        "c.x": ["l", "m", "n"],
        "score": [0.5, None, 1.5],
        "tags": [["p"], [], None],
    }
    found = _read(tmp_path, columns, FieldNames(text="c.text", keep=("c.x", "c.none", "score", "tags")))
    assert found.documents == [(0, "a", None), (2, "b", None)]
    assert found.rejected_places == [1]
    assert found.extra == {"c.x": ["l", "n"], "c.none": [None, None], "score": [0.5, 1.5], "tags": [["p"], None]}
    seen = Arrow().fields_seen(Split(file=input_file(tmp_path / "a.arrow")), FieldNames(text="c.text"), open_input)
    assert (seen.num_records, seen.found) == (3, {"c.text"})
    assert "c.x" in seen.names


def test_arrow_without_the_text_field_rejects_every_row(tmp_path: Path) -> None:
    error = "field 'text' is not in the file; expected a column of strings"
    assert _read(tmp_path, {"body": ["a", "b"]}).rejected == [(0, error), (1, error)]
    twice = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    _write(tmp_path / "a.arrow", "file", twice)
    found = read_file(Arrow(), input_file(tmp_path / "a.arrow", reader=Arrow()))
    assert found.rejected == [(0, "field 'text' occurs twice in the file; expected a column of strings")]


@pytest.mark.parametrize("deltas", [False, True])
def test_arrow_dictionaries_that_change_in_a_stream_hold_in_every_split(tmp_path: Path, deltas: bool) -> None:
    first = pa.array(["a", "b", "a"]).dictionary_encode()
    longer = pa.DictionaryArray.from_arrays(pa.array([2, 0], pa.int32()), ["a", "b", "c"])
    other = pa.array(["x", "y"]).dictionary_encode()
    chunks = [first, longer] if deltas else [first, longer, other, first]
    schema = pa.schema([("text", first.type)])
    with pa.ipc.new_stream(
        str(tmp_path / "a.arrow"), schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    ) as writer:
        for chunk in chunks:
            writer.write_batch(pa.record_batch([chunk], schema=schema))
    file = input_file(tmp_path / "a.arrow", reader=Arrow())
    expected = [text for chunk in chunks for text in chunk.to_pylist()]
    assert read_file(Arrow(), file).texts == read_splits(Arrow(), Arrow().cut(file, 1)).texts == expected
    assert Arrow().read_document(file, len(expected) - 1, FieldNames(), open_input) == expected[-1]


def test_arrow_saved_dataset_has_features_in_the_schema(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"], "url": ["u", "v"]})
    features = {"huggingface": '{"info": {"features": {"text": {"_type": "Value"}}}}'}
    _write(tmp_path / "data-00000-of-00001.arrow", "stream", table.replace_schema_metadata(features))
    file = input_file(tmp_path / "data-00000-of-00001.arrow", reader=Arrow())
    assert read_file(Arrow(), file).texts == ["a", "b"]
    seen = Arrow().fields_seen(Split(file=file), FieldNames(keep=("url", "none")), open_input)
    assert (seen.num_records, seen.found, seen.names) == (2, {"text", "url"}, ("text", "url"))


@both
def test_arrow_without_rows_or_batches_has_no_documents(tmp_path: Path, kind: str) -> None:
    assert _read(tmp_path, {"text": pa.array([], pa.string())}, kind=kind) == ReadResult()


def test_arrow_feather_is_read_and_its_first_version_told(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"text": ["a", "b"]}), str(tmp_path / "a.feather"))
    assert read_file(Arrow(), input_file(tmp_path / "a.feather", reader=Arrow())).texts == ["a", "b"]
    found = read_file(Arrow(), _file(tmp_path, b"FEA1" + bytes(60) + b"FEA1"))
    assert found.documents == []
    assert "Feather version 1" in found.rejected[0][1]


@pytest.mark.medium
def test_arrow_batches_are_bounded_by_the_size_of_rows(tmp_path: Path) -> None:
    texts = [f"{number:08d}" + "x" * 500_000 for number in range(30)]
    found = _read(tmp_path, {"text": texts})
    assert found.texts == texts
    assert max(found.batch_sizes) <= 10
    assert max(_read(tmp_path, {"text": ["a"] * 20_000}).batch_sizes) == 8192


def test_arrow_inside_an_archive_is_refused_at_planning(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Arrow IPC inside zstd"):
        input_file(tmp_path / "a.arrow.zst", b"anything", reader=Arrow())


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"no arrow at all", b"ARROW1\0\0" + b"x" * 100 + b"ARROW1", b"\xff" * 64])
def test_arrow_what_is_no_arrow_is_one_reject(tmp_path: Path, content: bytes) -> None:
    file = _file(tmp_path, content)
    assert file.damage
    found = read_splits(Arrow(), Arrow().cut(file, 1 << 20))
    assert (file.row_groups, found.documents, found.rejected_places) == ((), [], [0])


@both
@pytest.mark.parametrize("target_bytes", [1, 1 << 30])
def test_arrow_damaged_record_batch_costs_itself_and_no_other(tmp_path: Path, kind: str, target_bytes: int) -> None:
    rng = random.Random(3)
    texts = [rng.randbytes(400).hex() for _ in range(60)]
    content = bytearray(_write(tmp_path / "a.arrow", kind, pa.table({"text": texts}), 20))
    at = content.index(texts[20].encode()) - 84  # within the 21 offsets of the batch
    content[at : at + 40] = b"\xff" * 40
    file = _file(tmp_path, bytes(content))
    found = read_splits(Arrow(), Arrow().cut(file, target_bytes))
    assert found.texts == texts[:20] + texts[40:]
    assert [place for place, _, _ in found.documents] == [*range(20), *range(40, 60)]
    assert found.rejected_places == [20]
    assert found.rejected[0][1].startswith("record batch 1 of the Arrow file is damaged, from row 20 on: ")


@pytest.mark.medium
@both
def test_arrow_cut_short_anywhere_keeps_whole_batches_and_is_told(tmp_path: Path, kind: str) -> None:
    texts = [f"text {number}" for number in range(30)]
    stored = _write(tmp_path / "a.arrow", kind, pa.table({"text": texts}), 10)
    kept = set()
    for size in range(len(stored)):
        file = _file(tmp_path, stored[:size])
        found = read_splits(Arrow(), Arrow().cut(file, 1))
        assert found.texts == texts[: len(found.texts)]
        assert found.rejected_places == [len(found.texts)]
        kept.add(len(found.texts))
    assert kept == {0, 10, 20, 30}


def test_arrow_bytes_behind_the_end_of_a_stream_are_told(tmp_path: Path) -> None:
    stored = _write(tmp_path / "a.arrow", "stream", pa.table({"text": ["a"]}))
    found = read_file(Arrow(), _file(tmp_path, stored + stored))
    assert found.texts == ["a"]
    assert found.rejected == [
        (
            1,
            f"the Arrow file is damaged from row 1 on: {len(stored)} bytes follow the end of the stream; expected the end of "
            f"the file",
        )
    ]


@pytest.mark.medium
@both
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_with_flipped_bytes_never_raises(tmp_path: Path, kind: str, compression: str | None) -> None:
    texts = pa.array([f"text {number}" for number in range(200)])
    columns = {"text": texts, "id": range(200), "k": texts.dictionary_encode(), "v": texts.cast(pa.string_view())}
    stored = _write(tmp_path / "a.arrow", kind, pa.table(columns), 80, compression)
    fields = FieldNames(keep=("k", "v"))
    for seed in range(250):
        rng = random.Random(seed)
        content = bytearray(stored)
        for _ in range(rng.choice([1, 3])):
            content[rng.randrange(len(content))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        file = _file(tmp_path, bytes(content))
        found = read_splits(Arrow(), Arrow().cut(file, rng.choice([1, 1 << 30])), fields)
        documents = [place for place, _, _ in found.documents]
        assert len(documents) == len(set(documents))
        assert len(documents) + len(found.rejected) >= 200 or any("damaged" in error for _, error in found.rejected)


def test_arrow_batch_beyond_the_limit_is_told_before_it_is_decompressed(tmp_path: Path) -> None:
    table = pa.table({"text": ["small", "x" * 100_000, "end"]})
    stored = _write(tmp_path / "a.arrow", "stream", table, 1, "zstd")
    file = _file(tmp_path, stored)
    found = read_file(Arrow(max_batch_bytes=50_000), file)
    assert found.texts == ["small", "end"]
    assert "more than max_batch_bytes, 50000" in found.rejected[0][1]


def test_arrow_replaced_since_it_was_planned_stops_the_task(tmp_path: Path) -> None:
    _write(tmp_path / "a.arrow", "file", pa.table({"text": ["a", "b"]}))
    file = input_file(tmp_path / "a.arrow", reader=Arrow())
    _write(tmp_path / "a.arrow", "file", pa.table({"text": ["a", "b", "c"]}))
    with pytest.raises(DatapipeError, match="its record batches differ from those that were planned"):
        read_file(Arrow(), file)


def test_arrow_what_storage_raises_is_no_fault_of_the_file(tmp_path: Path) -> None:
    texts = [random.Random(1).randbytes(1000).hex() for _ in range(100)]
    _write(tmp_path / "a.arrow", "stream", pa.table({"text": texts}), 10)
    file = input_file(tmp_path / "a.arrow", reader=Arrow())
    with pytest.raises(OSError, match="the disk is gone"):
        Arrow().probe(file, broken_storage(fails_at=100))
    for fails_at in (100, file.num_bytes // 2, file.num_bytes - 1):
        with pytest.raises(OSError, match="the disk is gone"):
            read_splits(Arrow(), [Split(file=file)], opened=broken_storage(fails_at=fails_at))


def test_arrow_read_one_gives_each_document_by_its_row(tmp_path: Path) -> None:
    _write(tmp_path / "a.arrow", "stream", pa.table({"text": ["a", None, "c", "d", "e"]}), 2)
    file = input_file(tmp_path / "a.arrow", reader=Arrow())
    found = [Arrow().read_document(file, row, FieldNames(), open_input) for row in range(7)]
    assert found == ["a", None, "c", "d", "e", None, None]
