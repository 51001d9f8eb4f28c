"""Documents between two steps: one compressed Arrow IPC stream per task, written and read batch by batch. Tables of facts are
Parquet files (`facts.py`), which are read in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.errors import UserError
from datapipe.exchange.files import damaged
from datapipe.metrics import TaskMetrics
from datapipe.records.checksum import bytes_checksum, file_checksum, intact
from datapipe.records.outputs import OutputFile, TableFile
from datapipe.stage.documents import DocumentBatch
from datapipe.storage.root import Root
from datapipe.storage.written import OutputStream

_CODEC = "zstd"
_PARQUET_ROWS = 1 << 14
_HELD_BYTES = 256 << 20


class TableWriter:
    """Writes record batches of one schema, that of the first batch, to one file, which is made for the first row."""

    def __init__(self, root: Root, path: str) -> None:
        self.root, self.path = root, path
        self._stream: OutputStream | None = None
        self._writer: Any = None
        self._schema: pa.Schema | None = None
        self._rows = 0
        self._row_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        self._schema = self._schema or batch.schema
        if batch.schema != self._schema:
            batch = _conform(batch, self._schema)
        self._rows += batch.num_rows
        self._row_bytes += batch.nbytes
        self._write(batch)

    def finish(self) -> tuple[TableFile, ...]:
        """The finished file; none where no row was added."""
        if self._stream is None:
            return ()
        self._writer.close()
        self._stream.close()
        size, checksum = self._stream.num_bytes, self._stream.checksum
        return (TableFile(path=self.path, rows=self._rows, bytes=size, checksum=checksum, row_bytes=self._row_bytes),)

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            options = pa.ipc.IpcWriteOptions(compression=_CODEC)
            self._writer = pa.ipc.new_stream(self._opened(), batch.schema, options=options)
        self._writer.write_batch(batch)

    def _opened(self) -> OutputStream:
        self._stream = self.root.open_output(self.path)
        return self._stream


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the types of `schema`: files of one source may keep a column in different types."""
    if set(batch.schema.names) != set(schema.names):
        raise UserError(
            f"documents of one source have columns {sorted(batch.schema.names)} here and {sorted(schema.names)} before. "
            f"Name only columns under `keep:` that every file of the source has, or make two sources of it."
        )
    try:
        columns = [batch.column(field.name).cast(field.type) for field in schema]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(
            f"a column that this source keeps has different types in different files: {error}. "
            f"Drop it from `keep:`, or make two sources of these files."
        ) from error
    return pa.record_batch(columns, schema=schema)


def read_table(root: Root, output: TableFile, names: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """The batches of a file, one in memory at a time, once the checksum of the whole file is verified.

    Args:
        names: decompress only these columns, as far as the file has them; empty: all.
    """
    with _checked(root, output) as stream:
        if output.path.endswith(".parquet"):
            with pq.ParquetFile(stream, pre_buffer=False) as file:
                wanted = [name for name in file.schema_arrow.names if name in names] if names else None
                yield from file.iter_batches(_PARQUET_ROWS, columns=wanted, use_threads=False)
            return
        options = pa.ipc.IpcReadOptions(use_threads=False)  # no thread holds on to the bytes; see `storage.parquet_table`
        if names:
            schema = pa.ipc.read_schema(stream)
            stream.seek(0)
            options.included_fields = [number for number, name in enumerate(schema.names) if name in names]
        with pa.ipc.open_stream(stream, options=options) as reader:
            yield from reader


def read_row(root: Root, output: TableFile, number: int) -> pa.RecordBatch:
    """One row of a stream of record batches: the batches before its own are passed over, and not decompressed."""
    with _checked(root, output) as stream:
        schema = pa.ipc.read_schema(stream)
        stream.seek(0)
        first = pa.ipc.IpcReadOptions(use_threads=False, included_fields=[0])
        with pa.ipc.open_stream(stream, options=first) as reader:
            passed, start = 0, 0
            for batch in reader:
                if number < start + batch.num_rows:
                    break
                passed, start = passed + 1, start + batch.num_rows
        stream.seek(0)
        for _ in range(passed + 1):  # the schema, and the batches before
            pa.ipc.read_message(stream)
        return pa.ipc.read_record_batch(pa.ipc.read_message(stream), schema).slice(number - start, 1)


def _checked(root: Root, output: OutputFile) -> pa.NativeFile:
    """Opens a committed file and verifies its checksum: a tenth of the cost of decompressing it. A remote file is fetched once
    for both, or twice if it is too large to hold."""
    if root.local is None and output.bytes <= _HELD_BYTES:
        return pa.BufferReader(committed_bytes(root, output))
    check_committed(root, output)
    return root.filesystem.open_input_file(root.path(output.path))


def check_committed(root: Root, output: OutputFile) -> None:
    """Raises CorruptionError for a file whose bytes are not those that were committed."""
    if file_checksum(root, output.path, output.checksum)[0] != output.checksum:
        raise damaged(output, "its checksum is not the committed one")


def committed_bytes(root: Root, output: OutputFile) -> bytes:
    """A small committed file, its checksum verified."""

    def read() -> bytes:
        content = root.read_bytes(output.path)
        if bytes_checksum(content) != output.checksum:
            raise damaged(output, "its checksum is not the committed one")
        return content

    return intact(read)


def read_documents(root: Root, outputs: Sequence[TableFile], metrics: TaskMetrics) -> Iterator[DocumentBatch]:
    """The documents of the step before, in order; `metrics` gets the time of reading them."""
    records = (record for output in outputs for record in read_table(root, output))
    return metrics.timed_each("read documents", map(DocumentBatch, records), lambda batch: (batch.text_bytes, batch.num_docs))
