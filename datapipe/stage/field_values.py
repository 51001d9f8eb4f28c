"""The values of a column beside those that an option gives: as text, as numbers, or as dates.

Numbers, true and false are compared by their text. Dates are those of `dates.py`: ISO 8601 text, or columns of dates and times.
"""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import compute as pc
from datapipe.errors import UserError
from datapipe.stage import dates

Value = str | int | float | bool


def texts_of(column: pa.Array, name: str, asked_by: str) -> pa.Array:
    """The values as text, "" for null: (num_docs,) large_string. Raises UserError for lists, records and bytes."""
    try:
        return column.cast(pa.large_string()).fill_null("")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UserError(
            f"{asked_by}: the column '{name}' holds {column.type}, expected text, numbers, or true and false. Name another "
            "column."
        ) from None


def numbers_of(column: pa.Array, texts: pa.Array, name: str, asked_by: str, *, by_date: bool) -> np.ndarray:
    """The values as numbers, or as seconds since 1970: (num_docs,) float64, NaN for what is none. `texts`: of `texts_of`.
    Raises UserError for a column of dates where limits are numbers, and for one of others where they are dates."""
    if by_date and not dates.is_dated(column.type):
        raise UserError(
            f"{asked_by}: the column '{name}' holds {column.type}, and a limit is a date. Expected dates, times or "
            f"ISO 8601 text: declare types: {{{name}: timestamp}} in the source, or write numbers as limits."
        )
    if not by_date and _is_dated(column.type):
        raise UserError(
            f"{asked_by}: the column '{name}' holds {column.type}, and its limits are numbers. Expected dates, such as "
            "2024-05-17."
        )
    if by_date:
        return _seconds_of(column)
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return columns.numbers(column.cast(pa.float64(), safe=False).fill_null(math.nan))
    return columns.numbers_in(texts)


def are_listed(column: pa.Array, texts: pa.Array, listed: Sequence[Value], name: str, asked_by: str) -> np.ndarray:
    """Which values are in a list: (num_docs,) bool. Raises UserError for a list without dates over a column of them."""
    if not _is_dated(column.type):
        return flags(pc.is_in(texts, value_set=_written(listed, pa.types.is_floating(column.type))))
    try:
        wanted = [limit_of(asked_by, str(value)) for value in listed]
    except ValueError as error:
        raise UserError(f"{error}. The column '{name}' holds {column.type}.") from None
    return np.isin(_seconds_of(column), wanted)


def limit_of(asked_by: str, value: float | str) -> float:
    """A limit as a number, or as seconds since 1970. Raises ValueError for text that is no date."""
    if not isinstance(value, str):
        return value
    seconds = _seconds_of(pa.array([value], pa.large_string()))[0]
    if math.isnan(seconds):
        raise ValueError(
            f"{asked_by}: '{value}' is no date. Expected one in ISO 8601, such as 2024-05-17 or 2024-05-17T12:00:00Z"
        )
    return float(seconds)


def flags(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False).astype(bool)


def _is_dated(kind: pa.DataType) -> bool:
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def _seconds_of(column: pa.Array) -> np.ndarray:
    """Dates and times in seconds since 1970, (num_docs,) float64; NaN for any other value."""
    seconds, is_date = dates.seconds(column)
    whole = (seconds - dates.EPOCH_S).astype(np.float64)
    if pa.types.is_timestamp(column.type) and column.type.unit != "s":
        fractions = pc.subsecond(column).fill_null(0)
        whole += fractions.to_numpy(zero_copy_only=False)
    return np.where(is_date, whole, np.nan)


def _written(listed: Sequence[Value], are_floats: bool) -> pa.Array:
    """The values as text, as Arrow writes those of a column; of floats 1.0 as 1."""
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in listed]
    if are_floats:
        numbers = columns.numbers_in(pa.array(texts, pa.large_string()))
        texts = pa.array(numbers[~np.isnan(numbers)]).cast(pa.large_string()).to_pylist()
    return pa.array(texts, pa.large_string())
