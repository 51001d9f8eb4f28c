"""Parquet: one row, one document, by row groups.

    footer ─▶ row groups of this split ─▶ the columns that are needed, batch by batch ─▶ columns

A dot in a field's name reaches into structs, unless a column has that very name. Memory is one batch, of about
`TARGET_BATCH_BYTES` by the footer's sizes, and the pages it is read from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.columns import as_large_string
from datapipe.documents import TARGET_BATCH_BYTES
from datapipe.errors import UserError
from datapipe.stage import FieldNames, InputFile, OpenInput, ReadBatch, Reader, Rejected, Split

_BATCH_ROWS = 8192
_BROKEN = (pa.ArrowException, ValueError, OSError)
"""What Arrow raises for damaged content, all of it seen with random bytes flipped: thrift and IPC errors come as OSError."""


class Parquet(Reader):
    """One row a document. Text must be a string (or binary UTF-8); ids of any simple type become strings; fields under `keep:`
    keep their types, strings as large strings."""

    extensions: ClassVar[tuple[str, ...]] = (".parquet", ".pq")
    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)

    def probe(self, file: InputFile, open_input: OpenInput) -> tuple[tuple[int, int], ...]:
        """Rows and bytes of each row group; none where the footer cannot be read, which `read` then rejects."""
        if file.compression is not None:
            raise UserError(
                f"{file.url}: Parquet inside {file.compression} cannot be read in parts. Unpack it; Parquet compresses"
            )
        with open_input(file.url) as stream:
            stored = stream.size()
            try:
                footer = pq.ParquetFile(stream).metadata
                groups = (footer.row_group(number) for number in range(footer.num_row_groups))
                return tuple((group.num_rows, group.total_byte_size) for group in groups)
            except _BROKEN as error:
                _raise_if_storage(error, stream, stored)
                return ()

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """Runs of row groups of about `target_bytes` of uncompressed columns."""
        splits: list[Split] = []
        start = size = 0
        for number, (_, num_bytes) in enumerate(file.pieces):
            size += num_bytes
            if size >= target_bytes:
                splits.append(Split(file=file, start=start, stop=number + 1))
                start, size = number + 1, 0
        if start < len(file.pieces) or not splits:
            splits.append(Split(file=file, start=start, stop=len(file.pieces) if file.pieces else None))
        return splits

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        groups = split.file.pieces
        stop = len(groups) if split.stop is None else split.stop
        row = sum(num_rows for num_rows, _ in groups[: split.start])
        with open_input(split.file.url) as stream:
            stored = stream.size()
            try:
                file = pq.ParquetFile(stream)
                names = _columns_to_read(file.schema_arrow, fields)
                rows = _batch_rows(groups[split.start : stop])
                for batch in file.iter_batches(rows, list(range(split.start, stop)), names, use_threads=False):
                    yield _documents(batch, row, fields)
                    row += batch.num_rows
            except _BROKEN as error:
                _raise_if_storage(error, stream, stored)
                yield _nothing(Rejected(place=row, error=f"the Parquet file is damaged from row {row} on: {error}"))

    def read_one(self, file: InputFile, place: int, fields: FieldNames, open_input: OpenInput) -> str | None:
        row = 0
        for number, (num_rows, _) in enumerate(file.pieces):
            if row <= place < row + num_rows:
                for batch in self.read(Split(file=file, start=number, stop=number + 1), fields, open_input):
                    at = np.flatnonzero(batch.places == place)
                    if len(at):
                        return batch.texts[int(at[0])].as_py()
            row += num_rows
        return None


def _raise_if_storage(error: BaseException, stream: pa.NativeFile, stored: int) -> None:
    """Raises what storage did to us; returns where the content of the file is at fault.

    Both come as OSError from Arrow. A file whose bytes can still be read from end to end is at fault itself.
    """
    if not isinstance(error, OSError):
        return
    for start in range(0, stored, 16 << 20):
        stream.read_at(min(16 << 20, stored - start), start)


def _batch_rows(groups: Sequence[tuple[int, int]]) -> int:
    """Rows of about `TARGET_BATCH_BYTES`, by the mean size of the rows of these groups."""
    num_rows, num_bytes = (sum(group[k] for group in groups) for k in (0, 1))
    return max(1, min(_BATCH_ROWS, num_rows * TARGET_BATCH_BYTES // max(1, num_bytes)))


def _columns_to_read(schema: pa.Schema, fields: FieldNames) -> list[str]:
    wanted = [fields.text, fields.id, *fields.keep]
    return [name for name in wanted if name in schema.names or name.split(".")[0] in schema.names]


def _documents(batch: pa.RecordBatch, row: int, fields: FieldNames) -> ReadBatch:
    """A batch of rows as documents; those without text are rejected."""
    places = np.arange(row, row + batch.num_rows, dtype=np.uint64)
    texts, problem = _texts(_column(batch, fields.text), fields.text, batch.num_rows)
    ids = _strings(_column(batch, fields.id), batch.num_rows)
    extra = {name: _kept(_column(batch, name), batch.num_rows) for name in fields.keep}
    rejected: tuple[Rejected, ...] = ()
    if texts.null_count:
        there = texts.is_valid()
        mask = there.to_numpy(zero_copy_only=False)
        rejected = tuple(Rejected(place=int(place), error=problem) for place in places[~mask])
        places, texts, ids = places[mask], texts.filter(there), ids.filter(there)
        extra = {name: column.filter(there) for name, column in extra.items()}
    return ReadBatch(places=places, texts=texts, ids=ids, extra=extra, rejected=rejected, input_bytes=texts.nbytes)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    first, *rest = [name] if name in batch.schema.names else name.split(".")
    if first not in batch.schema.names:
        return None
    column = batch.column(first)
    for part in rest:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(part) < 0:
            return None
        column = column.flatten()[column.type.get_field_index(part)]  # null where the struct is
    return column


def _texts(column: Any, name: str, num_rows: int) -> tuple[pa.Array, str]:
    """The texts, null where there is none, and why there is none."""
    if column is None:
        return pa.nulls(num_rows, pa.large_string()), f"field '{name}' is not in the file; expected a column of strings"
    column = _plain(column)
    if not _is_text(column.type):
        return pa.nulls(num_rows, pa.large_string()), f"field '{name}' is {column.type}; expected a column of strings"
    return _decoded(column), f"field '{name}' is null or invalid UTF-8; expected UTF-8 text"


def _strings(column: Any, num_rows: int) -> pa.Array:
    """Ids of any type as strings, null where there is none. Each is a function of its own value alone."""
    if column is None:
        return pa.nulls(num_rows, pa.large_string())
    column = _plain(column)
    if _is_text(column.type):
        return _decoded(column)
    try:
        return column.cast(pa.large_string())
    except pa.ArrowNotImplementedError:  # lists, structs, UUIDs
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.large_string())


def _kept(column: Any, num_rows: int) -> pa.Array:
    if column is None:
        return pa.nulls(num_rows, pa.large_string())
    column = _plain(column)
    return column if not _is_text(column.type) or _is_binary(column.type) else _decoded(column)


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    """Whether values are strings, or bytes that may be UTF-8."""
    return _is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def _decoded(column: pa.Array) -> pa.Array:
    """Strings or bytes as large strings, null where not valid UTF-8 (which Arrow does not check when it reads strings)."""
    content = as_large_string(column) if pa.types.is_string_view(column.type) else column
    content = content.cast(pa.large_binary())
    try:
        return content.cast(pa.large_string())
    except pa.ArrowInvalid:  # value by value only where not all are valid
        return pa.array([_utf8_or_none(value) for value in content.to_pylist()], pa.large_string())


def _utf8_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _nothing(rejected: Rejected) -> ReadBatch:
    nothing = pa.array([], pa.large_string())
    return ReadBatch(places=np.zeros(0, np.uint64), texts=nothing, ids=nothing, rejected=(rejected,))
