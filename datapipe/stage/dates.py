"""Dates of a column as whole seconds, without one Python object per row.

    "2023-04-05", "2023-04-05T06:07:08.9+02:00", date32, timestamp   ->   seconds since 0001-01-01T00:00:00Z, or null

Text is ISO 8601 in the extended format, from a year on. A missing month or day is 1, a missing time
midnight. Fractions of a second are cut off, and a time without a zone is UTC. Other text is null.
"""

import numpy as np
import pyarrow as pa

from datapipe.columns import as_large_string
from datapipe.columns import compute as pc

EPOCH_S = 719_162 * 86_400  # seconds from 0001-01-01 to 1970-01-01
_ISO = (
    r"^\s*(?P<year>\d{4})(?:-(?P<month>\d{2})(?:-(?P<day>\d{2})(?:[T ](?P<hour>\d{2}):(?P<minute>\d{2})(?::(?P<second>\d{2})"
    r"(?:[.,]\d*)?)?\s*(?:[Zz]|(?P<sign>[+-])(?P<zone_hour>\d{2}):?(?P<zone_minute>\d{2})?)?)?)?)?\s*$"
)
_FIELDS = ("year", "month", "day", "hour", "minute", "second", "zone_hour", "zone_minute")
_DAYS_BEFORE = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30])
_DAYS_OF = np.diff(_DAYS_BEFORE, append=365)


def is_dated(column_type: pa.DataType) -> bool:
    """Whether `seconds` reads a column of this type."""
    is_text = pa.types.is_string(column_type) or pa.types.is_large_string(column_type) or pa.types.is_null(column_type)
    return is_text or pa.types.is_date(column_type) or pa.types.is_timestamp(column_type)


def seconds(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Seconds since 0001-01-01, (num_rows,) int64, and which rows hold a date, (num_rows,) bool."""
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        moments = column if pa.types.is_timestamp(column.type) else column.cast(pa.timestamp("s"))
        whole = pc.floor_temporal(moments, unit="second").cast(pa.timestamp("s"), safe=False).cast(pa.int64())
        return _integers(whole) + EPOCH_S, ~np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
    matches = pc.extract_regex(as_large_string(column), pattern=_ISO)
    fields = {name: _integers(_number(matches.field(name))) for name in _FIELDS}
    year = fields["year"]
    is_absent = {name: _integers(pc.binary_length(matches.field(name))) == 0 for name in ("month", "day")}
    month, day = (np.maximum(fields[name], absent) for name, absent in is_absent.items())  # both count from 1
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    index = np.clip(month, 1, 12) - 1
    days_in_month = _DAYS_OF[index] + (leap & (month == 2))
    valid = ~np.asarray(matches.is_null().to_numpy(zero_copy_only=False), np.bool_)
    valid &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= days_in_month)
    valid &= (fields["hour"] <= 23) & (fields["minute"] <= 59) & (fields["second"] <= 60)
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 + _DAYS_BEFORE[index] + (leap & (month > 2)) + day - 1
    return days * 86_400 + fields["hour"] * 3600 + fields["minute"] * 60 + fields["second"] - _zone_s(matches, fields), valid


def _zone_s(matches: pa.Array, fields: dict[str, np.ndarray]) -> np.ndarray:
    is_negative = _integers(pc.equal(matches.field("sign"), "-").cast(pa.int64())) != 0
    return (fields["zone_hour"] * 60 + fields["zone_minute"]) * 60 * np.where(is_negative, -1, 1)


def _number(texts: pa.Array) -> pa.Array:
    is_number = pc.and_(pc.greater(pc.binary_length(texts), 0), pc.ascii_is_decimal(texts))
    return pc.if_else(is_number, texts, "0").cast(pa.int64())


def _integers(column: pa.Array) -> np.ndarray:
    """Whole numbers, (num_rows,) int64; 0 for null."""
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
