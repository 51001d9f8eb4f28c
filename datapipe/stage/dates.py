"""Dates of any column as whole seconds, without a Python object a row.

    "2023-04-05", "2023-04-05T06:07:08.9+02:00", date32, timestamp   ->   seconds since 0001-01-01T00:00:00Z, or null

Text is read as ISO 8601 in its extended form: a year of four digits, then month, day, hour, minute and second as far as they
are given; a missing part is its first. Fractions of a second are cut off, a time without a zone is UTC, and what is anything
else is null. The calendar is the proleptic Gregorian one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datapipe.columns import as_large_string
from datapipe.columns import compute as pc

EPOCH_S = 719_162 * 86_400
"""1970-01-01 in seconds since 0001-01-01."""

_ISO = (
    r"^\s*(?P<year>\d{4})(?:-(?P<month>\d{2})(?:-(?P<day>\d{2})(?:[T ](?P<hour>\d{2}):(?P<minute>\d{2})(?::(?P<second>\d{2})"
    r"(?:[.,]\d*)?)?\s*(?:[Zz]|(?P<sign>[+-])(?P<zone_hour>\d{2}):?(?P<zone_minute>\d{2})?)?)?)?)?\s*$"
)
_DAYS_BEFORE = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30])
_DAYS_OF = np.diff(_DAYS_BEFORE, append=365)


def is_dated(column_type: pa.DataType) -> bool:
    """Whether `seconds` reads a column of this type."""
    is_text = pa.types.is_string(column_type) or pa.types.is_large_string(column_type) or pa.types.is_null(column_type)
    return is_text or pa.types.is_date(column_type) or pa.types.is_timestamp(column_type)


def seconds(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Seconds since 0001-01-01, (num_rows,) int64, and where there is a date at all, (num_rows,) bool."""
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        moments = column if pa.types.is_timestamp(column.type) else column.cast(pa.timestamp("s"))
        whole = pc.floor_temporal(moments, unit="second").cast(pa.timestamp("s"), safe=False).cast(pa.int64())
        return _of(whole) + EPOCH_S, ~np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
    found = pc.extract_regex(as_large_string(column), pattern=_ISO)
    parts = {name: _of(_number(found.field(at))) for at, name in enumerate(_names())}
    negative = _of(pc.equal(found.field(_names().index("sign")), "-").cast(pa.int64())) != 0
    is_there = ~np.asarray(found.is_null().to_numpy(zero_copy_only=False), np.bool_)
    year, month, day = parts["year"], np.maximum(parts["month"], _absent(found, "month")), parts["day"]
    day = np.maximum(day, _absent(found, "day"))
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    in_year = np.clip(month, 1, 12) - 1
    longest = _DAYS_OF[in_year] + (leap & (month == 2))
    valid = is_there & (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= longest)
    valid &= (parts["hour"] <= 23) & (parts["minute"] <= 59) & (parts["second"] <= 60)
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 + _DAYS_BEFORE[in_year] + (leap & (month > 2)) + day - 1
    zone = (parts["zone_hour"] * 60 + parts["zone_minute"]) * 60 * np.where(negative, -1, 1)
    return days * 86_400 + parts["hour"] * 3600 + parts["minute"] * 60 + parts["second"] - zone, valid


def _names() -> list[str]:
    return ["year", "month", "day", "hour", "minute", "second", "sign", "zone_hour", "zone_minute"]


def _number(texts: pa.Array) -> pa.Array:
    """Digits as numbers; what is empty, or a sign, is 0."""
    is_number = pc.and_(pc.greater(pc.binary_length(texts), 0), pc.ascii_is_decimal(texts))
    return pc.if_else(is_number, texts, "0").cast(pa.int64())


def _absent(found: pa.Array, name: str) -> np.ndarray:
    """1 where a part is not given: months and days count from 1."""
    return (_of(pc.binary_length(found.field(_names().index(name)))) == 0).astype(np.int64)


def _of(column: pa.Array) -> np.ndarray:
    """Whole numbers, 0 for null."""
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
