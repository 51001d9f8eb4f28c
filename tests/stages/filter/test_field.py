"""Conditions on a field: lists, expressions, ranges and licences, over every type that a field may have."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from datapipe.errors import UserError
from datapipe.stage import Filter, FilterResult
from stages.filter.field import Field
from stages.filter.license import License
from tests.support.decisions import reasons
from tests.support.global_stages import batch_of

TYPES = ["text/html", "text/html; charset=utf-8", "x-text/html"]
LICENCES = ["cc-by-4.0", "", None, "mit", "CC-BY-4.0", "cc-by-nc-4.0"]
NUMBERS = ["2", " 3.5 ", "10", "1e1", "+3", ".5", "ten", "0x10", "nan", "inf", "1_0", "", None]
KINDS = ["3", "3,5", "x", "1e400", "true", "[5]", "NaN", None, ""]
DATES = pa.array([date(2024, 5, 16), date(2024, 5, 17), None])
MOMENTS = [datetime(2024, 5, 16, 23, 59), datetime(2024, 5, 17), datetime(2024, 5, 17, 12, 0, 0, 500_000), None]


def _reasons(values: list[Any] | pa.Array, kind: type[Filter] = Field, **options: Any) -> list[str | None]:
    """The rule that drops each document with a value in the field, or None."""
    column = values if isinstance(values, pa.Array) else pa.array(values)
    return reasons(kind.model_validate({"field": "value", **options}), batch_of([""] * len(values), value=column))


NUMBER, GONE, SMALL = "not_a_number", "missing", "too_small"
CASES: list[tuple[list[Any] | pa.Array, dict[str, Any], list[str | None]]] = [
    (LICENCES, {"keep": ["cc-by-4.0", "mit"]}, [None, GONE, GONE, None, "not_in_keep", "not_in_keep"]),
    (LICENCES, {"keep": ["mit"], "missing": "keep"}, ["not_in_keep", None, None, None, "not_in_keep", "not_in_keep"]),
    (LICENCES, {"drop": ["mit"]}, [None, None, None, "in_drop", None, None]),
    (LICENCES, {"drop": ["mit"], "missing": "drop"}, [None, GONE, GONE, "in_drop", None, None]),
    (
        LICENCES,
        {"keep_matching": "(?i)cc-by", "drop_matching": "-nc-"},
        [None, GONE, GONE, "not_matching", None, "matching"],
    ),
    (TYPES, {"keep_matching": "^text/html(;|$)"}, [None, None, "not_matching"]),
    (TYPES, {"keep_matching": "text/html"}, [None, None, None]),
    (
        NUMBERS,
        {"min_value": 3, "max_value": 10},
        [SMALL, None, None, None, None, SMALL, *[NUMBER] * 5, GONE, GONE],
    ),
    (KINDS, {"min_value": 3, "max_value": 9}, [None, NUMBER, NUMBER, "too_large", NUMBER, NUMBER, NUMBER, GONE, GONE]),
    (KINDS, {"min_value": 3, "missing": "keep"}, [None] * 9),
    ([float("nan"), None, 2.5, float("inf")], {"min_value": 3}, [NUMBER, GONE, SMALL, None]),
    ([True, None], {"min_value": 0}, [NUMBER, GONE]),
    # values of every type are compared by their text
    (pa.array([200, 404, None], pa.int32()), {"keep": [200]}, [None, "not_in_keep", GONE]),
    (pa.array([200, 404], pa.uint16()), {"keep_matching": "^2"}, [None, "not_matching"]),
    ([0.25, 3.0, None], {"min_value": 1}, [SMALL, None, GONE]),
    ([1.0, 1.5, 0.1], {"keep": [1, "1.50"]}, [None, None, "not_in_keep"]),
    ([True, False, None], {"keep": [True]}, [None, "not_in_keep", GONE]),
    (["true", "false"], {"drop": [True]}, ["in_drop", None]),
    (pa.array(["a", None, "b"]).dictionary_encode(), {"keep": ["a"]}, [None, GONE, "not_in_keep"]),
    (pa.nulls(2), {"drop": ["x"]}, [None, None]),
    (DATES, {"min_value": "2024-05"}, [None, None, GONE]),
    (DATES, {"keep": ["2024-05-17"]}, ["not_in_keep", None, GONE]),
    (DATES.cast(pa.timestamp("s")), {"drop": ["2024-05-17T00:00Z"]}, [None, "in_drop", None]),
    (["2024-05-17", "soon", ""], {"min_value": "2024"}, [None, "not_a_date", GONE]),
]
CASES += [
    ([3, 9], {"min_value": 3, "max_value": 9}, [None, None]),
    (
        LICENCES,
        {"keep": ["mit", "cc-by-nc-4.0"], "drop": ["mit"], "missing": "keep"},
        ["not_in_keep", None, None, "in_drop", "not_in_keep", None],
    ),
    (["4", "12", "x", None], {"keep_matching": "^1|4", "min_value": 5, "missing": "keep"}, [SMALL, None, None, None]),
    (["4", "12", "9"], {"drop": ["4"], "drop_matching": "2", "max_value": 9}, ["in_drop", "matching", None]),
]


@pytest.mark.parametrize(("values", "options", "expected"), CASES)
def test_field_condition_drops_by_its_rule(
    values: list[Any] | pa.Array, options: dict[str, Any], expected: list[str | None]
) -> None:
    assert _reasons(values, **options) == expected


@pytest.mark.parametrize(
    "values",
    [
        pa.array(MOMENTS, pa.timestamp("ms")),
        pa.array(MOMENTS, pa.timestamp("ns")),
        pa.array(MOMENTS, pa.timestamp("us", "UTC")),
        pa.array([moment and moment.replace(tzinfo=UTC) for moment in MOMENTS], pa.timestamp("us", "Asia/Tokyo")),
        pa.array(["2024-05-16T23:59", "2024-05-17T02:00:00+02:00", "2024-05-17 12:00:01", None]),
    ],
    ids=lambda values: str(values.type),
)
def test_limits_that_are_dates_compare_times_of_every_type(values: pa.Array) -> None:
    assert _reasons(values, min_value="2024-05-17") == [SMALL, None, None, GONE]
    assert _reasons(values, max_value="2024-05-17T02:00:00+02:00") == [None, None, "too_large", GONE]
    assert _reasons(values, min_value="2024-05-17", max_value="2024-05-17") == [SMALL, None, "too_large", GONE]


@given(
    values=st.lists(st.one_of(st.none(), st.text(alphabet="ab1.-é ", max_size=4)), max_size=12),
    keep=st.lists(st.text(alphabet="ab1é", min_size=1, max_size=2), min_size=1, max_size=3),
    drop_matching=st.sampled_from(["", "a", "^b", "1$", "é"]),
)
def test_field_any_values_equal_plain_python(values: list[str | None], keep: list[str], drop_matching: str) -> None:
    def passes(value: str | None) -> bool:
        return bool(value) and value in keep and not (drop_matching and re.search(drop_matching, value or ""))

    found = _reasons(pa.array(values, pa.string()), keep=keep, drop_matching=drop_matching)
    assert [reason is None for reason in found] == [passes(value) for value in values]


def test_field_measures_and_counts_values_by_their_kind() -> None:
    def processed(values: list[Any], **options: Any) -> FilterResult:
        return Field(field="value", **options).process(batch_of([""] * len(values), value=pa.array(values)))

    assert processed(NUMBERS, min_value=3).value[[0, 5]].tolist() == [2.0, 0.5]
    counted = processed(KINDS, min_value=3).columns
    assert [sum(counted[name].to_pylist()) for name in ("without_value", "other_kind", "of_kind")] == [2, 5, 2]
    assert processed(LICENCES, drop=("mit",)).columns["without_value"].to_pylist() == [0, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("values", "options", "named"),
    [
        (MOMENTS, {"min_value": 3}, "timestamp.*numbers"),
        ([1], {"min_value": "2024-05-17"}, "int64.*types"),
        (MOMENTS, {"keep": ["soon"]}, "'soon'"),
        (["mit"], {"field": "license", "keep": ["mit"]}, r"'license'.*keep: \[license\]"),
        ([["mit"]], {"keep": ["mit"]}, "'value'.*list"),
        ([{"a": 1}], {"kind": License, "allowed": ["MIT"]}, "'value'"),
    ],
)
def test_column_that_does_not_fit_the_condition_is_refused(values: list[Any], options: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        _reasons(values, **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "condition"),
        ({"missing": "keep"}, "condition"),
        ({"keep_matching": "(a"}, "keep_matching"),
        ({"drop_matching": r"(a)\1"}, "drop_matching"),
        ({"min_value": "soon"}, "'soon'"),
        ({"min_value": "2024", "max_value": 2}, "a number and a date"),
        ({"min_value": "2024", "max_value": "2023"}, "2024.*2023"),
        ({"min_value": 3, "max_value": 2}, "3.*2"),
        ({"kind": License, "allowed": ["MITT"]}, "'MIT'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        _reasons(["a"], **options)


TERMS = ["mit", None, "", "cc-by-nc-4.0", "MIT OR GPL-3.0-only", '["mit", "GPL-3.0-only"]', "Public Domain", "unknown"]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_documents_are_kept_by_their_licence(type_: pa.DataType) -> None:
    no, none = "not_allowed", "unknown"
    values = pa.array(TERMS, pa.string()).cast(type_)
    assert _reasons(values, License, allowed=["MIT"]) == [None, none, none, no, None, no, no, none]
    allowed = ("Mit", "licenseref-public-domain")
    assert _reasons(values, License, allowed=allowed, missing="keep") == [None, None, None, no, None, no, None, None]
    assert _reasons(values, License, allowed=["unknown"]) == [no, None, None, no, no, no, no, None]
