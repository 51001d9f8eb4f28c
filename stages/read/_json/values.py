"""Values of a JSON field as a typed column, in the type that the source has for the field.

    texts, first bytes ─▶ strings, numbers, true and false: by Arrow ────────────────────────┬─▶ a column of the type
                       ─▶ lists and objects: Arrow's JSON parser, or Python where it refuses ┘   or the wider type

A value that the type does not hold makes the batch ask for a wider type and no values: the source is then read again with it
(`datapipe/stage/field_types.py`). So the columns of a batch do not depend on the batches before.
"""

import json
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from datapipe.columns import compute as pc
from datapipe.columns import contiguous, text_buffers, texts_from
from datapipe.kernels.text.json_strings import quoted
from datapipe.stage import FieldNames
from datapipe.stage.field_types import MIXED, JsonNumber, holds, json_joined, json_type, parsed_json, written

STRING = ord('"')  # the first byte of a string
_NONE, _STRING, _NUMBER, _BOOL, _NESTED = range(5)
_CLASSES = np.full(256, _NUMBER, np.uint8)
_CLASSES[[0, STRING, *b"tf", *b"[{"]] = [_NONE, _STRING, _BOOL, _BOOL, _NESTED, _NESTED]

_WHOLE = r"^-?\d+$"
_LONG = r"\d{16}"  # digits of a whole number that a double may not hold
_OF_ARROW = (pa.bool_(), pa.int64(), pa.uint64(), pa.float64(), pa.large_string())
Typed = tuple[pa.Array, pa.DataType | None]
"""A column, and the type of the values where the asked type does not hold them."""


def kept_columns(
    values: Mapping[str, tuple[pa.Array, np.ndarray]], fields: FieldNames
) -> tuple[dict[str, pa.Array], dict[str, pa.DataType]]:
    """The columns of kept fields, whose values are given as for `typed`, and the types of those that need a wider one."""
    columns: dict[str, pa.Array] = {}
    wider: dict[str, pa.DataType] = {}
    for name, (texts, firsts) in values.items():
        declared, kind = fields.declared.get(name), fields.types.get(name)
        columns[name] = texts
        if declared == "json":
            if (is_string := firsts == STRING).any():
                strings = texts_from(*quoted(*text_buffers(texts.filter(pa.array(is_string)))))
                columns[name] = pc.replace_with_mask(texts, pa.array(is_string), strings)
            columns[name] = pa.ExtensionArray.from_storage(pa.json_(pa.large_utf8()), columns[name])
        if kind is not None and declared is None:
            columns[name], column_type = typed(texts, firsts, kind)
            wider |= {} if column_type is None else {name: column_type}
    return columns, wider


def typed(texts: pa.Array, firsts: np.ndarray, kind: pa.DataType) -> Typed:
    """The values in a type, or a wider type.

    Args: texts: (num_values,) large_string: strings unescaped, other values as written, null where
        there is none. firsts: (num_values,) uint8, the first byte of each value as written, 0 where
        there is none.
    """
    classes = _CLASSES[firsts]
    present = np.flatnonzero(np.bincount(classes, minlength=5)[1:]) + 1
    if kind == MIXED or not len(present):
        return texts, None
    if len(present) > 1:
        return _wider(texts, MIXED)
    if present[0] == _NESTED:
        column = _by_arrow(texts, kind) if _is_of_arrow(kind) else None
        return _by_python(texts, kind) if column is None else (column, None)
    if present[0] == _NUMBER:
        column, column_type = _numbers(texts, kind)
    else:
        column, column_type = (texts, pa.large_string()) if present[0] == _STRING else (pc.equal(texts, "true"), pa.bool_())
    return (column, None) if holds(kind, column_type) else _wider(texts, column_type)


def _wider(texts: pa.Array, narrow: pa.DataType) -> Typed:
    return pa.nulls(len(texts), pa.large_string()), narrow


def _numbers(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.DataType]:
    """Whole numbers as int64 or uint64, else doubles. Where the type is wider than these they are in it, if it holds them."""
    is_whole = pc.match_substring_regex(texts, _WHOLE)
    wholes = _cast(texts.filter(is_whole), pa.int64())
    wholes = _cast(texts.filter(is_whole), pa.uint64()) if wholes is None else wholes
    if wholes is None:
        return texts, MIXED
    if len(wholes) == len(texts) - texts.null_count:
        number_type = wholes.type
        column = texts.cast(number_type)
        if kind in (pa.uint64(), pa.float64()):
            column = _cast(column, kind)
        return (texts, MIXED) if column is None else (column, number_type)
    return (texts, MIXED) if _cast(wholes, pa.float64()) is None else (texts.cast(pa.float64()), pa.float64())


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return None


def _is_of_arrow(kind: pa.DataType) -> bool:
    """Whether Arrow's JSON parser refuses every value that a type does not hold."""
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_of_arrow(member.type) for member in kind)
    return _is_of_arrow(kind.value_type) if pa.types.is_list(kind) else kind in _OF_ARROW


def _by_arrow(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """The values by Arrow's parser; None where it refuses one, or would round a number."""
    if "double" in str(kind) and pc.any(pc.match_substring_regex(texts, _LONG)).as_py():
        return None
    before, after, joint = (pa.scalar(text, pa.large_string()) for text in ('{"":', "}\n", ""))
    lines = pc.binary_join_element_wise(before, texts.fill_null("null"), after, joint)
    offsets, data = text_buffers(lines)
    content = data[int(offsets[0]) : int(offsets[-1])]
    reading = pj.ReadOptions(use_threads=False, block_size=len(content) + 1024)
    parsing = pj.ParseOptions(explicit_schema=pa.schema([("", kind)]), unexpected_field_behavior="error")
    try:
        table = pj.read_json(pa.BufferReader(content), reading, parsing)
    except pa.ArrowInvalid:
        return None
    return contiguous(table.column(0)) if table.num_rows == len(texts) else None


def _by_python(texts: pa.Array, kind: pa.DataType) -> Typed:
    try:
        values = [None if text is None else parsed_json(text) for text in texts.to_pylist()]
        json_kind = reduce(json_joined, map(json_type, values), pa.null())
        if not holds(kind, json_kind):
            return _wider(texts, json_kind)
        return pa.array([_fitted(value, kind) for value in values], written(kind)), None
    except (RecursionError, OverflowError, pa.ArrowInvalid):  # too deep, or a number that its type would round
        return _wider(texts, MIXED)


def _fitted(value: Any, kind: pa.DataType) -> Any:
    """A value as `pa.array` takes it for a type that holds it."""
    if value is None:
        return None
    if kind == MIXED or (pa.types.is_struct(kind) and not kind.num_fields):
        return value if isinstance(value, str) else as_json(value)
    if pa.types.is_struct(kind):
        return {member.name: _fitted(value.get(member.name), member.type) for member in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_fitted(item, kind.value_type) for item in value]
    if isinstance(value, JsonNumber):
        return int(value) if value.removeprefix("-").isdecimal() else float(value)
    return value


def as_json(value: Any) -> str:
    """A value as JSON text, its numbers as they are written."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{as_json(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_json, value)) + "]"
    return str(value) if isinstance(value, JsonNumber) else json.dumps(value, ensure_ascii=False)
