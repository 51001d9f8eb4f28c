"""Writes shards: rows of sequences in, files of a fixed layout out.

    append(batch) ── rebuffered to a constant number of rows ── PREFIX-00000.arrow, PREFIX-00001.arrow, …

Every record batch (Arrow) or row group (Parquet) of a file but the last holds `rows_per_batch` rows, so row -> (batch, row in
it) is arithmetic, and carries the checksum of its rows (see `shard_file`). A file is closed before a row that would take its
tokens past `target_bytes`. The bytes depend neither on the batches in which rows arrive, nor on the path or the time. Memory is
one record batch of about 4 MiB of tokens beside the appended one. Of a source that is split, a file counts neighbouring rows of
one cell as a run.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from operator import add
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datapipe import columns
from datapipe.records.checksum import rows_checksum
from datapipe.records.outputs import ShardFile
from datapipe.shards import schemas
from datapipe.shards.shard_file import CHECKSUM_KEY, FORMAT_VERSION, ROWS_KEY, SOURCE_KEY, VERSION_KEY, identity
from datapipe.shards.shard_table import PIECE_KEY, ShardGroup
from datapipe.storage.root import Root

ShardFormat = Literal["arrow", "parquet"]

CellOfRows = tuple[int, bool]
"""The number of a cell, and whether an epoch has the rows once more; see `CellRun`."""

_WHOLE = ShardGroup()

BATCH_BYTES = 4 << 20
"""Token bytes of one record batch: large enough to read at disk speed, small enough to keep a few in memory."""


def shard_schema(
    id_type: pa.DataType,
    sequence_length: int,
    tokenizer_fingerprint: str,
    source: str,
    group: ShardGroup = _WHOLE,
    *,
    has_mask: bool = False,
) -> pa.Schema:
    """`schemas.sequences` with the metadata of a shard. It holds no path and no time, so equal rows give equal bytes."""
    metadata = {**identity(sequence_length, tokenizer_fingerprint, group), SOURCE_KEY: source.encode()}
    return schemas.sequences(id_type, sequence_length, has_mask=has_mask).with_metadata(metadata)


class ShardWriter:
    """Writes rows to `PREFIX-NNNNN.FORMAT` under `root`. After an error, or instead of `finish`, call `abort`.

    `prefix`: no reader uses it, since unfinished files are visible. `schema`: from `shard_schema`.
    `target_bytes`: token bytes of a file, padding included; it has at least one row. `first`: the
    number of the first file."""

    def __init__(
        self, root: Root, prefix: str, format: ShardFormat, schema: pa.Schema, target_bytes: int, first: int = 0
    ) -> None:
        row_type = schema.field("tokens").type
        row_bytes = row_type.list_size * row_type.value_type.bit_width // 8
        self._root, self._prefix, self._first = root, prefix, first
        self._format: ShardFormat = format
        self._rows_per_file = max(1, target_bytes // row_bytes)
        self._rows_per_batch = min(self._rows_per_file, max(1, BATCH_BYTES // row_bytes))
        layout = {VERSION_KEY: FORMAT_VERSION.encode(), ROWS_KEY: str(self._rows_per_batch).encode()}
        self._schema = schema.with_metadata({**(schema.metadata or {}), **layout})
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_cells = deque[tuple[CellOfRows | None, int]]()  # of the pending rows, each with a number of rows
        self._file: _OpenShard | None = None
        self._written: list[ShardFile] = []
        self._appended = 0

    def next_rows(self, num_rows: int) -> tuple[list[str], np.ndarray]:
        """Where the next rows to append will stand: the path of the file and the row in it, (num_rows,) each."""
        rows = np.arange(self._appended, self._appended + num_rows)
        return [self._path(number) for number in (rows // self._rows_per_file).tolist()], rows % self._rows_per_file

    def append(self, batch: pa.RecordBatch, cell: CellOfRows | None = None) -> None:
        """Adds rows of `schemas.sequences`, of one cell where the source is split. After an exception the open file is closed
        and all files are invalid."""
        assert batch.schema.equals(self._schema), batch.schema
        self._pending.append(batch.replace_schema_metadata(self._schema.metadata))
        if batch.num_rows:
            self._pending_cells.append((cell, batch.num_rows))
        self._pending_rows += batch.num_rows
        self._appended += batch.num_rows
        while self._pending_rows >= self._rows_wanted():
            self._write(self._rows_wanted())

    def finish(self) -> tuple[ShardFile, ...]:
        """Writes the remaining rows. Returns all files in order; none without a row."""
        if self._pending_rows:
            self._write(self._pending_rows)
        if self._file is not None:
            self._close()
        return tuple(self._written)

    def abort(self) -> None:
        """Closes the open file, if there is one, and leaves it incomplete."""
        opened, self._file = self._file, None
        if opened is not None:
            opened.close()

    def _path(self, number: int) -> str:
        return f"{self._prefix}-{self._first + number:05d}.{self._format}"

    def _rows_wanted(self) -> int:
        """Rows of the next record batch: a full batch, or the rows that the file has room for."""
        return min(self._rows_per_batch, self._rows_per_file - (self._file.sequences if self._file is not None else 0))

    def _write(self, num_rows: int) -> None:
        batch = self._take(num_rows)
        try:
            if self._file is None:
                self._file = _OpenShard(self._root, self._path(len(self._written)), self._format, self._schema)
            self._file.write(batch, self._taken_cells(num_rows))
        except BaseException:
            self.abort()
            raise
        if self._file.sequences == self._rows_per_file:
            self._close()

    def _close(self) -> None:
        opened, self._file = self._file, None
        assert opened is not None
        opened.close()
        self._written.append(opened.written())

    def _taken_cells(self, num_rows: int) -> Iterator[tuple[CellOfRows | None, int]]:
        """The cells of the first pending rows, each with a number of rows."""
        while num_rows:
            cell, count = self._pending_cells.popleft()
            if count > num_rows:
                self._pending_cells.appendleft((cell, count - num_rows))
            yield cell, min(count, num_rows)
            num_rows -= min(count, num_rows)

    def _take(self, num_rows: int) -> pa.RecordBatch:
        pending = pa.Table.from_batches(self._pending)
        self._pending, self._pending_rows = pending.slice(num_rows).to_batches(), self._pending_rows - num_rows
        return pa.concat_batches(pending.slice(0, num_rows).to_batches())


class _OpenShard:
    def __init__(self, root: Root, path: str, format: ShardFormat, schema: pa.Schema) -> None:
        self._path, self._format = path, format
        piece_length = schema.metadata.get(PIECE_KEY)
        self._piece_length = None if piece_length is None else int(piece_length)
        self._checksums: list[str] = []
        self.sequences = self.tokens = self.documents = 0
        self._runs: list[tuple[CellOfRows, list[int]]] = []  # of rows of one cell: rows, tokens, documents
        with ExitStack() as handles:
            self._stream = handles.enter_context(root.open_output(path, is_mapped=format == "arrow"))
            self._sink = handles.enter_context(_sink(self._stream, format, schema))
            self._handles = handles.pop_all()

    def write(self, batch: pa.RecordBatch, cells: Iterable[tuple[CellOfRows | None, int]]) -> None:
        checksum = rows_checksum(batch)
        if self._format == "arrow":
            self._sink.write_batch(batch, custom_metadata={CHECKSUM_KEY: checksum})
        else:
            self._sink.write_batch(batch, row_group_size=batch.num_rows)
            self._checksums.append(checksum)
        start = 0
        for cell, num_rows in cells:
            rows, start = batch.slice(start, num_rows), start + num_rows
            tokens = int(columns.numbers(rows.column("lengths").flatten()).sum(dtype=np.int64))
            documents = int(np.count_nonzero(columns.numbers(rows.column("starts").flatten()) == 0))
            counts = (num_rows, tokens, documents)
            self.sequences, self.tokens, self.documents = map(add, (self.sequences, self.tokens, self.documents), counts)
            if cell is not None:
                if not self._runs or self._runs[-1][0] != cell:
                    self._runs.append((cell, [0, 0, 0]))
                self._runs[-1][1][:] = map(add, self._runs[-1][1], counts)

    def close(self) -> None:
        with self._handles:
            if self._format == "parquet":
                self._sink.add_key_value_metadata({CHECKSUM_KEY: " ".join(self._checksums)})

    def written(self) -> ShardFile:
        return ShardFile(
            path=self._path,
            rows=self.sequences,
            bytes=self._stream.num_bytes,
            checksum=self._stream.checksum,
            documents=self.documents,
            tokens=self.tokens,
            piece_length=self._piece_length,
            cells=tuple((*cell, *counts) for cell, counts in self._runs),  # pyright: ignore[reportArgumentType]
        )


def _sink(stream: pa.NativeFile, format: ShardFormat, schema: pa.Schema) -> Any:
    """Uncompressed Arrow, so that rows are views of the mapped file; or Parquet, which is smaller.

    Parquet stores uint16 as 32 bits, so token ids are split into streams of their bytes: ids with
    Zipf's frequencies compress to 1 / 1.39 instead of 1 / 1.08 of their uint16 size, and faster
    (2026-11, zstd 1).
    """
    if format == "arrow":
        return pa.ipc.new_file(stream, schema)
    split_columns: Any = ["tokens.list.element"]  # the type stubs allow a bool only
    return pq.ParquetWriter(
        stream,
        schema,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        use_byte_stream_split=split_columns,
    )
