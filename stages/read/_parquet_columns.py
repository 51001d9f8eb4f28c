"""The columns of a batch of rows of Parquet or Arrow as documents: texts, ids as strings, kept fields in their types.

A dot in the name of a field selects a member of a struct, unless a column has that very name.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.columns import as_large_string, byte_slices
from datapipe.columns import compute as pc
from datapipe.dataclass import replace
from datapipe.stage import FieldNames, ReadBatch, Rejected
from datapipe.stage.documents import TARGET_BATCH_BYTES
from datapipe.stage.field_types import is_binary, type_in
from datapipe.stage.reader import NOT_SAMPLED

_NO_VALUE = (pa.ArrowException, ValueError, OverflowError, KeyError)
"""What the conversion to a Python value raises: a date out of range, a time zone that this machine does not know."""


def columns_to_read(schema: pa.Schema, fields: FieldNames) -> list[str]:
    """The names of the needed columns that the file has."""
    wanted = [*fields.wanted, fields.id]
    return [name for name in wanted if name in schema.names or name.split(".")[0] in schema.names]


def has_field(schema: pa.Schema, name: str) -> bool:
    """Whether files of a schema have a field: a column of this name, or a member of structs."""
    try:
        return type_in(schema, name) is not None
    except ValueError:
        return True


def field_names(fields: Iterable[pa.Field], above: str = "") -> Iterator[str]:
    """The names of all columns and members of structs that a mixture can name: those without a dot in a member."""
    for field in fields:
        if above and "." in field.name:
            continue
        yield f"{above}{field.name}"
        if pa.types.is_struct(field.type):
            yield from field_names(field.type, f"{above}{field.name}.")


def parts(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A batch in parts of about `TARGET_BATCH_BYTES` once dictionaries are decoded, each with its first row. A dictionary holds
    a text once, however many rows have it: a file of 1 kB may hold 162 GB of text."""
    sizes = np.zeros(batch.num_rows, np.int64)  # (num_rows,)
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            sizes += _decoded_bytes(column)
    for start, stop in byte_slices(sizes, TARGET_BATCH_BYTES):
        yield start, batch.slice(start, stop - start)


def _decoded_bytes(column: pa.DictionaryArray) -> np.ndarray:
    """The bytes of each value of a dictionary of texts, (num_rows,) int64; 0 for nulls and for values of other types."""
    if not _is_text(column.dictionary.type) or not len(column.dictionary):
        return np.zeros(len(column), np.int64)
    lengths = pc.binary_length(column.dictionary).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.where(column.is_valid(), lengths[column.indices.fill_null(0).to_numpy(zero_copy_only=False)], 0)


def sampled_documents(batch: pa.RecordBatch, row: int, fields: FieldNames) -> ReadBatch:
    """The rows of a batch that are in the sample of the source, as documents; `row` is the number of the first one."""
    positions = np.arange(row, row + batch.num_rows, dtype=np.uint64)
    if fields.sample is None:
        return documents(batch, positions, fields)
    chosen = fields.sample.has(positions)
    part = documents(batch.filter(pa.array(chosen)), positions[chosen], fields)
    return replace(part, passed_over={NOT_SAMPLED: int(batch.num_rows - chosen.sum())})


def documents(batch: pa.RecordBatch, positions: np.ndarray, fields: FieldNames) -> ReadBatch:
    """A batch of rows as documents; rows without text, where one is read, are rejected. `positions`: (num_rows,) uint64."""
    if fields.text is None:
        texts, problem = pa.repeat(pa.scalar("", pa.large_string()), batch.num_rows), ""
    else:
        texts, problem = _texts(batch, fields.text)
    ids = _strings(_column(batch, fields.id), batch.num_rows)
    extra = {name: _kept(_column(batch, name), batch.num_rows) for name in fields.keep}
    rejected: tuple[Rejected, ...] = ()
    if texts.null_count:
        valid = texts.is_valid()
        mask = valid.to_numpy(zero_copy_only=False)
        rejected = tuple(Rejected(position=int(position), error=problem) for position in positions[~mask])
        positions, texts, ids = positions[mask], texts.filter(valid), ids.filter(valid)
        extra = {name: column.filter(valid) for name, column in extra.items()}
    input_bytes = sum(column.nbytes for column in extra.values()) if fields.text is None else texts.nbytes
    return ReadBatch(positions=positions, content=texts, ids=ids, extra=extra, rejected=rejected, input_bytes=input_bytes)


def _column(batch: pa.RecordBatch, name: str) -> Any:
    first, *rest = [name] if name in batch.schema.names else name.split(".")
    index = batch.schema.get_field_index(first)
    if index < 0:
        return None
    column = batch.column(index)
    for part in rest:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(part) < 0:
            return None
        column = column.flatten()[column.type.get_field_index(part)]  # null where the struct is
    return column


def _texts(batch: pa.RecordBatch, name: str) -> tuple[pa.Array, str]:
    """The texts, null where a row has none, and the error of such rows."""
    column = _column(batch, name)
    if column is None:
        problem = "occurs twice in the file" if name in batch.schema.names else "is not in the file"
        return pa.nulls(batch.num_rows, pa.large_string()), f"field '{name}' {problem}; expected a column of strings"
    column = _plain(column)
    if not _is_text(column.type):
        return pa.nulls(len(column), pa.large_string()), f"field '{name}' is {column.type}; expected a column of strings"
    return _decoded(column), f"field '{name}' is null or invalid UTF-8; expected UTF-8 text"


def _strings(column: Any, num_rows: int) -> pa.Array:
    """Ids of any type as strings, or null. An id depends on its own value alone."""
    if column is None:
        return pa.nulls(num_rows, pa.large_string())
    if not isinstance(column.type, pa.UuidType):
        column = _plain(column)
        if _is_text(column.type):
            return _decoded(column)
        try:
            return column.cast(pa.large_string())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # lists, structs; times of an unknown zone
            pass
    return pa.array([_python_string(value) for value in column], pa.large_string())


def _python_string(value: pa.Scalar) -> str | None:
    try:
        return str(value.as_py()) if value.is_valid else None
    except _NO_VALUE:
        return None


def _kept(column: Any, num_rows: int) -> pa.Array:
    if column is None or pa.types.is_null(column.type):
        return pa.nulls(num_rows, pa.large_string())
    column = _plain(column)
    return column if not _is_text(column.type) or is_binary(column.type) else _decoded(column)


def _plain(column: Any) -> Any:
    """The values of a column without its dictionary, runs or extension type."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    return is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _decoded(column: pa.Array) -> pa.Array:
    """Strings or bytes as large strings, null where they are not valid UTF-8, which Arrow does not check when it reads."""
    content = as_large_string(column) if pa.types.is_string_view(column.type) else column
    content = content.cast(pa.large_binary())
    try:
        return content.cast(pa.large_string())
    except pa.ArrowInvalid:  # value by value, only if some are invalid
        return pa.array([_utf8_or_none(value) for value in content.to_pylist()], pa.large_string())


def _utf8_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
