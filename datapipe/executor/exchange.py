"""Moving rows between workers by hash: one file per task, cut into sorted runs, with an index of hashes at its end.

    writer   rows as they come ─▶ runs of `RUN_BYTES`, each sorted by (hash, key) ─▶ blocks ─▶ index ─▶ one file
    reader   files + a range of hashes ─▶ the blocks that overlap it ─▶ rows of the range, sorted by (hash, key)

    file:    schema │ blocks, each an Arrow IPC message │ index: first and last hash, offset, bytes, checksum of each │ tail

A bucket is a range of hashes that the reader chooses, so the writer knows nothing of buckets and there are never
maps × buckets files. The writer holds one run; the reader holds one bucket. Every block that is read is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import xxhash

from datapipe.columns import key_halves, numbers
from datapipe.errors import CorruptionError
from datapipe.plan.tasks import OutputRef
from datapipe.shards.checksum import file_checksum
from datapipe.storage import Root

RUN_BYTES = 64 << 20
"""Rows held by a writer before they are sorted and written."""

BLOCK_BYTES = 1 << 20
"""About the size of a block, the least that a reader fetches."""

_TAIL = struct.Struct("<qqQ8s")  # offset of the index, number of blocks, checksum of the index, magic
_MAGIC = b"DPXCHG02"
_INDEX_FIELDS = 5
_CODEC = "lz4"


class ExchangeWriter:
    """Writes one task's rows. The schema begins with `hash` uint64 and has `key`."""

    def __init__(self, root: Root, path: str, schema: pa.Schema) -> None:
        self.root, self.path, self.schema = root, path, schema
        self._stream = root.open_output(path)
        self._stream.write(schema.serialize())
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._index: list[tuple[int, int, int, int, int]] = []
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
        index_at = self._stream.tell()
        index = np.array(self._index, np.uint64).reshape(-1, _INDEX_FIELDS).tobytes()
        self._stream.write(index)
        self._stream.write(_TAIL.pack(index_at, len(self._index), xxhash.xxh3_64_intdigest(index), _MAGIC))
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
            content = _message(block)
            checksum = xxhash.xxh3_64_intdigest(content)
            self._index.append((int(hashes[0]), int(hashes[-1]), self._stream.tell(), len(content), checksum))
            self._stream.write(content)
        self._held.clear()
        self._held_bytes = 0


def _message(block: pa.RecordBatch) -> pa.Buffer:
    """A block as one compressed IPC message; a stream writer is the one way to compress, and puts the schema before it."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_CODEC)
    with pa.ipc.new_stream(sink, block.schema, options=options) as writer:
        writer.write_batch(block.slice(0, 0))
        begins = sink.tell()
        writer.write_batch(block)
        ends = sink.tell()
    return sink.getvalue().slice(begins, ends - begins)


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
        for first, last, offset, length, checksum in index.tolist():
            if last < start or first >= stop:
                continue
            stream.seek(offset)
            content = stream.read_buffer(length)
            if xxhash.xxh3_64_intdigest(content) != checksum:
                raise damaged(output, f"the block at byte {offset} is not what was written")
            block = pa.ipc.read_record_batch(pa.ipc.read_message(content), schema)
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
        raise damaged(output, f"{size} bytes, but {output.bytes} were committed")
    stream.seek(size - _TAIL.size)
    index_at, num_blocks, checksum, magic = _TAIL.unpack(stream.read(_TAIL.size))
    if magic != _MAGIC:
        raise damaged(output, f"not an exchange file: it ends in {magic!r}")
    stream.seek(index_at)
    content = stream.read(num_blocks * _INDEX_FIELDS * 8)
    if xxhash.xxh3_64_intdigest(content) != checksum:
        raise damaged(output, "its index is not what was written")
    stream.seek(0)
    schema = pa.ipc.read_schema(pa.ipc.read_message(stream))
    return np.frombuffer(content, np.uint64).reshape(-1, _INDEX_FIELDS), schema


def damaged(output: OutputRef, what: str) -> CorruptionError:
    """The error for a committed file that is not what it was."""
    return CorruptionError(f"{output.path}: {what}. Delete this file and run the same command again: it is made anew.")
