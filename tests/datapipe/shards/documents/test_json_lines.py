"""Columns as JSON lines, against the standard library's decoder."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import UserError
from datapipe.shards.documents.json_lines import check_columns, json_lines

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
_rows = st.lists(
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
@given(rows=_rows, start=st.integers(0, 3))
def test_lines_are_the_rows(rows, start):
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(_FIELDS.items()))).slice(start)
    *lines, end = bytes(json_lines(batch)).split(b"\n")
    assert [json.loads(line) for line in lines] == _plain(batch.to_pylist())
    assert end == b""


def test_dates_and_decimals_are_strings():
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
