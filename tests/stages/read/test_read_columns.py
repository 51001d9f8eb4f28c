"""Parquet and Arrow: columns of every type, row groups, record batches, and files that are damaged."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from datapipe.errors import DatapipeError, UserError
from datapipe.stage import FieldNames, InputFile, Reader, Split
from datapipe.storage.root import open_input
from stages.read.arrow import Arrow
from stages.read.parquet import Parquet
from tests.support.reader_formats import parquet
from tests.support.reader_results import ReadResult, input_file, read_file, read_splits, text_at


def _write_arrow(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


_WRITERS: dict[str, tuple[Reader, Callable[[pa.Table, Path], None]]] = {
    "parquet": (Parquet(), pq.write_table),
    "arrow": (Arrow(), _write_arrow),
}
_NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])), pa.py_buffer(b"\xffb")]
)

both_formats = pytest.mark.parametrize("kind", _WRITERS)


def _read(folder: Path, kind: str, columns: Any, fields: FieldNames | None = None) -> ReadResult:
    reader, write = _WRITERS[kind]
    write(columns if isinstance(columns, pa.Table) else pa.table(columns), folder / f"a.{kind}")
    return read_file(reader, input_file(folder / f"a.{kind}", reader=reader), fields)


@both_formats
@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b", None], pa.string()),
        pa.array(["a", "b", None], pa.large_string()),
        pa.array(["a", "b", None], pa.string_view()),
        pa.array(["a", "b", None]).dictionary_encode(),
        pa.array(["a", "b", None], pa.json_(pa.string())),
        pa.array([b"a", b"b", b"\xff"], pa.binary()),
        pa.array([b"a", b"b", b"\xff"], pa.large_binary()),
        pa.array([b"a", b"b", b"\xff"], pa.binary_view()),
        pa.array([b"a", b"b", b"\xff"], pa.binary(1)),
        pa.array([b"a", b"b", b"\xff"]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_columns_text_of_every_string_type_is_read_and_the_rest_rejected(tmp_path: Path, kind: str, column: pa.Array) -> None:
    found = _read(tmp_path, kind, {"text": column, "id": column})
    assert found.documents == [(0, "a", "a"), (1, "b", "b")]
    assert (found.rejected_places, found.is_damage) == ([2], [False])


@both_formats
def test_columns_strings_of_invalid_utf8_are_rejected_row_by_row(tmp_path: Path, kind: str) -> None:
    assert _read(tmp_path, kind, {"text": _NOT_UTF8}).rejected_places == [0]
    dictionary = _NOT_UTF8.dictionary_encode()
    assert _read(tmp_path, kind, {"text": dictionary}).rejected_places == [0]
    inner = pa.StructArray.from_arrays([_NOT_UTF8], ["body"])
    assert _read(tmp_path, kind, {"c": inner}, FieldNames(text="c.body")).documents == [(1, "b", None)]
    found = _read(tmp_path, kind, {"text": ["a", "b"], "id": _NOT_UTF8, "k": _NOT_UTF8}, FieldNames(keep=("k",)))
    assert (found.texts, found.ids, found.extra) == (["a", "b"], [None, "b"], {"k": [None, "b"]})


@both_formats
def test_columns_of_many_rows_come_in_batches(tmp_path: Path, kind: str) -> None:
    assert _read(tmp_path, kind, {"text": ["a"] * 20_000}).batch_sizes == [8192, 8192, 3616]


@both_formats
@pytest.mark.parametrize(
    ("table", "error"),
    [
        (pa.table({"body": ["a", "b"]}), "is not in the file"),
        (pa.table({"text": [1, 2]}), "is int64"),
        (pa.table({"text": [{"a": "b"}] * 2}), "is struct<a: string>"),
        (pa.table([pa.array(["a"] * 2)] * 2, names=["text", "text"]), "occurs twice in the file"),
    ],
    ids=["none", "number", "struct", "twice"],
)
def test_columns_without_a_text_reject_every_row(tmp_path: Path, kind: str, table: pa.Table, error: str) -> None:
    found = _read(tmp_path, kind, table)
    assert (found.documents, found.rejected_places) == ([], [0, 1])
    assert {f"field 'text' {error}" in each for _, each in found.rejected} == {True}


@both_formats
@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (pa.array([1, None, -(2**63)]), ["1", None, "-9223372036854775808"]),
        (pa.array([2**64 - 1, 0, 1], pa.uint64()), ["18446744073709551615", "0", "1"]),
        (pa.array([0.5, -2.0, None], pa.float64()), ["0.5", "-2", None]),
        (pa.array([True, False, None]), ["true", "false", None]),
        (pa.array([0, 1, None], pa.date32()), ["1970-01-01", "1970-01-02", None]),
        (pa.array([0, 1, None], pa.timestamp("ms")), ["1970-01-01 00:00:00.000", "1970-01-01 00:00:00.001", None]),
        (pa.array([b"ab", b"\xff\xff", None], pa.binary(2)), ["ab", None, None]),
        (pa.array([[1], [], None]), ["[1]", "[]", None]),
        (pa.array([0, 1, None], pa.timestamp("us", "Nowhere/At_all")), [None, None, None]),
        (pa.array([bytes(15) + b"\x07", None, bytes(16)], pa.uuid()), [str(UUID(int=7)), None, str(UUID(int=0))]),
        (pa.array([1, 2, 1]).dictionary_encode(), ["1", "2", "1"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_columns_ids_become_strings(tmp_path: Path, kind: str, ids: pa.Array, expected: list[str | None]) -> None:
    assert _read(tmp_path, kind, {"text": ["a", "b", "c"], "id": ids}).ids == expected


@both_formats
def test_columns_that_are_kept_keep_their_types(tmp_path: Path, kind: str) -> None:
    columns = {
        "text": ["a", None, "c"],
        "url": pa.array(["u", "v", None]),
        "tag": pa.array(["x", "x", "y"]).dictionary_encode(),
        "score": [0.5, None, 1.5],
        "tags": [["p"], [], None],
        "empty": pa.nulls(3),
    }
    fields = FieldNames(keep=("url", "tag", "score", "tags", "none", "empty"))
    assert _read(tmp_path, kind, columns).texts == ["a", "c"]
    file = input_file(tmp_path / f"a.{kind}", reader=_WRITERS[kind][0])
    (batch,) = _WRITERS[kind][0].read(Split(file=file), fields, open_input)
    large = pa.large_string()
    types = [large, large, pa.float64(), pa.list_(pa.string()), large, large]
    assert [batch.extra[name].type for name in fields.keep] == types
    kept = [batch.extra[name].to_pylist() for name in fields.keep]
    assert kept == [["u", None], ["x", "y"], [0.5, 1.5], [["p"], None], [None, None], [None, None]]


@both_formats
def test_columns_dots_reach_into_structs_unless_a_column_has_the_name(tmp_path: Path, kind: str) -> None:
    columns = {"c": [{"text": "a", "id": 1, "x": 0}, None, {"text": "b", "id": None, "x": 0}], "c.x": ["l", "m", "n"]}
    found = _read(tmp_path, kind, columns, FieldNames(text="c.text", id="c.id", keep=("c.x", "c.none")))
    assert (found.documents, found.rejected_places) == ([(0, "a", "1"), (2, "b", None)], [1])
    assert found.extra == {"c.x": ["l", "n"], "c.none": [None, None]}
    assert _read(tmp_path, kind, columns, FieldNames(text="c.x")).texts == ["l", "m", "n"]
    seen = _WRITERS[kind][0].fields_seen(Split(file=input_file(tmp_path / f"a.{kind}")), FieldNames(text="c.text"), open_input)
    assert (seen.num_records, seen.found) == (3, {"c.text"})
    assert {"c.text", "c.x"} <= set(seen.names)


@both_formats
def test_columns_of_a_file_that_changed_since_it_was_planned_stop_the_task(tmp_path: Path, kind: str) -> None:
    reader, write = _WRITERS[kind]
    _read(tmp_path, kind, {"text": ["a", "b"]})
    file = input_file(tmp_path / f"a.{kind}", reader=reader)
    write(pa.table({"text": ["a", "b", "c"]}), tmp_path / f"a.{kind}")
    with pytest.raises(DatapipeError):
        read_file(reader, file)


@both_formats
def test_columns_inside_an_archive_are_refused_at_planning(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UserError):
        input_file(tmp_path / f"a.{kind}.zst", b"anything", reader=_WRITERS[kind][0])


@both_formats
@pytest.mark.parametrize(
    "content",
    [b"no such file", b"PAR1", b"ARROW1", b"PAR1" + b"x" * 100 + b"\xff\xff\0\0PAR1", b"ARROW1\0\0" + b"x" * 100 + b"ARROW1"],
)
def test_columns_of_what_is_no_such_file_are_one_reject(tmp_path: Path, kind: str, content: bytes) -> None:
    reader = _WRITERS[kind][0]
    file = input_file(tmp_path / f"a.{kind}", content, reader=reader)
    found = read_splits(reader, reader.cut(file, 1 << 20))
    assert (bool(file.damage), file.row_groups) == (True, ())
    assert (found.documents, found.rejected_places, found.is_damage) == ([], [0], [True])


@pytest.mark.slow
def test_parquet_text_that_all_rows_share_is_read_in_parts_of_bounded_memory(tmp_path: Path) -> None:
    long, num_rows = "x" * 800_000, 20_000  # 8 GB of text in a file of some kB
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 1] * (num_rows // 2), pa.int32()), pa.array([long, "short"]))
    for name, stored in (("as a dictionary", True), ("as strings", False)):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"text": texts}), path, compression="zstd", store_schema=stored)
        batches = Parquet().read(Split(file=input_file(path, reader=Parquet())), FieldNames(), open_input)
        first = [next(batches) for _ in range(40)]
        assert not any(batch.rejected for batch in first)
        assert max(batch.content.nbytes for batch in first) < 8 << 20
        found = [text for batch in first for text in batch.content.to_pylist()]
        assert found == [long, "short"] * (len(found) // 2) + [long] * (len(found) % 2)
        assert [int(batch.positions[0]) for batch in first[:2]] == [0, len(first[0].positions)]


def _damaged(path: Path, texts: list[str], first: int, **writing: Any) -> InputFile:
    """Three row groups, the text of the second of them overwritten from byte `first` of its pages on."""
    pq.write_table(pa.table({"text": texts}), path, row_group_size=-(-len(texts) // 3), use_dictionary=False, **writing)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    for at in range(column.data_page_offset + first, column.data_page_offset + column.total_compressed_size):
        content[at] ^= 0xFF
    return input_file(path, bytes(content), reader=Parquet())


@pytest.mark.parametrize("target_bytes", [1, 1 << 30])
def test_parquet_damaged_row_group_costs_itself_and_no_other(tmp_path: Path, target_bytes: int) -> None:
    rng = random.Random(3)
    texts = [rng.randbytes(400).hex() for _ in range(60)]
    file = _damaged(tmp_path / "a.parquet", texts, 100, compression="zstd")
    found = read_splits(Parquet(), Parquet().cut(file, target_bytes))
    assert found.texts == texts[:20] + texts[40:]
    assert [place for place, _, _ in found.documents] == [*range(20), *range(40, 60)]
    assert found.rejected_places == [20]
    assert found.rejected[0][1].startswith("row group 1 of the Parquet file is damaged from row 20 on: ")


@pytest.mark.medium
@pytest.mark.parametrize("target_bytes", [1, 1 << 30])
def test_parquet_damage_within_a_row_group_costs_what_is_behind_it(tmp_path: Path, target_bytes: int) -> None:
    texts = [f"{number:06d}" * 100_000 for number in range(60)]
    file = _damaged(tmp_path / "a.parquet", texts, 6_500_000, compression="none", data_page_size=600_000)
    found = read_splits(Parquet(), Parquet().cut(file, target_bytes))
    num_before = len(found.texts) - 40
    assert 0 < num_before <= 10
    assert found.texts == texts[: 20 + num_before] + texts[40:]
    assert found.rejected_places == [20 + num_before]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_parquet_footer_whose_parts_contradict_each_other_is_damage(tmp_path: Path, compression: str) -> None:
    """One flipped bit. pyarrow ends the process where it is asked for the description of a column of this file."""
    content = parquet(["a first text", "second", "third"], compression=compression)
    optional, unknown = b"\x25\x02\x18\x04text", b"\x25\x12\x18\x04text"
    assert content.count(optional) == 1
    file = input_file(tmp_path / "a.parquet", content.replace(optional, unknown), reader=Parquet())
    found = read_splits(Parquet(), Parquet().cut(file, 1))
    assert (found.documents, found.rejected_places, found.is_damage) == ([], [0, 2], [True, True])


@pytest.mark.parametrize("count", [b"\x16\x02", b"\x16\x04"], ids=["1 row", "2 rows"])
def test_parquet_footer_with_a_row_group_that_has_lost_its_rows_is_damage(tmp_path: Path, count: bytes) -> None:
    """Each number of this size in the footer is 0 in turn; one flipped bit is enough for that."""
    content = parquet(["a first text", "second", "third"])
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    places = [at for at in range(start, len(content) - 8) if content.startswith(count, at)]
    assert places
    for at in places:
        file = input_file(tmp_path / "a.parquet", content[: at + 1] + b"\0" + content[at + 2 :], reader=Parquet())
        found = read_splits(Parquet(), Parquet().cut(file, 1))
        assert len(found.documents) == 3 or any(found.is_damage), at


def test_parquet_footer_with_fewer_rows_than_its_columns_is_damage(tmp_path: Path) -> None:
    """A row group, and with it the file, has a row less, so the footer agrees with itself."""
    content = parquet(["a first text", "second", "third", "fourth"])
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    places = [
        [at for at in range(start, len(content)) if content.startswith(count, at)] for count in (b"\x16\x04", b"\x16\x08")
    ]
    found = []
    for of_group, of_file in itertools.product(*places):
        changed = bytearray(content)
        changed[of_group + 1], changed[of_file + 1] = 2, 6
        file = input_file(tmp_path / "a.parquet", bytes(changed), reader=Parquet())
        if sorted(num_rows for num_rows, _ in file.row_groups) == [1, 2]:
            found.append(read_splits(Parquet(), Parquet().cut(file, 1)))
    assert [(len(each.documents), each.is_damage) for each in found] == [(2, [True])] * 2


_WRITERS_OF_READ_COLUMNS: dict[str, Callable[..., Any]] = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}
both = pytest.mark.parametrize("kind", ["file", "stream"])


def _write(path: Path, kind: str, table: pa.Table, rows: int | None = None, compression: str | None = None) -> bytes:
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=kind == "stream")
    with _WRITERS_OF_READ_COLUMNS[kind](str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path.read_bytes()


def _file(folder: Path, content: bytes) -> InputFile:
    return input_file(folder / "b.arrow", content, reader=Arrow())


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
    assert text_at(Arrow(), file, len(expected) - 1) == expected[-1]


def test_arrow_text_that_is_run_end_encoded_is_read(tmp_path: Path) -> None:
    column = pa.RunEndEncodedArray.from_arrays([1, 2, 3], ["a", "b", None])
    found = read_file(Arrow(), _file(tmp_path, _write(tmp_path / "a.arrow", "file", pa.table({"text": column, "id": column}))))
    assert (found.documents, found.rejected_places) == ([(0, "a", "a"), (1, "b", "b")], [2])


def test_arrow_feather_is_read_and_its_first_version_reported(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"text": ["a", "b"]}), str(tmp_path / "a.feather"))
    assert read_file(Arrow(), input_file(tmp_path / "a.feather", reader=Arrow())).texts == ["a", "b"]
    found = read_file(Arrow(), _file(tmp_path, b"FEA1" + bytes(60) + b"FEA1"))
    assert found.documents == []
    assert "Feather version 1" in found.rejected[0][1]


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
    assert found.rejected[0][1].startswith("record batch 1 of the Arrow file is damaged from row 20 on: ")


def test_arrow_bytes_behind_the_end_of_a_stream_are_reported(tmp_path: Path) -> None:
    stored = _write(tmp_path / "a.arrow", "stream", pa.table({"text": ["a"]}))
    found = read_file(Arrow(), _file(tmp_path, stored + stored))
    assert (found.texts, found.rejected_places, found.is_damage) == (["a"], [1], [True])
