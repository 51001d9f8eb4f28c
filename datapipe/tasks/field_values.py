"""The values of a kept field in the type of its column.

found      the type that holds the values of all files: a value that it does not hold raises ValueError, it never changes
declared   the type that the mixture names under `types`: a value that it cannot be is one of a bad document

declared as   string             int64, float64, bool     date, timestamp                     json
of text       as it is           "007" is 7               ISO 8601; a time without zone is    as a string of JSON
                                                          UTC; an empty text is null
of numbers    as JSON writes it  7.0 is 7, 7.5 is bad     seconds since 1970                  as JSON writes it
of lists …    JSON               bad                      bad                                 JSON
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datapipe.columns import as_large_string
from datapipe.columns import compute as pc
from datapipe.shards.documents.json_lines import float_texts, json_values
from datapipe.stage.field_types import declared_type, in_words, joined, plain, written

_NO_VALUE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError)
_HAS_ZONE = r"[T ]\d\d:?\d\d.*(?:[Zz]|[+-]\d\d(?::?\d\d)?)\s*$"
_OF_NUMBERS = ("bool", "int64", "float64")
_EMPTY_IS_NULL = ("bool", "int64", "float64", "date", "timestamp")


def in_found_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in the type that was found for the field. Raises ValueError for a value that it does not hold."""
    kind = written(kind)
    column = plain_values(column)
    if column.type == kind:
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    if joined(kind, column.type) != kind:
        raise ValueError(f"no {in_words(kind)} is made of {in_words(column.type)}")
    try:
        return column.cast(kind)
    except _NO_VALUE as error:
        raise ValueError(" ".join(str(error).split()).rstrip(".")) from error


def in_declared_type(column: pa.Array, name: str) -> tuple[pa.Array, np.ndarray]:
    """The values in the type that a mixture declares, and which rows hold a value that it cannot be: (num_rows,) bool."""
    kind, bad = declared_type(name), np.zeros(len(column), np.bool_)
    if name == "json" and isinstance(column.type, pa.JsonType):
        return plain_values(column), bad
    column = plain_values(column)
    if pa.types.is_large_string(column.type) and name in _EMPTY_IS_NULL:
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
    if column.null_count == len(column):
        return pa.nulls(len(column), kind), bad
    try:
        return _declared(column, name), bad
    except _NO_VALUE:
        return _one_by_one(column, name)


def _one_by_one(column: pa.Array, name: str) -> tuple[pa.Array, np.ndarray]:
    """As `in_declared_type`, by halves down to the rows at fault."""
    if len(column) == 1:
        return pa.nulls(1, declared_type(name)), np.ones(1, np.bool_)
    middle = len(column) // 2
    first, bad_first = in_declared_type(column[:middle], name)
    second, bad_second = in_declared_type(column[middle:], name)
    return pa.concat_arrays([first, second]), np.concatenate([bad_first, bad_second])


def _declared(column: pa.Array, name: str) -> pa.Array:
    """The column in a declared type. Raises one of `_NO_VALUE`."""
    kind, is_text = declared_type(name), pa.types.is_large_string(column.type)
    if name == "json" or (name == "string" and pa.types.is_nested(column.type)):
        return pc.if_else(column.is_valid(), json_values(name, column), pa.scalar(None, kind))
    if name == "string" and pa.types.is_floating(column.type):
        return float_texts(column)
    if is_text and name in ("date", "timestamp"):
        moments = _moments(column)
        return moments if name == "timestamp" else moments.cast(pa.date32(), safe=False)
    if name == "timestamp" and pa.types.is_timestamp(column.type) and column.type.tz is None:
        return column.cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)
    if name in _OF_NUMBERS and not (is_text or column.type == kind or (_is_number(column.type) and name != "bool")):
        raise pa.ArrowInvalid(f"{column.type} is no {name}")
    if name in ("date", "timestamp") and pa.types.is_integer(column.type):
        return column.cast(pa.timestamp("s", "UTC")).cast(kind)
    return column.cast(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _moments(texts: pa.Array) -> pa.Array:
    """ISO 8601 text as microseconds in UTC."""
    trimmed = pc.utf8_trim_whitespace(texts)
    has_zone, none = pc.match_substring_regex(trimmed, _HAS_ZONE), pa.scalar(None, texts.type)
    zoned = pc.if_else(has_zone, trimmed, none).cast(pa.timestamp("us", "UTC"))
    return pc.coalesce(zoned, pc.if_else(has_zone, none, trimmed).cast(pa.timestamp("us")).cast(pa.int64()).cast(zoned.type))


def plain_values(column: pa.Array) -> pa.Array:
    """The values without dictionaries, runs and extensions; text as large strings."""
    kind = plain(column.type)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if column.type == kind:
        return column
    return as_large_string(column) if pa.types.is_large_string(kind) else column.cast(kind)
