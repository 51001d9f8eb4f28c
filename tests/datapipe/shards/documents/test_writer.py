"""Files of documents: their bytes follow from the rows alone, and no row group grows with what is written."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import UserError
from datapipe.shards.documents import writer
from datapipe.shards.documents.reader import count_documents
from datapipe.storage import Root

REACHED = pa.list_(pa.struct([("x", pa.string())]))


def _rows(count: int) -> pa.RecordBatch:
    rng = random.Random(count)
    text = [("word " * rng.randrange(60)) + str(number) for number in range(count)]
    links = [[{"x": "y" * rng.randrange(40)}] * rng.randrange(4) if number % 3 else None for number in range(count)]
    columns = [pa.array(map(str, range(count)), pa.large_string()), pa.array(text, pa.large_string()), pa.array(links, REACHED)]
    return pa.RecordBatch.from_arrays(columns, names=["id", "text", "links"])


def _write(folder, rows: pa.RecordBatch, borders: list[int], format: writer.DocumentFormat) -> writer.WrittenDocuments:
    schema = writer.published_schema(rows.schema)
    file = writer.DocumentWriter(Root(str(folder)), f"a.{format}", format, schema)
    for start, stop in zip([0, *borders], [*borders, rows.num_rows]):
        file.add(writer.published_rows(rows.slice(start, stop - start), "web", schema))
    return file.finish()


@pytest.mark.parametrize("format", ["parquet", "jsonl.zst"])
def test_bytes_do_not_depend_on_the_batches_in_which_rows_arrive(tmp_path, monkeypatch, format):
    monkeypatch.setattr(writer, "GROUP_BYTES", 5000)
    rows, rng = _rows(300), random.Random(1)
    whole = _write(tmp_path / "whole", rows, [], format)
    for number in range(5):
        borders = sorted(rng.choices(range(301), k=number * 7))
        assert _write(tmp_path / str(number), rows, borders, format) == whole
    assert count_documents(Root(str(tmp_path / "whole")), whole.path, format)[0] == 300


def test_row_groups_are_bounded_by_all_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "GROUP_BYTES", 5000)
    rows = _rows(300)
    _write(tmp_path, rows, [150], "parquet")
    sizes = writer.row_bytes(rows)
    file = pq.ParquetFile(tmp_path / "a.parquet")
    groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    assert sum(group.num_rows for group in groups) == 300 and len(groups) > 10
    start = 0
    for group in groups:
        assert sizes[start : start + group.num_rows - 1].sum() < 5000
        start += group.num_rows


def test_sizes_of_rows_are_those_of_their_own_values():
    rows = _rows(50)
    sizes = writer.row_bytes(rows)
    assert sizes[20:30].tolist() == writer.row_bytes(rows.slice(20, 10)).tolist()
    expected = [
        len(row["id"]) + len(row["text"].encode()) + sum(len(link["x"]) for link in row["links"] or ())
        for row in rows.to_pylist()
    ]
    assert sizes.tolist() == expected


def test_files_of_one_source_get_the_types_of_its_first():
    first, other = pa.schema([("id", pa.string()), ("text", pa.string()), ("n", pa.int32())]), pa.int64()
    schema = writer.published_schema(first)
    rows = pa.RecordBatch.from_pylist([{"id": "a", "text": "b", "n": 5}], schema=first.set(2, pa.field("n", other)))
    assert writer.published_rows(rows, "web", schema).schema == schema
    with pytest.raises(UserError, match="documents of 'web' have the column 'n' as int32 and as int64"):
        writer.published_rows(rows.set_column(2, pa.field("n", other), pa.array([1 << 40])), "web", schema)
    with pytest.raises(UserError, match="have the columns id, text here, and id, n, text before"):
        writer.published_rows(rows.select(["id", "text"]), "web", schema)


def test_a_column_called_source_is_refused():
    with pytest.raises(UserError, match="a column 'source'"):
        writer.published_schema(pa.schema([("id", pa.string()), ("text", pa.string()), ("source", pa.string())]))
