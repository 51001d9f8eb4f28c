"""Columns over memory that nothing can write to: equal to what they are made of, sliced or not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import read_only, text_buffers

_NESTED = pa.large_list(pa.list_(pa.string()))
COLUMNS = {
    "large strings": pa.array(["a", None, "", "ä" * 50], pa.large_string()),
    "strings": pa.array(["a", None, "b"]),
    "no strings": pa.array([], pa.large_string()),
    "bool": pa.array([True, None, False]),
    "int64": pa.array(range(1000)),
    "float32": pa.array([0.5, None], pa.float32()),
    "times": pa.array([1, 2, None], pa.timestamp("us")),
    "decimals": pa.array([1, 2], pa.int64()).cast(pa.decimal128(20)),
    "keys": pa.array([b"x" * 16, b"y" * 16], pa.binary(16)),
    "bytes": pa.array([b"x", b""], pa.large_binary()),
    "lists": pa.array([[["a", None], []], None, [["b"]]], _NESTED),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_read_only_column_equals_the_column_and_cannot_be_written(name: str) -> None:
    for column in (COLUMNS[name], COLUMNS[name].slice(1), COLUMNS[name].slice(1, 1), COLUMNS[name].slice(0, 0)):
        locked = read_only(column)
        locked.validate(full=True)
        assert locked.equals(column)
        assert (locked.type, locked.null_count, locked.to_pylist()) == (column.type, column.null_count, column.to_pylist())
        assert not any(buffer.is_mutable for buffer in locked.buffers() if buffer is not None)


@pytest.mark.parametrize("column", [pa.nulls(3), pa.array([{"a": 1}]), pa.array(["a"]).dictionary_encode()])
def test_read_only_leaves_columns_of_other_types_as_they_are(column: pa.Array) -> None:
    assert read_only(column) is column


def test_read_only_column_lives_longer_than_the_column_that_it_was_made_of() -> None:
    column = pa.array(["text"] * 10_000, pa.large_string())
    locked = read_only(column)
    del column
    offsets, data = text_buffers(locked)
    assert bytes(data[offsets[9_999] : offsets[10_000]]) == b"text"
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        data.flags.writeable = True
    assert np.frombuffer(locked.buffers()[2], np.uint8).flags.writeable is False
