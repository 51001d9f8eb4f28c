"""Columns of Parquet and Arrow: which are texts, what ids and kept columns become, and fields inside structs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import DatapipeError, UserError
from datapipe.stage import FieldNames, Reader, Split
from datapipe.storage import open_input
from stages.read.arrow import Arrow
from stages.read.parquet import Parquet
from tests.support.reader_results import ReadResult, input_file, read_file, read_splits


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

pytestmark = pytest.mark.parametrize("kind", _WRITERS)


def _read(folder: Path, kind: str, columns: Any, fields: FieldNames | None = None) -> ReadResult:
    reader, write = _WRITERS[kind]
    write(columns if isinstance(columns, pa.Table) else pa.table(columns), folder / f"a.{kind}")
    return read_file(reader, input_file(folder / f"a.{kind}", reader=reader), fields)


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


def test_columns_strings_of_invalid_utf8_are_rejected_row_by_row(tmp_path: Path, kind: str) -> None:
    assert _read(tmp_path, kind, {"text": _NOT_UTF8}).rejected_places == [0]
    dictionary = _NOT_UTF8.dictionary_encode()
    assert _read(tmp_path, kind, {"text": dictionary}).rejected_places == [0]
    inner = pa.StructArray.from_arrays([_NOT_UTF8], ["body"])
    assert _read(tmp_path, kind, {"c": inner}, FieldNames(text="c.body")).documents == [(1, "b", None)]
    found = _read(tmp_path, kind, {"text": ["a", "b"], "id": _NOT_UTF8, "k": _NOT_UTF8}, FieldNames(keep=("k",)))
    assert (found.texts, found.ids, found.extra) == (["a", "b"], [None, "b"], {"k": [None, "b"]})


def test_columns_of_many_rows_come_in_batches(tmp_path: Path, kind: str) -> None:
    assert _read(tmp_path, kind, {"text": ["a"] * 20_000}).batch_sizes == [8192, 8192, 3616]


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


def test_columns_dots_reach_into_structs_unless_a_column_has_the_name(tmp_path: Path, kind: str) -> None:
    columns = {"c": [{"text": "a", "id": 1, "x": 0}, None, {"text": "b", "id": None, "x": 0}], "c.x": ["l", "m", "n"]}
    found = _read(tmp_path, kind, columns, FieldNames(text="c.text", id="c.id", keep=("c.x", "c.none")))
    assert (found.documents, found.rejected_places) == ([(0, "a", "1"), (2, "b", None)], [1])
    assert found.extra == {"c.x": ["l", "n"], "c.none": [None, None]}
    assert _read(tmp_path, kind, columns, FieldNames(text="c.x")).texts == ["l", "m", "n"]
    seen = _WRITERS[kind][0].fields_seen(Split(file=input_file(tmp_path / f"a.{kind}")), FieldNames(text="c.text"), open_input)
    assert (seen.num_records, seen.found) == (3, {"c.text"})
    assert {"c.text", "c.x"} <= set(seen.names)


def test_columns_of_a_file_that_changed_since_it_was_planned_stop_the_task(tmp_path: Path, kind: str) -> None:
    reader, write = _WRITERS[kind]
    _read(tmp_path, kind, {"text": ["a", "b"]})
    file = input_file(tmp_path / f"a.{kind}", reader=reader)
    write(pa.table({"text": ["a", "b", "c"]}), tmp_path / f"a.{kind}")
    with pytest.raises(DatapipeError):
        read_file(reader, file)


def test_columns_inside_an_archive_are_refused_at_planning(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UserError):
        input_file(tmp_path / f"a.{kind}.zst", b"anything", reader=_WRITERS[kind][0])


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
