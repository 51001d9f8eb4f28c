"""Tables of a task, in one file each: documents for the next step, and what a run knows of each document.

Documents are compressed Arrow streams, facts Parquet files that `datapipe.explore` queries by SQL:

| kind | a row for each |
|---|---|
| kept | document that its source keeps: id, bytes, and every plain column; no text |
| drops, quarantine | document that was dropped or could not be processed |
| borderline | document near the threshold of a rule |
| findings | item of an evaluation set in a document |
| packed | part of a document in a row of a shard |

Every row of facts has its source, and where documents are counted its fate, so one query reads the
files of all tasks. The rows of `kept` have the order of `documents`, which has the texts. A writer
holds at most `GROUP_ROWS` rows or about `GROUP_BYTES` of facts, or one batch of documents.
"""

import posixpath
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.columns import compute, numbers, text_lengths
from datapipe.exchange.files import damaged
from datapipe.metrics import TaskMetrics
from datapipe.records.checksum import bytes_checksum, file_checksum, rereading
from datapipe.records.outputs import OutputFile, TableFile
from datapipe.reserved_columns import OWN_COLUMNS
from datapipe.stage.documents import DocumentBatch
from datapipe.storage.root import Root
from datapipe.storage.written import OutputStream

GROUP_ROWS, GROUP_BYTES = 1 << 16, 16 << 20
MOST_CHARS = 1000  # Texts of columns are cut to so many characters; `documents` has the whole ones
FACT_COLUMNS = (
    *("source", "fate", "key", "id", "path", "position", "name", "stage", "rule", "value", "threshold"),
    *("survivor", "bytes", "error", "excerpt", "shard", "row", "tokens", "place", "filename", "file_row_number"),
)
"""Columns of facts, of their views, and those that DuckDB adds to the rows of a file. See `_fact_names`."""

_FEW_VALUES = ("source", "fate", "stage", "rule", "path", "list", "shard")
_PLAIN = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_large_string)
_PARQUET_ROWS = 1 << 14
HELD_BYTES = 256 << 20


class TableWriter:
    """Writes record batches of one schema, that of the first batch, to one file, which is made for the first row."""

    def __init__(self, root: Root, path: str) -> None:
        self.root, self.path = root, path
        self._stream: OutputStream | None = None
        self._writer: Any = None
        self._rows = 0
        self._row_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
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
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            self._writer = pa.ipc.new_stream(self._opened(), batch.schema, options=options)
        self._writer.write_batch(batch)

    def _opened(self) -> OutputStream:
        self._stream = self.root.open_output(self.path)
        return self._stream


class FactWriter(TableWriter):
    """Writes facts to Parquet. `constants`: the first columns, each with one text in all rows."""

    def __init__(self, root: Root, path: str, **constants: str) -> None:
        super().__init__(root, path)
        self._constants = constants
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = self._held_rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        for number, (name, value) in enumerate(self._constants.items()):
            batch = batch.add_column(number, name, pa.repeat(value, batch.num_rows))
        super().add(batch)

    def finish(self) -> tuple[TableFile, ...]:
        if self._held:
            self._flush()
        return super().finish()

    def _write(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= GROUP_ROWS or self._held_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._writer is None:
            schema = self._held[0].schema
            few: Any = [name for name in schema.names if name in _FEW_VALUES]
            self._writer = pq.ParquetWriter(self._opened(), schema, compression="zstd", use_dictionary=few)
        self._writer.write_table(pa.Table.from_batches(self._held), row_group_size=GROUP_ROWS)
        self._held.clear()
        self._held_bytes = self._held_rows = 0


def kept_facts(batch: DocumentBatch) -> pa.RecordBatch:
    """A row for each document: key, id, bytes of its text, and its plain columns."""
    record = batch.record
    columns = {"key": batch.keys, "id": record.column("id"), "bytes": pa.array(text_lengths(record.column("text")))}
    plain = [field for field in record.schema if any(is_plain(field.type) for is_plain in _PLAIN)]
    kept = [field.name for field in plain if field.name not in OWN_COLUMNS]
    columns |= {fact: _short(record.column(name)) for name, fact in _fact_names(kept).items()}
    return pa.record_batch(columns)


def _fact_names(names: Sequence[str]) -> dict[str, str]:
    """The names in SQL of columns of documents. SQL ignores case, so a column with the name of a fact, or of a column before
    it, gets `kept.` in front, until no other has the name: value → kept.value; a, A → a, kept.A."""
    taken, facts = set(FACT_COLUMNS), dict[str, str]()
    for name in names:
        fact = name
        while fact.lower() in taken:
            fact = f"kept.{fact}"
        taken.add(fact.lower())
        facts[name] = fact
    return facts


def _short(column: pa.Array) -> pa.Array:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    return compute.utf8_slice_codeunits(column, 0, MOST_CHARS) if column.nbytes > MOST_CHARS else column


def shard_of_task(fingerprint: str, path: str) -> str:
    """A shard that a task writes, by a name that is the same in all attempts at the task."""
    return f"{fingerprint}/{posixpath.basename(path)}"


def packed_facts(rows: pa.RecordBatch, shards: Sequence[str], numbers_of_rows: np.ndarray) -> pa.RecordBatch:
    """A row for each part of a document in rows of `schemas.sequences`. `shards`,
    `numbers_of_rows`: (num_rows,), the `shard_of_task` of each row, and its number there."""
    lengths, keys, starts = (rows.column(name) for name in ("lengths", "keys", "starts"))
    row_of = np.repeat(np.arange(rows.num_rows), np.diff(numbers(lengths.offsets)))
    return pa.record_batch(
        {
            "key": keys.flatten(),
            "shard": pa.array(shards, pa.string()).take(pa.array(row_of)),
            "row": pa.array(numbers_of_rows[row_of]),
            "start": starts.flatten(),
            "tokens": lengths.flatten(),
        }
    )


def read_documents(root: Root, outputs: Sequence[TableFile], metrics: TaskMetrics) -> Iterator[DocumentBatch]:
    """The documents of the step before, in order; `metrics` gets the time of reading them."""
    records = (record for output in outputs for record in read_table(root, output))
    return metrics.timed_each("read documents", map(DocumentBatch, records), lambda batch: (batch.text_bytes, batch.num_docs))


def read_table(root: Root, output: TableFile, names: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """The batches of a file, one in memory at a time, once the checksum of the whole file is verified.
    `names`: decompress only these columns, as far as the file has them; empty: all."""
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
    start = 0
    for batch in read_table(root, output):
        if number < start + batch.num_rows:
            return batch.slice(number - start, 1)
        start += batch.num_rows
    raise IndexError(f"{output.path}: row {number} of {start}")


def _checked(root: Root, output: OutputFile) -> pa.NativeFile:
    """Opens a committed file and verifies its checksum: a tenth of the cost of decompressing it. A
    remote file is fetched once for both, or twice if it is too large to hold."""
    if root.local is None and output.bytes <= HELD_BYTES:
        return pa.BufferReader(committed_bytes(root, output))
    check_committed(root, output)
    return root.open_unmapped(output.path, output.bytes)


def check_committed(root: Root, output: OutputFile) -> None:
    """Raises CorruptionError for a file whose bytes are not those that were committed."""
    if file_checksum(root, output.path, output.checksum)[0] != output.checksum:
        raise damaged(output, "its checksum is not the committed one")


@rereading
def committed_bytes(root: Root, output: OutputFile) -> bytes:
    """A small committed file, its checksum verified."""
    content = root.read_bytes(output.path)
    if bytes_checksum(content) != output.checksum:
        raise damaged(output, "its checksum is not the committed one")
    return content
