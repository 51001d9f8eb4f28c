"""Values in the type of their column: never another value, and those that cannot be are told."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, get_args

import pyarrow as pa
import pytest

from datapipe.config.sources.source import TypeName
from datapipe.stage.field_types import declared_type
from datapipe.tasks.field_values import in_declared_type, in_found_type

BIG = 2**53 + 1


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        (pa.array([1, None], pa.int32()), pa.int64(), [1, None]),
        (pa.array([1, -3], pa.int64()), pa.float64(), [1.0, -3.0]),
        (pa.array([BIG], pa.int64()), pa.float64(), None),
        (pa.array([-1], pa.int64()), pa.uint64(), None),
        (pa.array([1], pa.int64()), pa.decimal128(21, 2), [Decimal("1.00")]),
        (pa.array(["7"]), pa.int64(), None),
        (pa.array([7]), pa.large_string(), None),
        (pa.array([None, None], pa.string()), pa.int64(), [None, None]),
        (pa.array(["a", "b"]).dictionary_encode(), pa.large_string(), ["a", "b"]),
        (pa.array([{"a": 1}, None]), pa.struct([("a", pa.float64()), ("b", pa.large_string())]), [{"a": 1.0, "b": None}, None]),
        (pa.array([[{"a": 1}], []]), pa.list_(pa.struct([("a", pa.int64()), ("b", pa.bool_())])), [[{"a": 1, "b": None}], []]),
        (pa.array([date(2024, 5, 17)]), pa.timestamp("ms"), [datetime(2024, 5, 17)]),
        (pa.array([None, None], pa.null()), pa.null(), [None, None]),
    ],
    ids=lambda value: str(value)[:40].replace("\n", ""),
)
def test_values_in_the_found_type_are_the_same_or_refused(column: Any, kind: pa.DataType, values: list[Any] | None) -> None:
    if values is None:
        with pytest.raises(ValueError, match=r"no .* is made of|not in range|in range"):
            in_found_type(column, kind)
    else:
        assert in_found_type(column, kind).to_pylist() == values


NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)
BAD = object()


@pytest.mark.parametrize(
    ("column", "name", "expected"),
    [
        (pa.array(["007", "x", None, "", "9"]), "int64", [7, BAD, None, None, 9]),
        (pa.array([1.0, 7.5, None]), "int64", [1, BAD, None]),
        (pa.array([True]), "int64", [BAD]),
        (pa.array(["1.5", "ten"]), "float64", [1.5, BAD]),
        (pa.array(["true", "false", "maybe"]), "bool", [True, False, BAD]),
        (pa.array([1, 7]), "bool", [BAD, BAD]),
        (pa.array([7, None]), "string", ["7", None]),
        (pa.array([1.0, 7.25]), "string", ["1.0", "7.25"]),
        (pa.array([True]), "string", ["true"]),
        (pa.array([[1, 2], None]), "string", ["[1,2]", None]),
        (pa.array([b"ab", b"\xff"]), "string", ["ab", BAD]),
        (pa.array([{"a": "x"}]), "json", ['{"a":"x"}']),
        (pa.array(["x", None]), "json", ['"x"', None]),
        (pa.array(["2024-05-17T14:00:00+02:00", "2024-05-17 12:00", "soon"]), "timestamp", [NOON, NOON, BAD]),
        (pa.array([datetime(2024, 5, 17, 12)]), "timestamp", [NOON]),
        (pa.array([NOON], pa.timestamp("s", "Europe/Berlin")), "timestamp", [NOON]),
        (pa.array([1715947200]), "timestamp", [NOON]),
        (pa.array(["2024-05-17", "2024-05-17T12:00:00Z"]), "date", [date(2024, 5, 17)] * 2),
        (pa.array([datetime(2024, 5, 17)]), "int64", [BAD]),
    ],
    ids=lambda value: str(value)[:40].replace("\n", "") if not isinstance(value, list) else "",
)
def test_values_in_a_declared_type(column: pa.Array, name: str, expected: list[Any]) -> None:
    values, bad = in_declared_type(column, name)
    assert values.type == declared_type(name)
    assert [BAD if is_bad else value for value, is_bad in zip(values.to_pylist(), bad.tolist(), strict=True)] == expected


def test_every_name_of_a_type_that_a_mixture_can_declare_has_a_type() -> None:
    assert all(isinstance(declared_type(name), pa.DataType) for name in get_args(TypeName))
