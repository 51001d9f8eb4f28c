"""Conditions on a field: lists, expressions and ranges, over every type that a field may have, beside plain Python."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from datapipe.columns import make_keys
from datapipe.errors import UserError
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from stages.filter.field import Field

LICENCES = ["cc-by-4.0", "", None, "mit", "CC-BY-4.0", "cc-by-nc-4.0"]


def _batch(values: pa.Array, name: str = "value") -> DocumentBatch:
    keys = make_keys(1, np.arange(len(values), dtype=np.uint64))
    texts = pa.array([""] * len(values), pa.large_string())
    schema = pa.schema([*BASE_FIELDS, pa.field(name, values.type)])
    return DocumentBatch(pa.RecordBatch.from_arrays([keys, texts, texts, values], schema=schema))


def _kept(values: list[Any] | pa.Array, **options: Any) -> list[bool]:
    batch = _batch(values if isinstance(values, pa.Array) else pa.array(values))
    return Field(field="value", **options).process(batch).keep.tolist()


def _reasons(values: list[Any] | pa.Array, **options: Any) -> list[str | None]:
    stage = Field(field="value", **options)
    found = stage.process(_batch(values if isinstance(values, pa.Array) else pa.array(values)))
    return [None if number < 0 else stage.rules()[number].name for number in found.rule.tolist()]


def test_list_to_keep_drops_all_other_values_and_documents_without_one() -> None:
    assert _reasons(LICENCES, keep=["cc-by-4.0", "mit"]) == [None, "missing", "missing", None, "not_in_keep", "not_in_keep"]
    assert _reasons(LICENCES, keep=["mit"], missing="keep") == ["not_in_keep", None, None, None, "not_in_keep", "not_in_keep"]


def test_list_to_drop_keeps_all_other_values_and_documents_without_one() -> None:
    assert _reasons(LICENCES, drop=["mit"]) == [None, None, None, "in_drop", None, None]
    assert _reasons(LICENCES, drop=["mit"], missing="drop") == [None, "missing", "missing", "in_drop", None, None]


def test_expressions_are_searched_anywhere_unless_they_are_anchored() -> None:
    assert _reasons(LICENCES, keep_matching="(?i)cc-by", drop_matching="-nc-") == [
        None,
        "missing",
        "missing",
        "not_matching",
        None,
        "matching",
    ]
    assert _kept(["text/html", "text/html; charset=utf-8", "x-text/html"], keep_matching="^text/html(;|$)") == [
        True,
        True,
        False,
    ]


def test_range_reads_text_as_numbers_and_a_limit_passes() -> None:
    values = ["2", " 3.5 ", "10", "1e1", "+3", ".5", "ten", "0x10", "nan", "inf", "1_0", "", None]
    assert _reasons(values, min_value=3, max_value=10) == [
        *("too_small", None, None, None, None, "too_small"),
        *["not_a_number"] * 5,
        *["missing"] * 2,
    ]
    stage = Field(field="value", min_value=3)
    assert stage.process(_batch(pa.array(values))).value[[0, 5]].tolist() == [2.0, 0.5]


@pytest.mark.parametrize(
    ("values", "options", "kept"),
    [
        (pa.array([200, 404, None], pa.int32()), {"keep": [200]}, [True, False, False]),
        (pa.array([200, 404], pa.uint16()), {"keep_matching": "^2"}, [True, False]),
        (pa.array([0.25, 3.0, None]), {"min_value": 1}, [False, True, False]),
        (pa.array([True, False, None]), {"keep": [True]}, [True, False, False]),
        (pa.array(["true", "false"]), {"drop": [True]}, [False, True]),
        (pa.array(["a", None, "b"]).dictionary_encode(), {"keep": ["a"]}, [True, False, False]),
        (pa.array([None, None], pa.null()), {"drop": ["x"]}, [True, True]),
    ],
    ids=["int", "uint", "float", "bool", "bool as text", "dictionary", "null"],
)
def test_values_of_every_type_are_compared_by_their_text(values: pa.Array, options: dict[str, Any], kept: list[bool]) -> None:
    assert _kept(values, **options) == kept


@given(
    values=st.lists(st.one_of(st.none(), st.text(alphabet="ab1.-é ", max_size=4)), max_size=12),
    keep=st.lists(st.text(alphabet="ab1é", min_size=1, max_size=2), min_size=1, max_size=3),
    drop_matching=st.sampled_from(["", "a", "^b", "1$", "é"]),
)
def test_field_any_values_equal_plain_python(values: list[str | None], keep: list[str], drop_matching: str) -> None:
    def passes(value: str | None) -> bool:
        return bool(value) and value in keep and not (drop_matching and re.search(drop_matching, value or ""))

    assert _kept(pa.array(values, pa.string()), keep=keep, drop_matching=drop_matching) == [passes(value) for value in values]


def test_documents_without_a_value_are_counted() -> None:
    result = Field(field="value", drop=("mit",)).process(_batch(pa.array(LICENCES)))
    assert result.columns["without_value"].to_pylist() == [0, 1, 1, 0, 0, 0]


def test_value_that_is_no_number_has_a_reason_of_its_own_and_is_counted() -> None:
    values = ["3", "3,5", "x", "1e400", "true", "[5]", "NaN", None, ""]
    other = "not_a_number"
    assert _reasons(values, min_value=3, max_value=9) == [
        *(None, other, other, "too_large", other, other, other),
        *("missing", "missing"),
    ]
    assert _reasons(values, min_value=3, missing="keep") == [None] * 9
    assert _reasons([float("nan"), None, 2.5, float("inf")], min_value=3) == [other, "missing", "too_small", None]
    assert _reasons([True, None], min_value=0) == [other, "missing"]
    columns = Field(field="value", min_value=3).process(_batch(pa.array(values))).columns
    assert [sum(columns[name].to_pylist()) for name in ("without_value", "other_kind", "of_kind")] == [2, 5, 2]


MOMENTS = [datetime(2024, 5, 16, 23, 59), datetime(2024, 5, 17), datetime(2024, 5, 17, 12, 0, 0, 500_000), None]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(MOMENTS, pa.timestamp("ms")),
        pa.array(MOMENTS, pa.timestamp("ns")),
        pa.array(MOMENTS, pa.timestamp("us", "UTC")),
        pa.array(
            [None if moment is None else moment.replace(tzinfo=UTC) for moment in MOMENTS], pa.timestamp("us", "Asia/Tokyo")
        ),
        pa.array(["2024-05-16T23:59", "2024-05-17T02:00:00+02:00", "2024-05-17 12:00:01", None]),
    ],
    ids=lambda values: str(values.type),
)
def test_limits_that_are_dates_compare_times_of_every_type(values: pa.Array) -> None:
    assert _reasons(values, min_value="2024-05-17") == ["too_small", None, None, "missing"]
    assert _reasons(values, max_value="2024-05-17T02:00:00+02:00") == [None, None, "too_large", "missing"]
    assert _reasons(values, min_value="2024-05-17", max_value="2024-05-17") == ["too_small", None, "too_large", "missing"]


def test_dates_are_compared_with_limits_and_lists() -> None:
    values = pa.array([date(2024, 5, 16), date(2024, 5, 17), None])
    assert _reasons(values, min_value="2024-05") == [None, None, "missing"]
    assert _reasons(values, keep=["2024-05-17"]) == ["not_in_keep", None, "missing"]
    assert _reasons(values.cast(pa.timestamp("s")), drop=["2024-05-17T00:00Z"]) == [None, "in_drop", None]
    assert _reasons(["2024-05-17", "soon", ""], min_value="2024") == [None, "not_a_date", "missing"]


def test_floats_are_in_a_list_by_their_number() -> None:
    assert _kept(pa.array([1.0, 1.5, 0.1]), keep=[1, "1.50"]) == [True, True, False]


@pytest.mark.parametrize(
    ("values", "options", "problem"),
    [
        (pa.array(MOMENTS), {"min_value": 3}, r"holds timestamp\[us\], and its limits are numbers. Expected dates"),
        (pa.array([1]), {"min_value": "2024-05-17"}, r"holds int64, and a limit is a date.*types: \{value: timestamp\}"),
        (pa.array(MOMENTS), {"keep": ["soon"]}, r"holds timestamp\[us\]. keep: 'soon' is no date"),
    ],
)
def test_limits_of_another_kind_than_the_column_are_refused(values: pa.Array, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        Field(field="value", **options).process(_batch(values))


def test_column_that_is_absent_or_a_list_is_told_with_the_way_out() -> None:
    with pytest.raises(UserError, match=r"no column 'license', only .*value.*Write `keep: \[license\]` in the source"):
        Field(field="license", keep=("mit",)).process(_batch(pa.array(["mit"])))
    with pytest.raises(UserError, match=r"'value' holds list<.*>, expected text, numbers, or true and false"):
        Field(field="value", keep=("mit",)).process(_batch(pa.array([["mit"]])))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "no condition is given"),
        ({"missing": "keep"}, "no condition is given"),
        ({"keep_matching": "(a"}, "missing \\)"),
        ({"drop_matching": r"(a)\1"}, "invalid escape sequence"),
        ({"min_value": "soon"}, "min_value: 'soon' is no date"),
        ({"min_value": "2024", "max_value": 2}, "a number and a date"),
        ({"min_value": "2024", "max_value": "2023"}, "min_value 2024 is above max_value 2023"),
        ({"min_value": 3, "max_value": 2}, "min_value 3 is above max_value 2"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Field(field="value", **options)
