"""What readers return as batches of documents: limited, with keys, joined up to the size of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from datapipe.columns import as_large_string, make_keys
from datapipe.columns import compute as pc
from datapipe.document_name import document_name
from datapipe.errors import UserError
from datapipe.shards.documents.json_lines import float_texts, json_values
from datapipe.stage.documents import BASE_FIELDS, PAGE_FIELDS, TARGET_BATCH_BYTES
from datapipe.stage.field_types import DECLARED, holds, in_words, joined, plain, written
from datapipe.stage.reader import FieldNames, ReadBatch, Split
from datapipe.steps.splits import file_hash

MAX_BATCH_DOCS = 8192
_SHOWN_CHARS = 80


def limited(part: ReadBatch, left: int) -> tuple[ReadBatch, int]:
    """The first `left` records of a batch, and how many are left. Rejected records count too: a limited run with a
    wrong field name would otherwise read everything."""
    rejected = np.array([record.position for record in part.rejected], np.uint64)
    positions = np.sort(np.concatenate([part.positions, rejected]))
    if len(positions) <= left:
        return part, left - len(positions)
    return part.between(0, int(positions[left])), 0


def conformed(part: ReadBatch, split: Split, fields: FieldNames) -> ReadBatch:
    """A reader's batch with its fields in the types of their columns, under the names of these. A document with a value that
    cannot be of its declared type is rejected; values of a type that their column does not hold are left to `ReadBatch.wider`.
    Raises UserError for a value that the type of all files does not hold."""
    if not len(part.positions):  # damage alone, which has no fields
        return replace(part, extra={})
    columns: dict[str, pa.Array] = {}
    wider, bad = dict(part.wider), dict[int, str]()
    for column, field in (fields.columns or {field: field for field in fields.keep}).items():
        values, declared = part.extra[field], fields.declared.get(field)
        if declared is not None:
            columns[column], is_bad = in_declared_type(values, declared)
            bad |= {
                row: _no_such_value(field, values[row], declared) for row in np.flatnonzero(is_bad).tolist() if row not in bad
            }
            continue
        kind, own = fields.types.get(field, values.type), plain(values.type)
        if field in wider or (values.null_count < len(values) and not holds(kind, own)):
            columns[column] = values
            wider.setdefault(field, own)
        else:
            columns[column] = _in_found_type(values, split, field, kind)
    part = replace(part, extra=columns, wider=wider)
    return part.without(bad) if bad else part


def _no_such_value(field: str, value: pa.Scalar, declared: str) -> str:
    try:
        shown = repr(value.as_py())
    except (ValueError, OverflowError, KeyError):  # a time that Python cannot show
        shown = str(value)
    shown = shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"
    return f"field '{field}' is {shown}, which is no {declared}; `types` of the source declares {declared}"


def _in_found_type(values: pa.Array, split: Split, field: str, kind: pa.DataType) -> pa.Array:
    try:
        return in_found_type(values, kind)
    except ValueError as error:
        raise UserError(
            f"{split.file.url}: the field '{field}' is {in_words(plain(values.type))} here, and {in_words(kind)} is the type "
            f"that other files of the source need: {error}. Declare the type of the column in the source, as in "
            f"types: {{{field}: string}}, or make two sources of the files."
        ) from error


def with_keys(part: ReadBatch, split: Split, source: str) -> pa.RecordBatch:
    """A reader's batch as documents; where the input has no id, it is the name of the document."""
    keys = make_keys(file_hash(source, split.file.path), part.positions)
    ids = part.ids
    if ids.null_count:
        positions = pa.array(part.positions).cast(pa.large_string())
        file = pa.scalar(document_name(source, split.file.path, 0).removesuffix("0"), pa.large_string())
        ids = pc.coalesce(ids, pc.binary_join_element_wise(file, positions, pa.scalar("", pa.large_string())))
    extra = [pa.field(name, column.type) for name, column in part.extra.items()]
    own = PAGE_FIELDS if pa.types.is_large_binary(part.content.type) else BASE_FIELDS
    return pa.record_batch([keys, ids, part.content, *part.extra.values()], schema=pa.schema([*own, *extra]))


def coalesced(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins small batches up to `TARGET_BATCH_BYTES`: files of one document each make batches of one."""
    held: list[pa.RecordBatch] = []
    held_bytes = held_docs = 0
    for record in records:
        size = record.nbytes
        full = held_bytes + size > TARGET_BATCH_BYTES or held_docs + record.num_rows > MAX_BATCH_DOCS
        if held and (full or record.schema != held[0].schema):
            yield pa.concat_batches(held) if len(held) > 1 else held[0]
            held, held_bytes, held_docs = [], 0, 0
        held.append(record)
        held_bytes += size
        held_docs += record.num_rows
    if held:
        yield pa.concat_batches(held) if len(held) > 1 else held[0]


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
    kind, bad = DECLARED[name], np.zeros(len(column), np.bool_)
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
        return pa.nulls(1, DECLARED[name]), np.ones(1, np.bool_)
    middle = len(column) // 2
    first, bad_first = in_declared_type(column[:middle], name)
    second, bad_second = in_declared_type(column[middle:], name)
    return pa.concat_arrays([first, second]), np.concatenate([bad_first, bad_second])


def _declared(column: pa.Array, name: str) -> pa.Array:
    """The column in a declared type. Raises one of `_NO_VALUE`."""
    kind, is_text = DECLARED[name], pa.types.is_large_string(column.type)
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
