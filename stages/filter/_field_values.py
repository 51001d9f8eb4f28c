"""The values of a field as `filter.field` compares them: texts in lists, numbers, and dates in seconds since 1970."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe import columns
from datapipe.stage import dates

Value = str | int | float | bool


def flags(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False).astype(bool)


def shown(limit: float | str | None) -> str:
    return f"{limit:g}" if isinstance(limit, float) else str(limit)


def limit_of(option: str, value: float | str) -> float:
    """A number, or a date in seconds since 1970. Raises ValueError."""
    if not isinstance(value, str):
        return value
    seconds = seconds_of_text(pa.array([value], pa.large_string()))[0]
    if math.isnan(seconds):
        raise ValueError(
            f"{option}: '{value}' is no date. Expected one in ISO 8601, such as 2024-05-17 or 2024-05-17T12:00:00Z"
        )
    return float(seconds)


def is_dated(kind: pa.DataType) -> bool:
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def seconds_of(column: pa.Array) -> np.ndarray:
    """Dates and times in seconds since 1970, to the microsecond: (num_docs,) float64, NaN for null."""
    seconds, is_date = dates.seconds(column)
    whole = (seconds - dates.EPOCH_S).astype(np.float64)
    if pa.types.is_timestamp(column.type) and column.type.unit != "s":
        fractions = pc.subsecond(column).fill_null(0)  # pyright: ignore[reportAttributeAccessIssue]
        whole += fractions.to_numpy(zero_copy_only=False)
    return np.where(is_date, whole, np.nan)


def seconds_of_text(texts: pa.Array) -> np.ndarray:
    """Dates in ISO 8601 in whole seconds since 1970: (num_docs,) float64, NaN for other text."""
    seconds, is_date = dates.seconds(texts)
    return np.where(is_date, (seconds - dates.EPOCH_S).astype(np.float64), np.nan)


def is_in(values: pa.Array, listed: Sequence[Value], are_floats: bool) -> np.ndarray:
    """Which texts are in a list: (num_docs,) bool."""
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in listed]
    if are_floats:  # Arrow writes 1.0 as 1
        numbers = numbers_of(pa.array(texts, pa.large_string()))
        texts = pa.array(numbers[~np.isnan(numbers)]).cast(pa.large_string()).to_pylist()
    return flags(pc.is_in(values, value_set=pa.array(texts, pa.large_string())))  # pyright: ignore[reportAttributeAccessIssue]


def numbers_of(values: pa.Array) -> np.ndarray:
    """Texts as numbers: (num_docs,) float64, NaN for text that is no number."""
    trimmed = pc.utf8_trim_whitespace(values)  # pyright: ignore[reportAttributeAccessIssue]
    is_number = pc.match_substring_regex(trimmed, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")  # pyright: ignore[reportAttributeAccessIssue]
    digits = pc.if_else(is_number, pc.replace_substring_regex(trimmed, r"^\+", ""), "nan")  # pyright: ignore[reportAttributeAccessIssue]
    return columns.numbers(digits.cast(pa.float64()))
