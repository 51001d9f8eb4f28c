"""Moving rows between workers by hash: one file per task, cut into sorted runs, with an index of the blocks at its end.

    writer   rows as they come ─▶ runs of `RUN_BYTES`, each sorted ─▶ blocks ─▶ index ─▶ one file
    reader   files + a range ─▶ the blocks that overlap it ─▶ rows of the range, sorted

    file:    schema │ blocks, each an Arrow IPC message │ index: first and last row, offset, bytes, checksum of each │ tail

Rows are sorted by their words: `hash`, then every other column of integers and keys, from left to right. A bucket is a hash
range that the reader chooses, so the writer knows nothing of buckets and there are never maps × buckets files. The writer holds
one run; the reader holds one bucket, or `limit_bytes` of it. Every block is checked when it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import xxhash

from datapipe.activity import progress
from datapipe.columns import KEY_TYPE, key_halves, numbers
from datapipe.errors import CorruptionError, UserError
from datapipe.plan.outputs import ExchangeFile, OutputFile
from datapipe.shards.checksum import file_checksum
from datapipe.stage.tables import RANK, as_reference, new_bit
from datapipe.storage import Root, open_mapped

RUN_BYTES = 64 << 20
"""Rows held by a writer before they are sorted and written."""

BLOCK_BYTES = 1 << 20
"""About the size of a block, the least that a reader fetches."""

_TAIL = struct.Struct("<qqQ8s")  # offset of the index, number of blocks, checksum of the index, magic
_MAGIC = b"DPXCHG03"
_BLOCK_FIELDS = 4  # of the index, after the words of a block's first and last row: rows, offset, bytes, checksum
_CODEC = "lz4"

Bound = tuple[int, ...]
"""A bound in the order of rows, by their first words: (5,) comes before every row of hash 5."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One block of a file, from its index: the words of its first and last row, and the bytes that it takes."""

    first: Bound
    last: Bound
    rows: int
    offset: int
    length: int
    checksum: int


def sort_words(rows: pa.RecordBatch | pa.Table, count: int | None = None) -> list[np.ndarray]:
    """The words that rows are sorted by: (num_rows,) uint64 each. A key is two words; signed numbers are moved up by 2**63.

    Args:
        count: only so many words, from the first on; None: all.
    """
    words: list[np.ndarray] = []
    for name, field_type in zip(rows.schema.names, rows.schema.types):
        if count is not None and len(words) >= count:
            break
        if field_type == KEY_TYPE:
            words += key_halves(rows.column(name))
        elif pa.types.is_unsigned_integer(field_type):
            words.append(numbers(rows.column(name)).astype(np.uint64, copy=False))
        elif pa.types.is_signed_integer(field_type):
            words.append(numbers(rows.column(name)).astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63))
    return words[:count]


def num_words(schema: pa.Schema) -> int:
    """How many words the rows of a schema are sorted by."""
    return sum(2 if kind == KEY_TYPE else 1 for kind in schema.types if kind == KEY_TYPE or pa.types.is_integer(kind))


class ExchangeWriter:
    """Writes one task's rows. The schema begins with `hash` uint64.

    Args:
        run_bytes: rows held before they are sorted and written; `RUN_BYTES` when not given.
    """

    def __init__(self, root: Root, path: str, schema: pa.Schema, run_bytes: int | None = None) -> None:
        self.root, self.path, self.schema = root, path, schema
        self.run_bytes = RUN_BYTES if run_bytes is None else run_bytes
        self._stream: pa.NativeFile | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._index: list[tuple[int, ...]] = []
        self._rows = 0
        self._row_bytes = 0

    def _opened(self) -> pa.NativeFile:
        """The file, which begins with the schema; made when the first run is written, or an empty file is finished."""
        if self._stream is None:
            self._stream = stream = self.root.open_output(self.path)
            stream.write(self.schema.serialize())
        return self._stream

    def add(self, rows: pa.RecordBatch) -> None:
        """Takes rows in any order."""
        if rows.num_rows == 0:
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        self._rows += rows.num_rows
        self._row_bytes += rows.nbytes
        if self._held_bytes >= self.run_bytes:
            self._flush()

    def finish(self, row_bytes: int | None = None) -> ExchangeFile:
        """Writes the rows that are still held, and the index.

        Args:
            row_bytes: what `ExchangeFile.row_bytes` says; bytes of the rows in memory by default.
        """
        self._flush()
        stream = self._opened()
        index_offset = stream.tell()
        index = np.array(self._index, np.uint64).tobytes()
        stream.write(index)
        stream.write(_TAIL.pack(index_offset, len(self._index), xxhash.xxh3_64_intdigest(index), _MAGIC))
        stream.close()
        checksum, size = file_checksum(self.root, self.path)
        first, last, num_runs = self._extent()
        return ExchangeFile(
            path=self.path,
            rows=self._rows,
            bytes=size,
            checksum=checksum,
            row_bytes=self._row_bytes if row_bytes is None else row_bytes,
            first=first,
            last=last,
            runs=num_runs,
        )

    def _extent(self) -> tuple[int, int, int]:
        """First hash, last hash and number of sorted runs. A block that begins behind the block before continues its run, as
        where rows came in order."""
        if not self._index:
            return 0, -1, 0
        width = num_words(self.schema)
        runs = 1 + sum(entry[:width] < before[width : 2 * width] for before, entry in pairwise(self._index))
        return min(entry[0] for entry in self._index), max(entry[width] for entry in self._index), runs

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held, self.schema).combine_chunks()
        self._held.clear()  # the rows are here twice already, and sorting makes a third
        run = sorted_rows(table)
        del table
        rows_per_block = max(1, int(run.num_rows * BLOCK_BYTES / max(1, run.nbytes)))
        words, stream = sort_words(run), self._opened()
        for start in range(0, run.num_rows, rows_per_block):
            progress()
            block = run.slice(start, rows_per_block)
            last = start + block.num_rows - 1
            content = _message(block)
            checksum = xxhash.xxh3_64_intdigest(content)
            ends = [int(word[row]) for row in (start, last) for word in words]
            self._index.append((*ends, block.num_rows, stream.tell(), len(content), checksum))
            stream.write(content)
        self._held_bytes = 0


def _message(block: pa.RecordBatch) -> pa.Buffer:
    """A block as one compressed IPC message. Only Arrow's stream writer compresses; the schema before it is cut off."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_CODEC)
    with pa.ipc.new_stream(sink, block.schema, options=options) as writer:
        writer.write_batch(block.slice(0, 0))
        begins = sink.tell()
        writer.write_batch(block)
        ends = sink.tell()
    return sink.getvalue().slice(begins, ends - begins)


def sorted_rows(table: pa.Table) -> pa.RecordBatch:
    """The rows of a table as one batch, sorted by their words. Rows with equal words come in any order, so their other columns
    must be equal too."""
    table = table.combine_chunks()
    if table.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    order = _order(sort_words(table))
    return table.take(pa.array(order)).combine_chunks().to_batches()[0]


def _order(words: list[np.ndarray]) -> np.ndarray:
    """The order of rows by their words, (num_rows,). Further words count where hashes are equal: few are."""
    order = np.argsort(words[0], kind="stable")
    hashes = words[0][order]
    same = hashes[1:] == hashes[:-1]
    tied = np.zeros(len(order), np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    positions = np.flatnonzero(tied)
    if len(positions):
        rows = order[positions]
        order[positions] = rows[np.lexsort([word[rows] for word in reversed(words)])]
    return order


def read_range(root: Root, files: Sequence[ExchangeFile], start: int, stop: int) -> pa.RecordBatch | None:
    """All rows whose hash is in [start, stop), sorted; None where there are none."""
    return read_rows(root, files, (start,), (stop,))


def read_rows(root: Root, files: Sequence[ExchangeFile], start: Bound, stop: Bound) -> pa.RecordBatch | None:
    """All rows in [start, stop), sorted; None where there are none."""
    parts = [part for output in files for part in read_blocks(root, output, start, stop)]
    return sorted_rows(pa.Table.from_batches(parts)) if parts else None


def read_portion(
    root: Root, files: Sequence[ExchangeFile], start: Bound, stop: Bound, limit_bytes: int, prefix: int | None = None
) -> tuple[pa.RecordBatch | None, Bound]:
    """The first rows of [start, stop), sorted, and the bound where they end: `stop`, or sooner where they pass the limit.

    Whenever the held rows pass the limit, their upper half is dropped, to be read again by a later call. So memory is the limit
    and a block, however many rows there are.

    Args:
        prefix: rows with so many equal words stay together, whatever they take; None: all words.
    """
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for output in files:
        with open_rows(root, output) as stream:
            blocks, schema = read_index(stream, output)
            for block in blocks:
                part = _between(stream, output, block, schema, start, stop)  # a cut lowers `stop` within a file, too
                if part is None:
                    continue
                held.append(part)
                held_bytes += part.nbytes
                if held_bytes > limit_bytes:
                    rows = sorted_rows(pa.Table.from_batches(held))
                    cut = _cut(sort_words(rows)[:prefix])
                    if cut is None:
                        limit_bytes *= 2
                    else:
                        stop, rows = cut, rows.slice(0, position(sort_words(rows, len(cut)), cut))
                    held, held_bytes = [rows], rows.nbytes
    return (sorted_rows(pa.Table.from_batches(held)) if held else None), stop


def _cut(words: list[np.ndarray]) -> Bound | None:
    """The border between different rows at or behind the middle, else the last one before it; None where all rows are equal."""
    changes = np.zeros(len(words[0]) - 1, np.bool_)
    for word in words:
        changes |= word[1:] != word[:-1]
    borders = np.flatnonzero(changes) + 1
    if not len(borders):
        return None
    row = borders[min(np.searchsorted(borders, len(words[0]) // 2), len(borders) - 1)]
    return tuple(int(word[row]) for word in words)


def position(words: list[np.ndarray], bound: Bound) -> int:
    """How many of the sorted rows come before a bound."""
    low, high = 0, len(words[0])
    for word, value in zip(words, bound):
        if value >= 1 << 64:
            return high
        part = word[low:high]
        high = low + int(np.searchsorted(part, np.uint64(value), "right"))
        low += int(np.searchsorted(part, np.uint64(value), "left"))
    return low


def open_rows(root: Root, output: ExchangeFile) -> pa.NativeFile:
    """Opens a file of this run, or of an index. Raises UserError where a file of an index is gone."""
    if not output.is_reference:
        return root.open_input(output.path)
    try:
        return open_mapped(output.url)
    except FileNotFoundError as error:
        raise UserError(
            f"{output.url}: this file of an index is gone. If documents were taken down from the index meanwhile, run the same "
            "command again; otherwise make the index again with `datapipe index`."
        ) from error


def read_blocks(root: Root, output: ExchangeFile, start: Bound, stop: Bound) -> Iterator[pa.RecordBatch]:
    """The rows of one file in [start, stop), block by block; only overlapping blocks are fetched, and no batch is empty."""
    with open_rows(root, output) as stream:
        blocks, schema = read_index(stream, output)
        for block in blocks:
            part = _between(stream, output, block, schema, start, stop)
            if part is not None:
                yield part


def _between(
    stream: pa.NativeFile, output: ExchangeFile, block: Block, schema: pa.Schema, start: Bound, stop: Bound
) -> pa.RecordBatch | None:
    """The rows of a block in [start, stop), or None where it has none; a block that does not overlap is not fetched."""
    if block.last < start or block.first >= stop:
        return None
    rows = read_block(stream, output, block, schema)
    if start <= block.first and block.last < stop:
        return rows
    words = sort_words(rows, max(len(start), len(stop)))
    low, high = position(words, start), position(words, stop)
    # copied: a slice would hold on to its block, and there is one for every run
    return rows.take(pa.array(np.arange(low, high))) if low < high else None


def read_block(stream: pa.NativeFile, output: ExchangeFile, block: Block, schema: pa.Schema) -> pa.RecordBatch:
    """One block of a file."""
    progress()
    stream.seek(block.offset)
    content = stream.read_buffer(block.length)
    if xxhash.xxh3_64_intdigest(content) != block.checksum:
        raise damaged(output, f"the checksum of the block at byte {block.offset} is wrong")
    rows = pa.ipc.read_record_batch(pa.ipc.read_message(content), schema)
    return as_reference(rows) if output.is_reference else rows


def read_index(stream: pa.NativeFile, output: ExchangeFile) -> tuple[list[Block], pa.Schema]:
    """The blocks of a file and its schema."""
    size = stream.size()
    if size != output.bytes or size < _TAIL.size:
        raise damaged(output, f"{size} bytes, but {output.bytes} were committed")
    stream.seek(size - _TAIL.size)
    index_offset, num_blocks, checksum, magic = _TAIL.unpack(stream.read(_TAIL.size))
    if magic != _MAGIC:
        raise damaged(output, f"not an exchange file: it ends in {magic!r}")
    if not 0 <= index_offset <= size - _TAIL.size:
        raise damaged(output, "its last bytes are damaged")
    stream.seek(index_offset)
    content = stream.read(size - _TAIL.size - index_offset)
    if xxhash.xxh3_64_intdigest(content) != checksum:
        raise damaged(output, "the checksum of its index is wrong")
    stream.seek(0)
    schema = pa.ipc.read_schema(pa.ipc.read_message(stream))
    width = num_words(schema)
    entry_words = 2 * width + _BLOCK_FIELDS
    if len(content) != num_blocks * entry_words * 8:
        raise damaged(output, "its last bytes are damaged")
    entries = np.frombuffer(content, np.uint64).reshape(num_blocks, entry_words)
    if output.is_reference:
        entries = _reference_entries(entries, schema, width)
    return [_block(entry, width) for entry in entries.tolist()], schema


def _reference_entries(entries: np.ndarray, schema: pa.Schema, width: int) -> np.ndarray:
    """The index of a file of reference rows, whose ranks are without the bit of new documents: (num_blocks, …) uint64."""
    column_of_rank = schema.get_field_index(RANK)
    if column_of_rank < 0:
        return entries
    entries, word = entries.copy(), num_words(pa.schema(list(schema)[:column_of_rank]))
    for column in (word, width + word):
        entries[:, column] &= ~np.uint64(new_bit(schema.field(column_of_rank).type.to_pandas_dtype()))
    return entries


def _block(entry: list[int], width: int) -> Block:
    rows, offset, length, checksum = entry[2 * width :]
    ends = tuple(entry[:width]), tuple(entry[width : 2 * width])
    return Block(first=ends[0], last=ends[1], rows=rows, offset=offset, length=length, checksum=checksum)


def damaged(output: OutputFile, what: str) -> CorruptionError:
    """The error for a committed file whose bytes are not those that were committed."""
    if isinstance(output, ExchangeFile) and output.is_reference:
        return CorruptionError(f"{output.url}: {what}. It is part of an index: make the index again with `datapipe index`.")
    return CorruptionError(f"{output.path}: {what}. Delete this file and run the same command again: its task runs again.")
