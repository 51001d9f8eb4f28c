"""Writes documents to one file: Parquet, or JSON lines in one zstd frame.

    rows as they come ─▶ held until they fill a row group ─▶ one contiguous row group ─▶ file

Row groups depend on the rows alone, and each is written in one call, so the bytes of a file do not
depend on batches, path or time. Memory: a row group, a document, and what the encoder makes of it.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.columns import compute as pc
from datapipe.columns import numbers, text_lengths
from datapipe.errors import UserError
from datapipe.records.outputs import DocumentsFile
from datapipe.reserved_columns import OWN_COLUMNS
from datapipe.shards.documents.json_lines import check_columns, json_lines
from datapipe.stage.segments import SEGMENTS
from datapipe.storage.root import Root

DocumentFormat = Literal["parquet", "jsonl.zst"]

GROUP_BYTES = 16 << 20  # of a row group in memory, which readers hold: 64 MiB compresses to 1% less

SOURCE = "source"
_FIRST = ("id", "url", SOURCE, "text")
_LEFT_OUT = {*OWN_COLUMNS} - {SEGMENTS}
_INCOMPRESSIBLE_BY_DICTIONARY = ("id", "url", "text")


def published_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of written documents: id, url where there is one, source, text, and then the others in their order.
    `schema`: of documents as stages pass them on. Raises UserError where it has a column `source`."""
    if SOURCE in schema.names:
        raise UserError(
            f"the documents have a column '{SOURCE}', and written documents have one of this name: the source of the mixture. "
            f"Leave '{SOURCE}' out of `keep`, or give the stage's column another name."
        )
    others = [name for name in schema.names if name not in (*_FIRST, *_LEFT_OUT)]
    names = [name for name in _FIRST if name in schema.names or name == SOURCE]
    known = schema.remove_metadata().append(pa.field(SOURCE, pa.string(), nullable=False))
    fields = [known.field(name).remove_metadata() for name in (*names, *others)]
    return pa.schema(
        [field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in fields]
    )


def published_rows(record: pa.RecordBatch, source: str, schema: pa.Schema) -> pa.RecordBatch:
    """Documents as they are written. Raises UserError where they have other columns than `schema`, or of other types."""
    expected = set(schema.names) - {SOURCE}
    names = set(record.schema.names) - (_LEFT_OUT - expected)
    if names != expected:
        raise UserError(
            f"documents of '{source}' have the columns {', '.join(sorted(names))} here, and "
            f"{', '.join(sorted(expected))} before. Name only columns under `keep` that every file of the source has, or make "
            f"two sources of it."
        )
    columns = [
        pa.repeat(pa.scalar(source, field.type), record.num_rows)
        if field.name == SOURCE
        else _in_type(field.name, record.column(field.name), field.type, source)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _in_type(name: str, column: pa.Array, kind: pa.DataType, source: str) -> pa.Array:
    try:
        return column if column.type == kind else column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(
            f"documents of '{source}' have the column '{name}' as {kind} and as {column.type}: {error}. Leave it out of "
            f"`keep`, or make two sources of these files."
        ) from error


class DocumentWriter:
    """Writes rows of one schema to a file. After an error, or instead of `finish`, call `abort`. `path`: no reader uses it.
    `schema`: from `published_schema`. `number`: of the file among those of its source."""

    def __init__(self, root: Root, path: str, format: DocumentFormat, schema: pa.Schema, number: int = 0) -> None:
        self._path, self._number = path, number
        self._write: Callable[[pa.RecordBatch], object]
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = self._documents = self._text_bytes = 0
        with ExitStack() as handles:
            self._stream = handles.enter_context(root.open_output(path))
            if format == "parquet":
                groups = handles.enter_context(_parquet_writer(self._stream, schema))
                self._write = lambda rows: groups.write_batch(rows, row_group_size=rows.num_rows)
            else:  # in one zstd frame: some readers stop at the end of the first
                check_columns(schema)
                lines = handles.enter_context(pa.CompressedOutputStream(self._stream, "zstd"))
                self._write = lambda rows: lines.write(pa.py_buffer(json_lines(rows)))
            self._handles = handles.pop_all()

    def add(self, rows: pa.RecordBatch) -> None:
        """Takes rows; a row group is written when it is full."""
        sizes = np.cumsum(row_bytes(rows))  # (num_rows,)
        done = 0
        while done < rows.num_rows:
            before = int(sizes[done - 1]) if done else 0
            full = int(np.searchsorted(sizes, before + GROUP_BYTES - self._held_bytes))
            stop = min(full + 1, rows.num_rows)
            self._held.append(rows.slice(done, stop - done))
            self._held_bytes += int(sizes[stop - 1]) - before
            done = stop
            if self._held_bytes >= GROUP_BYTES:
                self._flush()
        self._documents += rows.num_rows
        if "text" in rows.schema.names:  # packed rows have none
            self._text_bytes += int(text_lengths(rows.column("text")).sum())

    def finish(self) -> DocumentsFile:
        if self._held:
            self._flush()
        self._handles.close()
        return DocumentsFile(
            path=self._path,
            rows=self._documents,
            text_bytes=self._text_bytes,
            bytes=self._stream.num_bytes,
            checksum=self._stream.checksum,
            number=self._number,
        )

    def abort(self) -> None:
        """Closes the file and leaves it incomplete."""
        self._handles.close()

    def _flush(self) -> None:
        rows = pa.concat_batches(self._held) if len(self._held) > 1 else self._held[0]
        self._held, self._held_bytes = [], 0
        self._write(rows)


def _parquet_writer(stream: pa.NativeFile, schema: pa.Schema) -> Any:
    """Row groups of zstd Parquet. Statistics of texts would copy whole texts into the footer."""
    small = [name for name in schema.names if name not in _INCOMPRESSIBLE_BY_DICTIONARY]
    options: dict[str, Any] = {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": small,
        "write_statistics": [name for name in schema.names if name != "text"],
        "write_page_checksum": True,
    }
    try:
        return pq.ParquetWriter(stream, schema, **options)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise UserError(
            f"the documents have a column of a type that Parquet cannot hold: {error}. Leave it out of `keep`."
        ) from error


def row_bytes(rows: pa.RecordBatch) -> np.ndarray:
    """About the bytes of each row in memory, whatever batch it is in: (num_rows,) int64."""
    return _sum_bytes(rows.columns, rows.num_rows)


def _sum_bytes(columns: Sequence[pa.Array], num_rows: int) -> np.ndarray:
    sizes = np.zeros(num_rows, np.int64)
    for column in columns:
        sizes += _value_bytes(column)
    return sizes


def _value_bytes(column: pa.Array) -> np.ndarray:
    """(num_rows,) int64: bytes of strings and of what lists and structs hold, and eight for any other value."""
    kind = column.type
    if pa.types.is_struct(kind):
        return _sum_bytes(column.flatten(), len(column))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        sums = np.concatenate([[0], np.cumsum(_value_bytes(column.values))])
        return np.diff(sums[numbers(column.offsets)])
    if pa.types.is_fixed_size_list(kind):
        return _value_bytes(column.cast(pa.large_list(kind.value_type)))
    if any(is_kind(kind) for is_kind in _OF_ANY_LENGTH):
        return numbers(pc.fill_null(pc.binary_length(column), 0)).astype(np.int64)
    return np.full(len(column), 8, np.int64)


_OF_ANY_LENGTH = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
