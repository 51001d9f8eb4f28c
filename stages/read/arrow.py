"""Arrow IPC: one row, one document. Files and streams, as `pyarrow` and `datasets.save_to_disk` write them.

    begins with ARROW1 ─▶ a file: its footer knows where each record batch begins, so it is cut between them
    anything else      ─▶ a stream, as in the data-*.arrow of a saved dataset: read from its beginning to its end marker

The position of a document is (number of its record batch) · 2^32 + its row there. Memory is one record batch as it is stored.
Each is checked before it is used: Arrow would follow a damaged offset to any address.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from datapipe.errors import DamagedInputError, UserError
from datapipe.stage import FieldNames, FieldsSeen, InputFile, OpenInput, ReadBatch, Reader, Split
from datapipe.stage.documents import TARGET_BATCH_BYTES
from stages.read._damaged_columns import BROKEN, WatchedStream, damaged, on_one_line
from stages.read._parquet_columns import columns_to_read, documents, field_names, has_field

ROW_BITS = 32
_BATCH_ROWS = 8192
_FILE_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Format specification, "IPC Streaming Format". Without it, a stream that is cut between two batches looks whole."""


class Arrow(Reader):
    """Reads Arrow IPC files and streams of one document a row.

    The text must be a string, or binary UTF-8. Ids of any simple type become strings; fields under `keep:` keep their types,
    strings as large strings. The folder of a dataset saved with `save_to_disk` is read by `path: FOLDER/*.arrow`, its splits by
    `path: FOLDER/train/*.arrow` and so on.
    """

    extensions: ClassVar[tuple[str, ...]] = (".arrow", ".feather", ".ipc")
    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)

    def probe(self, file: InputFile, open_input: OpenInput) -> tuple[tuple[int, int], ...]:
        """The record batches of a file, of equal parts of its bytes; rows are not known without reading them. () for a stream.

        Raises DamagedInputError if the footer cannot be read, which `read` rejects."""
        if file.compression is not None:
            raise UserError(
                f"{file.url}: Arrow inside {file.compression} cannot be read by record batches. Decompress the file; Arrow "
                f"itself compresses."
            )
        with open_input(file.url) as stream:
            watched = WatchedStream(stream)
            if not _is_file(watched):
                return ()
            try:
                count = _opened_file(watched).num_record_batches
            except BROKEN as error:
                watched.raise_storage_error(error)
                raise DamagedInputError(_unreadable(error)) from error
        return tuple((0, file.num_bytes // count) for _ in range(count))

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """Runs of record batches of about `target_bytes`; a stream is one split."""
        if not file.row_groups:
            return [Split(file=file)]
        count = len(file.row_groups)
        step = max(1, target_bytes * count // max(1, file.num_bytes))
        return [Split(file=file, start=start, stop=min(count, start + step)) for start in range(0, count, step)]

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        with open_input(split.file.url) as stream:
            watched = WatchedStream(stream)
            number = split.start
            try:
                for number, batch in enumerate(_batches(watched, split.start, split.stop), split.start):
                    yield from _documents(batch, number, fields)
            except BROKEN as error:
                watched.raise_storage_error(error)
                yield damaged(number << ROW_BITS, _unreadable(error))

    def fields_seen(self, split: Split, fields: FieldNames, open_input: OpenInput) -> FieldsSeen:
        """The fields of the schema. Nothing for a file that cannot be read, which `read` rejects."""
        with open_input(split.file.url) as stream:
            watched = WatchedStream(stream)
            try:
                batch = next(_batches(watched, split.start, split.stop), None)
            except BROKEN as error:
                watched.raise_storage_error(error)
                return FieldsSeen()
        if batch is None:
            return FieldsSeen()
        found = (name for name in (fields.text, *fields.keep) if has_field(batch.schema, name))
        return FieldsSeen(num_records=batch.num_rows, found=frozenset(found), names=tuple(field_names(batch.schema)))

    def read_document(self, file: InputFile, position: int, fields: FieldNames, open_input: OpenInput) -> str | None:
        number = position >> ROW_BITS
        of_file = bool(file.row_groups)
        split = Split(file=file, start=number, stop=number + 1) if of_file else Split(file=file)
        if of_file and number >= len(file.row_groups):
            return None
        for batch in self.read(split, fields, open_input):
            rows = np.flatnonzero(batch.positions == position)
            if len(rows):
                return batch.content[int(rows[0])].as_py()
        return None


def _is_file(watched: WatchedStream) -> bool:
    is_file = watched.read(len(_FILE_MAGIC)) == _FILE_MAGIC
    watched.seek(0)
    return is_file


def _opened_file(watched: WatchedStream) -> pa.ipc.RecordBatchFileReader:
    source: Any = pa.PythonFile(watched, mode="r")
    return pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(use_threads=False))


def _batches(watched: WatchedStream, start: int, stop: int | None) -> Iterator[pa.RecordBatch]:
    """The record batches of a file from `start` to `stop`, or those of a stream. Raises one of `BROKEN` for damage."""
    if _is_file(watched):
        file = _opened_file(watched)
        for number in range(start, file.num_record_batches if stop is None else stop):
            yield file.get_batch(number)
        return
    source: Any = pa.PythonFile(watched, mode="r")
    with pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False)) as stream:
        yield from stream
    end = watched.tell()
    watched.seek(max(0, end - len(_END_OF_STREAM)))
    if watched.read(len(_END_OF_STREAM)) != _END_OF_STREAM:
        raise ValueError("the stream ends without its end marker, so it may be cut off between two record batches")
    if watched.read(1):
        raise ValueError(f"something follows the end marker of the stream, at byte {end:,}")


def _documents(batch: pa.RecordBatch, number: int, fields: FieldNames) -> Iterator[ReadBatch]:
    """The documents of a record batch, in parts. Raises one of `BROKEN` for columns that are not valid."""
    batch = batch.select(_columns(batch.schema, fields))
    for column in batch.columns:
        _without_text(column).validate(full=True)
    rows = max(1, min(_BATCH_ROWS, batch.num_rows * TARGET_BATCH_BYTES // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, rows):
        yield documents(batch.slice(start, rows), (number << ROW_BITS) + start, fields)


def _columns(schema: pa.Schema, fields: FieldNames) -> list[int]:
    """The numbers of the needed columns, and of all others with one of their names."""
    wanted = {name if name in schema.names else name.split(".")[0] for name in columns_to_read(schema, fields)}
    return [number for number, name in enumerate(schema.names) if name in wanted]


def _without_text(column: pa.Array) -> pa.Array:
    """Strings as bytes: one that is not UTF-8 costs its row, not the record batch."""
    views = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    return column.view(views[column.type]) if column.type in views else column


def _unreadable(error: Exception) -> str:
    return f"the Arrow data is damaged: {on_one_line(error)}"
