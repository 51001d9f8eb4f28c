"""Columns as JSON lines, without a Python object for a row: each column becomes JSON text, and the texts of a row are joined.

| column | JSON |
|---|---|
| string | a string |
| boolean, integer | as it is |
| float | a number with a point or an exponent; NaN and the infinities, which JSON lacks, are null |
| list, struct | an array, an object |
| date, time, timestamp, duration, decimal | a string, as Arrow writes it |

A null is null. Memory is a few times the rows.
"""

import numpy as np
import pyarrow as pa

from datapipe.columns import as_large_string, numbers, text_buffers, texts_from
from datapipe.columns import compute as pc
from datapipe.errors import UserError
from datapipe.kernels.text.json_strings import quoted

_WRITTEN_AS_TEXT = (pa.types.is_temporal, pa.types.is_decimal)


def json_lines(rows: pa.RecordBatch) -> np.ndarray:
    """The rows as JSON objects, one a line: (num_bytes,) uint8. Raises UserError for a column that JSON cannot hold."""
    lines = _object(dict(zip(rows.schema.names, rows.columns)), "}\n")
    offsets, data = text_buffers(lines)
    return data[int(offsets[0]) : int(offsets[-1])]


def check_columns(schema: pa.Schema) -> None:
    """Raises UserError for a column that JSON cannot hold."""
    json_lines(pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], names=schema.names))


def _object(columns: dict[str, pa.Array], end: str) -> pa.Array:
    """(num_rows,) large_string: an object of the columns for each row."""
    parts: list[pa.Array | pa.Scalar] = []
    for number, (name, column) in enumerate(columns.items()):
        quoted_name = _strings(pa.array([name], pa.large_string()))[0].as_py()
        parts += [_text(("{" if number == 0 else ",") + quoted_name + ":"), json_values(name, column)]
    return pc.binary_join_element_wise(*parts, _text(end), _text(""))


def _text(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def json_values(name: str, column: pa.Array) -> pa.Array:
    """The values of a column as JSON: (num_rows,) large_string without nulls."""
    if column.null_count == len(column):
        _check_type(name, column.type)
        return pa.repeat(_text("null"), len(column))
    values = _values(name, column)
    return pc.if_else(column.is_valid(), values, _text("null")) if column.null_count else values


def _values(name: str, column: pa.Array) -> pa.Array:
    """As `_json`; a null may have any value."""
    kind = column.type
    _check_type(name, kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _strings(as_large_string(column.fill_null("")))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(pa.large_string())
    if pa.types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
        return float_texts(finite).fill_null("null")
    if pa.types.is_struct(kind):
        fields = {kind.field(number).name: part for number, part in enumerate(column.flatten())}
        return _object(fields, "}")
    if _is_list(kind):
        return _arrays(name, column.cast(pa.large_list(kind.value_type)))
    return _strings(as_large_string(column.cast(pa.string())).fill_null(""))


def float_texts(column: pa.Array) -> pa.Array:
    """Floats as text that is read as a float again: 1.0, which Arrow writes as 1."""
    texts = column.cast(pa.large_string())
    return pc.if_else(
        pc.match_substring_regex(texts, r"^-?\d+$"), pc.binary_join_element_wise(texts, _text(".0"), _text("")), texts
    )


def _arrays(name: str, lists: pa.Array) -> pa.Array:
    values = json_values(name, lists.values).cast(pa.string())  # Arrow joins no lists of large strings
    joined = pc.binary_join(pa.LargeListArray.from_arrays(pa.array(numbers(lists.offsets)), values), ",")
    return pc.binary_join_element_wise(_text("["), joined.cast(pa.large_string()), _text("]"), _text(""))


def _strings(texts: pa.Array) -> pa.Array:
    return texts_from(*quoted(*text_buffers(texts)))


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _check_type(name: str, kind: pa.DataType) -> None:
    if pa.types.is_struct(kind) and kind.num_fields:
        for number in range(kind.num_fields):
            _check_type(f"{name}.{kind.field(number).name}", kind.field(number).type)
    elif _is_list(kind):
        _check_type(name, kind.value_type)
    elif not any(is_kind(kind) for is_kind in _SIMPLE):
        raise UserError(
            f"the column '{name}' is of type {kind}, which JSON lines cannot hold. Leave it out of `keep`, or write "
            f"documents: {{format: parquet}}."
        )


_SIMPLE = (
    pa.types.is_null,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    *_WRITTEN_AS_TEXT,
)
