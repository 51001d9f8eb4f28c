"""What readers return as batches of documents: limited, with keys, joined up to the size of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from datapipe.columns import compute as pc
from datapipe.columns import make_keys
from datapipe.document_name import document_name
from datapipe.errors import UserError
from datapipe.plan.splits import file_hash
from datapipe.stage.documents import BASE_FIELDS, PAGE_FIELDS, TARGET_BATCH_BYTES
from datapipe.stage.field_types import holds, in_words, plain
from datapipe.stage.reader import FieldNames, ReadBatch, Split
from datapipe.tasks.field_values import in_declared_type, in_found_type

MAX_BATCH_DOCS = 8192
_SHOWN_CHARS = 80


def limited(part: ReadBatch, left: int) -> tuple[ReadBatch, int]:
    """The first `left` records of a batch, and how many are left. Rejected records count too: a limited run with a
    wrong field name would otherwise read everything."""
    rejected = np.array([record.position for record in part.rejected], np.uint64)
    positions = np.sort(np.concatenate([part.positions, rejected]))
    if len(positions) <= left:
        return part, left - len(positions)
    num_docs = int(np.searchsorted(part.positions, positions[left]))
    return part.first(num_docs, tuple(record for record in part.rejected if record.position < int(positions[left]))), 0


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
    own = BASE_FIELDS if part.html is None else PAGE_FIELDS
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
