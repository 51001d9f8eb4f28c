"""The type that holds the values of all files, for schemas and for JSON."""

from __future__ import annotations

import json
from functools import reduce
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.stage.field_types import (
    MIXED,
    FoundType,
    JsonNumber,
    NoCommonTypeError,
    joined,
    json_joined,
    json_type,
    plain,
    type_in,
    written,
)

BERLIN = "Europe/Berlin"


def _struct(**members: pa.DataType) -> pa.DataType:
    return pa.struct(list(members.items()))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.uint32(), pa.uint32()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int8(), pa.int64()),
        (pa.uint64(), pa.int64(), pa.uint64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(5, 2), pa.decimal128(10, 1), pa.decimal128(11, 2)),
        (pa.decimal128(5, 2), pa.int64(), pa.decimal128(21, 2)),
        (pa.null(), pa.bool_(), pa.bool_()),
        (pa.date32(), pa.date64(), pa.date64()),
        (pa.date32(), pa.timestamp("ms"), pa.timestamp("ms")),
        (pa.timestamp("s", BERLIN), pa.timestamp("us", BERLIN), pa.timestamp("us", BERLIN)),
        (pa.time32("s"), pa.time64("us"), pa.time64("us")),
        (pa.binary(), pa.large_binary(), pa.large_binary()),
        (pa.list_(pa.int64()), pa.list_(pa.float64()), pa.list_(pa.float64())),
        (pa.list_(pa.null()), pa.list_(pa.large_string()), pa.list_(pa.large_string())),
        (_struct(a=pa.int32()), _struct(b=pa.bool_(), a=pa.int64()), _struct(a=pa.int64(), b=pa.bool_())),
        (pa.int64(), pa.large_string(), None),
        (pa.bool_(), pa.int64(), None),
        (pa.bool_(), pa.large_string(), None),
        (pa.date32(), pa.large_string(), None),
        (pa.binary(), pa.large_string(), None),
        (pa.decimal128(5, 2), pa.float64(), None),
        (pa.timestamp("s"), pa.timestamp("s", "UTC"), None),
        (pa.timestamp("s", BERLIN), pa.timestamp("s", "UTC"), None),
        (pa.date32(), pa.timestamp("s", "UTC"), None),
        (pa.timestamp("s"), pa.int64(), None),
        (pa.list_(pa.int64()), pa.list_(pa.large_string()), None),
        (pa.list_(pa.int64()), pa.int64(), None),
        (_struct(a=pa.int32()), _struct(a=pa.large_string()), None),
    ],
    ids=str,
)
def test_joined_type_holds_the_values_of_both_or_there_is_none(
    first: pa.DataType, second: pa.DataType, expected: pa.DataType | None
) -> None:
    assert joined(first, second) == expected
    if expected is None or not pa.types.is_struct(expected):  # members are in the order of the files
        assert joined(second, first) == expected


def test_plain_type_leaves_out_how_values_are_stored() -> None:
    large = pa.large_string()
    assert plain(pa.dictionary(pa.int8(), pa.string())) == plain(pa.string_view()) == large
    assert plain(pa.run_end_encoded(pa.int32(), pa.int64())) == pa.int64()
    assert plain(pa.list_(pa.dictionary(pa.int8(), pa.string()))) == pa.list_(large)
    assert plain(pa.timestamp("s", "+00:00")) == pa.timestamp("s", "UTC")
    assert plain(pa.timestamp("s", BERLIN)) == pa.timestamp("s", BERLIN)
    assert plain(pa.uuid()) == pa.binary(16)


def test_field_that_occurs_twice_in_a_schema_is_told() -> None:
    schema = pa.schema([("u", pa.string()), ("u", pa.int64()), ("s", pa.struct([("x", pa.int8()), ("x", pa.int8())]))])
    with pytest.raises(ValueError, match="the column 'u' occurs 2 times"):
        type_in(schema, "u")
    with pytest.raises(ValueError, match=r"the member 'x' occurs 2 times"):
        type_in(schema, "s.x")
    assert type_in(schema, "s.y") is type_in(schema, "t.x") is None


def _types(*values: str) -> pa.DataType:
    parsed = (json.loads(value, parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=JsonNumber) for value in values)
    return reduce(json_joined, map(json_type, parsed), pa.null())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "null", "-2"], pa.int64()),
        (["1", "2.5"], pa.float64()),
        (["1", "1e3"], pa.float64()),
        (["NaN"], pa.float64()),
        (["18446744073709551615", "1"], pa.uint64()),
        (["18446744073709551616"], MIXED),
        (["true", "null"], pa.bool_()),
        (["true", "1"], MIXED),
        (['"007"', "7"], MIXED),
        (['"2024-01-01"'], pa.large_string()),
        (["[]", "null"], pa.list_(pa.null())),
        (["[1]", "[2.5]", "[]"], pa.list_(pa.float64())),
        (["[1]", '["a"]'], pa.list_(MIXED)),
        (["[1]", "1"], MIXED),
        (['{"b": 1, "a": "x"}'], _struct(a=pa.large_string(), b=pa.int64())),
        (['{"b": {}}', '{"a": 1}', '{"b": {"c": null}}'], _struct(a=pa.int64(), b=_struct(c=pa.null()))),
        (['{"a": 1}', '{"a": "x"}'], _struct(a=MIXED)),
        (["[" * 40 + "]" * 40], None),
        ([json.dumps({f"k{number}": 1 for number in range(1001)})], MIXED),
    ],
    ids=str,
)
def test_json_type_of_values_in_any_order(values: list[str], expected: pa.DataType | None) -> None:
    types = {str(_types(*order)) for order in permutations(values)}
    assert len(types) == 1
    assert expected is None or types == {str(expected)}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(values=st.lists(_JSON, min_size=1, max_size=5), cut=st.integers(0, 5))
def test_json_type_does_not_depend_on_where_the_values_are_split(values: list[Any], cut: int) -> None:
    texts = [json.dumps(value) for value in values]
    assert json_joined(_types(*texts[:cut]), _types(*texts[cut:])) == _types(*texts) == _types(*reversed(texts))


def test_found_type_names_two_files_and_survives_json() -> None:
    first, second = FoundType(kind=pa.int64(), path="a"), FoundType(kind=pa.large_string(), path="b")
    mixed = first.with_more(second)
    assert (mixed.kind, mixed.mixed_in) == (MIXED, "int64 in a and string in b")
    assert FoundType.from_json(json.loads(json.dumps(mixed.to_json()))) == mixed
    with pytest.raises(NoCommonTypeError, match="int64 in a and string in b, and no type holds all values"):
        first.with_more(FoundType(kind=pa.large_string(), path="b", has_schema=True))
    assert FoundType(kind=pa.null(), path="").with_more(second) == second


def test_written_type_can_be_written_as_parquet(tmp_path: Any) -> None:
    kinds = (MIXED, pa.null(), _struct(), pa.list_(pa.null()), _struct(a=_struct(), b=pa.list_(MIXED)))
    assert [str(written(kind)).replace("large_", "") for kind in kinds] == [
        "string",
        "string",
        "string",
        "list<item: string>",
        "struct<a: string, b: list<item: string>>",
    ]
