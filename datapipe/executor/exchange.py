"""Moving rows between workers by hash: one file per task, cut into sorted runs, with an index of hashes at its end.

    writer   rows as they come ─▶ runs of `RUN_BYTES`, each sorted by (hash, key) ─▶ blocks ─▶ index ─▶ one file
    reader   files + a range of hashes ─▶ the blocks that overlap it ─▶ rows of the range, sorted by (hash, key)

    file:    Arrow IPC stream (schema, blocks) │ index (num_blocks, 4) int64: first and last hash, offset, bytes │ tail

A bucket is a range of hashes that the reader chooses, so the writer knows nothing of buckets and there are never
maps × buckets files. The writer holds one run; the reader holds one bucket.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from datapipe.columns import key_halves, numbers
from datapipe.errors import CorruptionError
from datapipe.plan.tasks import OutputRef
from datapipe.shards.checksum import file_checksum
from datapipe.storage import Root

RUN_BYTES = 64 << 20
"""Rows held by a writer before they are sorted and written."""

BLOCK_BYTES = 1 << 20
"""About the size of a block, the least that a reader fetches."""

_TAIL = struct.Struct("<qqq8s")  # offset of the index, number of blocks, rows, magic
_MAGIC = b"DPXCHG01"
_CODEC = "lz4"


class ExchangeWriter:
    """Writes one task's rows. The schema begins with `hash` uint64 and has `key`."""

    def __init__(self, root: Root, path: str, schema: pa.Schema) -> None:
        self.root, self.path, self.schema = root, path, schema
        self._stream = root.open_output(path)
        options = pa.ipc.IpcWriteOptions(compression=_CODEC)
        self._writer = pa.ipc.new_stream(self._stream, schema, options=options)
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema=schema))  # the schema goes out with the first batch
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._index: list[tuple[int, int, int, int]] = []
        self._rows = 0
        self._weight = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Takes rows in any order."""
        if rows.num_rows == 0:
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        self._rows += rows.num_rows
        self._weight += rows.nbytes
        if self._held_bytes >= RUN_BYTES:
            self._flush()

    def finish(self, weight: int | None = None) -> OutputRef:
        """Writes what is held and the index.

        Args:
            weight: what `OutputRef.weight` is to be; the rows' bytes by default.
        """
        self._flush()
        self._writer.close()
        index_at = self._stream.tell()
        self._stream.write(np.array(self._index, np.uint64).reshape(-1, 4).tobytes())
        self._stream.write(_TAIL.pack(index_at, len(self._index), self._rows, _MAGIC))
        self._stream.close()
        checksum, size = file_checksum(self.root, self.path)
        weight = self._weight if weight is None else weight
        return OutputRef(path=self.path, rows=self._rows, bytes=size, weight=weight, checksum=checksum)

    def _flush(self) -> None:
        if not self._held:
            return
        run = sorted_by_hash(pa.Table.from_batches(self._held, self.schema))
        rows_per_block = max(1, int(run.num_rows * BLOCK_BYTES / max(1, run.nbytes)))
        for start in range(0, run.num_rows, rows_per_block):
            block = run.slice(start, rows_per_block)
            hashes = numbers(block.column("hash"))
            begins = self._stream.tell()
            self._writer.write_batch(block)
            self._index.append((int(hashes[0]), int(hashes[-1]), begins, self._stream.tell() - begins))
        self._held.clear()
        self._held_bytes = 0


def sorted_by_hash(table: pa.Table) -> pa.RecordBatch:
    """The rows of a table as one batch, sorted by (hash, key); rows of equal hash and key keep no order of their own,
    so a writer must not emit them."""
    table = table.combine_chunks()
    if table.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    file_hash, place = key_halves(table.column("key"))
    order = np.lexsort((place, file_hash, numbers(table.column("hash"))))
    return table.take(pa.array(order)).combine_chunks().to_batches()[0]


def read_range(root: Root, files: Sequence[OutputRef], start: int, stop: int) -> pa.RecordBatch | None:
    """All rows whose hash is in [start, stop), sorted by (hash, key); None where no file has a schema to give."""
    parts = [part for output in files for part in read_blocks(root, output, start, stop)]
    if not parts:
        return None
    return sorted_by_hash(pa.Table.from_batches(parts))


def read_blocks(root: Root, output: OutputRef, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """The rows of one file in a range, block by block; only overlapping blocks are fetched."""
    with root.open_input(output.path) as stream:
        index, schema = _read_index(stream, output)
        for first, last, offset, length in index.tolist():
            if last < start or first >= stop:
                continue
            stream.seek(offset)
            block = pa.ipc.read_record_batch(pa.ipc.read_message(stream.read_buffer(length)), schema)
            if start <= first and last < stop:
                yield block
                continue
            hashes = numbers(block.column("hash"))
            low = int(np.searchsorted(hashes, np.uint64(start), "left"))
            high = len(hashes) if stop >= 1 << 64 else int(np.searchsorted(hashes, np.uint64(stop), "left"))
            yield block.slice(low, high - low)


def _read_index(stream: pa.NativeFile, output: OutputRef) -> tuple[np.ndarray, pa.Schema]:
    size = stream.size()
    if size != output.bytes or size < _TAIL.size:
        raise CorruptionError(f"{output.path}: {size} bytes, but {output.bytes} were committed. Delete work/ and run again.")
    stream.seek(size - _TAIL.size)
    index_at, num_blocks, _, magic = _TAIL.unpack(stream.read(_TAIL.size))
    if magic != _MAGIC:
        raise CorruptionError(f"{output.path}: not an exchange file: its last bytes are {magic!r}. Delete work/ and run again.")
    stream.seek(index_at)
    index = np.frombuffer(stream.read(num_blocks * 32), np.uint64).reshape(-1, 4)
    stream.seek(0)
    schema = pa.ipc.read_schema(pa.ipc.read_message(stream))
    return index, schema
