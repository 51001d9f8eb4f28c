"""Files of documents: their bytes follow from the rows alone, row groups are bounded, and JSON lines are what `json` reads."""

import datetime
import json
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import UserError
from datapipe.records.outputs import DocumentsFile
from datapipe.shards.documents import writer
from datapipe.shards.documents.json_lines import check_columns, json_lines
from datapipe.shards.documents.reader import count_documents
from datapipe.storage.root import Root

REACHED = pa.list_(pa.struct([("x", pa.string())]))


def _rows(count: int) -> pa.RecordBatch:
    rng = random.Random(count)
    text = [("word " * rng.randrange(60)) + str(number) for number in range(count)]
    links = [[{"x": "y" * rng.randrange(40)}] * rng.randrange(4) if number % 3 else None for number in range(count)]
    columns = [pa.array(map(str, range(count)), pa.large_string()), pa.array(text, pa.large_string()), pa.array(links, REACHED)]
    return pa.RecordBatch.from_arrays(columns, names=["id", "text", "links"])


def _write(folder, rows: pa.RecordBatch, borders: list[int], format: writer.DocumentFormat) -> DocumentsFile:
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
    assert count_documents(Root(str(tmp_path / "whole")), whole.path)[0] == 300


def test_row_groups_are_bounded_by_all_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "GROUP_BYTES", 5000)
    rows = _rows(300)
    _write(tmp_path, rows, [150], "parquet")
    file = pq.ParquetFile(tmp_path / "a.parquet")
    groups = [file.read_row_group(number).to_pylist() for number in range(file.num_row_groups)]
    sizes = [
        [len(row["id"]) + len(row["text"].encode()) + sum(len(link["x"]) for link in row["links"] or ()) for row in group]
        for group in groups
    ]
    every = [size for group in sizes for size in group]
    assert len(every) == 300 and len(groups) > 10
    assert all(sum(group[:-1]) < 5000 for group in sizes)
    assert every[20:30] == writer.row_bytes(rows.slice(20, 10)).tolist()


def test_files_of_one_source_get_the_types_of_its_first():
    first, other = pa.schema([("id", pa.string()), ("text", pa.string()), ("n", pa.int32())]), pa.int64()
    schema = writer.published_schema(first)
    rows = pa.RecordBatch.from_pylist([{"id": "a", "text": "b", "n": 5}], schema=first.set(2, pa.field("n", other)))
    assert writer.published_rows(rows, "web", schema).schema == schema
    for wrong in (rows.set_column(2, pa.field("n", other), pa.array([1 << 40])), rows.select(["id", "text"])):
        with pytest.raises(UserError, match="'web'"):
            writer.published_rows(wrong, "web", schema)
    with pytest.raises(UserError, match="'source'"):
        writer.published_schema(first.append(pa.field("source", pa.string())))


# ------------------------------------------------------------------------------------------------ JSON lines

_FIELDS = {
    'a "name"\n': pa.large_string(),
    "text": pa.string(),
    "whole": pa.int64(),
    "float": pa.float64(),
    "flag": pa.bool_(),
    "list": pa.list_(pa.struct([("x", pa.string()), ("y", pa.large_list(pa.float64()))])),
    "pair": pa.list_(pa.int8(), 2),
}
_text = st.none() | st.text()
_item = st.none() | st.fixed_dictionaries({"x": _text, "y": st.none() | st.lists(st.none() | st.floats())})
_rows_drawn = st.lists(
    st.fixed_dictionaries(
        {
            'a "name"\n': _text,
            "text": _text,
            "whole": st.none() | st.integers(-(2**63), 2**63 - 1),
            "float": st.none() | st.floats(),
            "flag": st.none() | st.booleans(),
            "list": st.none() | st.lists(_item, max_size=3),
            "pair": st.none() | st.lists(st.integers(0, 9), min_size=2, max_size=2),
        }
    ),
    max_size=6,
)


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: what is no finite number is null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@settings(deadline=None)
@given(rows=_rows_drawn, start=st.integers(0, 3))
@pytest.mark.slow
def test_lines_are_the_rows(rows, start):
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(_FIELDS.items()))).slice(start)
    *lines, end = bytes(json_lines(batch)).split(b"\n")
    assert [json.loads(line) for line in lines] == _plain(batch.to_pylist())
    assert end == b""
    row = {"day": datetime.date(2024, 2, 29), "amount": Decimal("1.50"), "none": None}
    assert json.loads(bytes(json_lines(pa.RecordBatch.from_pylist([row])))) == {
        "day": "2024-02-29",
        "amount": "1.50",
        "none": None,
    }


@pytest.mark.parametrize("kind", [pa.binary(), pa.list_(pa.binary()), pa.struct([("x", pa.map_(pa.string(), pa.string()))])])
def test_a_type_that_json_lacks_is_refused_by_name(kind):
    with pytest.raises(UserError, match=r"the column 'odd.*JSON lines cannot hold"):
        check_columns(pa.schema([("id", pa.string()), ("odd", kind)]))
