"""Documents between two steps: one compressed Arrow IPC stream per task, written and read batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

import pyarrow as pa

from datapipe.errors import UserError
from datapipe.exchange.files import damaged
from datapipe.metrics import TaskMetrics
from datapipe.plan.work import OutputRef
from datapipe.shards import schemas
from datapipe.shards.checksum import bytes_checksum, file_checksum
from datapipe.stage.documents import DocumentBatch
from datapipe.storage import Root

_CODEC = "zstd"
_HELD_BYTES = 256 << 20


class TableWriter:
    """Writes record batches of one schema to one file; the schema is that of the first batch, or `default`."""

    def __init__(self, root: Root, path: str, default: pa.Schema) -> None:
        self.root, self.path, self.default = root, path, default
        self._stream = root.open_output(path)
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None
        self._schema = default
        self._rows = 0
        self._weight = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self._writer is None:
            self._open(batch.schema)
        assert self._writer is not None
        if batch.schema != self._schema:
            batch = _conform(batch, self._schema)
        self._writer.write_batch(batch)
        self._rows += batch.num_rows
        self._weight += batch.nbytes

    def finish(self) -> OutputRef:
        if self._writer is None:
            self._open(self.default)
        assert self._writer is not None
        self._writer.close()
        self._stream.close()
        checksum, size = file_checksum(self.root, self.path)
        return OutputRef(path=self.path, rows=self._rows, bytes=size, weight=self._weight, checksum=checksum)

    def _open(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pa.ipc.new_stream(self._stream, schema, options=pa.ipc.IpcWriteOptions(compression=_CODEC))


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns of `schema`; files of one source may differ in the types of the columns they keep."""
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


def read_table(root: Root, output: OutputRef, names: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """The batches of a file, one in memory at a time, after the whole of it was held against its checksum.

    Args:
        names: only these columns, of those that the file has, are decompressed; empty: all.
    """
    with _checked(root, output) as stream:
        options = pa.ipc.IpcReadOptions()
        if names:
            schema = pa.ipc.read_schema(stream)
            stream.seek(0)
            options.included_fields = [at for at, name in enumerate(schema.names) if name in names]
        with pa.ipc.open_stream(stream, options=options) as reader:
            yield from reader


def _checked(root: Root, output: OutputRef) -> pa.NativeFile:
    """Opens a committed file. Hashing a mapped file costs a tenth of decompressing it; a remote one is fetched once for both,
    and one too large to be held is read without the check."""
    if root.local is None and output.bytes <= _HELD_BYTES:
        return pa.BufferReader(committed_bytes(root, output))
    if root.local is not None and file_checksum(root, output.path)[0] != output.checksum:
        raise damaged(output, "not what was committed")
    return root.open_input(output.path)


def committed_bytes(root: Root, output: OutputRef) -> bytes:
    """A small committed file, held against its checksum."""
    content = root.read_bytes(output.path)
    if bytes_checksum(content) != output.checksum:
        raise damaged(output, "not what was committed")
    return content


def read_documents(root: Root, outputs: Sequence[OutputRef], metrics: TaskMetrics) -> Iterator[DocumentBatch]:
    """The documents of a step before, in order; what reading them takes goes to `metrics`."""
    for output in outputs:
        started = perf_counter()
        for record in read_table(root, output):
            batch = DocumentBatch(record)
            metrics.spent("read documents", perf_counter() - started, batch.text_bytes, batch.num_docs)
            yield batch
            started = perf_counter()


def documents_writer(root: Root, path: str) -> TableWriter:
    return TableWriter(root, path, schemas.DOCUMENTS_BASE)
