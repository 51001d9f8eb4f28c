"""Moving rows between workers by hash: one file per task, cut into sorted runs, with an index of the blocks at its end.

    writer   rows as they come ─▶ runs of `RUN_BYTES`, each sorted ─▶ blocks ─▶ index ─▶ one file
    reader   files + a range ─▶ the blocks that overlap it ─▶ rows of the range, sorted (`ranges.py`)

    file     blocks, each an Arrow IPC message │ footer │ tail
    footer   the schema, then of each block its first and last row, offset, bytes, checksum
    tail     where the footer is, and its checksum

Rows are sorted by their words: `hash`, then every other column of integers and keys, from left to
right. A bucket is a hash range that the reader chooses, so there are never maps × buckets files.
The writer holds one run, and while it sorts one column twice; the reader holds a block of a file.

Every byte is under a checksum, which is compared before the byte is interpreted: Arrow may end the
process over a damaged schema. Files are not mapped: the pages of a map count as memory of the task,
and a mapped file that is cut short ends the process."""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from datapipe.columns import KEY_TYPE, dtype_of, key_halves, numbers, take_rows
from datapipe.dataclass import dataclass
from datapipe.errors import CorruptionError, UserError
from datapipe.machine.activity import progress
from datapipe.records.checksum import Rereads, rereading
from datapipe.records.outputs import ExchangeFile, OutputFile
from datapipe.stage.tables import RANK, as_reference, new_bit
from datapipe.storage.root import Root, open_input
from datapipe.storage.written import OutputStream

RUN_BYTES = 64 << 20  # rows held by a writer before they are sorted and written
BLOCK_BYTES = 256 << 10
"""About the size of a block, the least that a reader fetches. A task reads about one block too much of every sorted run: with
256 runs in a bucket of 256 MiB a quarter."""

FETCH_BYTES = 4 << 20  # Of neighbouring blocks that are fetched together
_ENDS_BYTES = 64 << 10  # the last bytes of a file, fetched first: of files up to 200 MB they hold the index
_PLACES = struct.Struct("<qqq")  # offset of the footer, bytes of the schema at its start, number of blocks
_TAIL = struct.Struct(f"<{_PLACES.size}sQ8s")  # the places, checksum of the footer and of the places, magic
_MAGIC = b"DPXCHG04"
_BLOCK_FIELDS = 4  # of the index, after the words of a block's first and last row: rows, offset, bytes, checksum
_CODEC = "zstd"
"""At level 1, of the raw rows: passages 46 % (lz4: 70 %), token rows 76 % (94 %), windows 45 % (54 %), signatures 88 % (96 %),
bands 44 % (51 %), written at 150 to 440 MB/s and read at 230 to 1,300 MB/s, 2026-11-30. Each is written and read about once."""

Bound = tuple[int, ...]
"""A bound in the order of rows, by their first words: (5,) comes before every row of hash 5."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a file, from its index: the words of its first and last row, and its bytes in the file."""

    first: Bound
    last: Bound
    rows: int
    offset: int
    length: int
    checksum: int


def sort_words(rows: pa.RecordBatch | pa.Table, count: int | None = None) -> list[np.ndarray]:
    """The words that rows are sorted by: (num_rows,) uint64 each. A key is two words; signed numbers are moved up by 2**63.
    `count`: only the first words; None: all."""
    words: list[np.ndarray] = []
    for number, field_type in enumerate(rows.schema.types):
        if count is not None and len(words) >= count:
            break
        words += _words_of(rows, number, field_type)
    return words[:count]


def sort_word(rows: pa.RecordBatch, number: int) -> np.ndarray:
    """One of the words that rows are sorted by: (num_rows,) uint64."""
    for column, field_type in enumerate(rows.schema.types):
        width = 2 if field_type == KEY_TYPE else int(pa.types.is_integer(field_type))
        if number < width:
            return _words_of(rows, column, field_type)[number]
        number -= width
    raise IndexError(number)


def _words_of(rows: pa.RecordBatch | pa.Table, column: int, kind: pa.DataType) -> Sequence[np.ndarray]:
    if kind == KEY_TYPE:
        return key_halves(rows.column(column))
    if pa.types.is_unsigned_integer(kind):
        return (numbers(rows.column(column)).astype(np.uint64, copy=False),)
    if pa.types.is_signed_integer(kind):
        return (numbers(rows.column(column)).astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63),)
    return ()


def num_words(schema: pa.Schema) -> int:
    """How many words the rows of a schema are sorted by."""
    return sum(2 if kind == KEY_TYPE else 1 for kind in schema.types if kind == KEY_TYPE or pa.types.is_integer(kind))


class ExchangeWriter:
    """Writes one task's rows, of a schema that begins with `hash` uint64, in runs of `run_bytes` (`RUN_BYTES` by default)."""

    def __init__(self, root: Root, path: str, schema: pa.Schema, run_bytes: int | None = None) -> None:
        self.root, self.path, self.schema = root, path, schema
        self.run_bytes = RUN_BYTES if run_bytes is None else run_bytes
        self._stream: OutputStream | None = None
        self._held: list[pa.RecordBatch] = []
        self.held_bytes = 0
        self._index: list[tuple[int, ...]] = []
        self._rows = 0
        self._row_bytes = 0

    def _opened(self) -> OutputStream:
        self._stream = self._stream or self.root.open_output(self.path)
        return self._stream

    def add(self, rows: pa.RecordBatch) -> None:
        """Takes rows in any order."""
        if rows.num_rows == 0:
            return
        self._held.append(rows)
        self.held_bytes += rows.nbytes
        self._rows += rows.num_rows
        self._row_bytes += rows.nbytes
        if self.held_bytes >= self.run_bytes:
            self.flush()

    def finish(self) -> ExchangeFile:
        """Writes the rows that are still held, and the index."""
        self.flush()
        stream = self._opened()
        schema = self.schema.serialize().to_pybytes()
        places = _PLACES.pack(stream.tell(), len(schema), len(self._index))
        footer = schema + np.array(self._index, np.uint64).tobytes()
        stream.write(footer)
        stream.write(_TAIL.pack(places, xxhash.xxh3_64_intdigest(footer + places), _MAGIC))
        stream.close()
        size, checksum, extent = stream.num_bytes, stream.checksum, self._extent() if self._index else {}
        return ExchangeFile(path=self.path, rows=self._rows, bytes=size, checksum=checksum, row_bytes=self._row_bytes, **extent)

    def _extent(self) -> dict[str, Any]:
        """First hash, last hash and number of sorted runs. A block that begins behind the block before continues its run."""
        width = num_words(self.schema)
        runs = 1 + sum(entry[:width] < before[width : 2 * width] for before, entry in pairwise(self._index))
        first, last = min(entry[0] for entry in self._index), max(entry[width] for entry in self._index)
        return {"first": first, "last": last, "runs": runs}

    def flush(self) -> None:
        """Writes the held rows as a sorted run."""
        if not self._held:
            return
        pa.default_memory_pool().release_unused()  # what the rows were made from: an allocator keeps it until later
        run = joined(self._held)
        self.held_bytes = 0
        rows_per_block = max(1, int(run.num_rows * BLOCK_BYTES / max(1, run.nbytes)))
        order = order_of(run)  # of the run, there is never a sorted copy: blocks are taken from it one by one
        for start in range(0, run.num_rows, rows_per_block):
            progress()
            self._write_block(take_rows(run, order[start : start + rows_per_block]))

    def _write_block(self, block: pa.RecordBatch) -> None:
        words, stream, content = sort_words(block), self._opened(), _message(block)
        ends = [int(word[row]) for row in (0, -1) for word in words]
        self._index.append((*ends, block.num_rows, stream.tell(), len(content), xxhash.xxh3_64_intdigest(content)))
        stream.write(content)


class TableWriters:
    """A writer for each table of a task; a table without a row has no file. All hold `run_bytes` together, at most
    `RUN_BYTES`; then the rows of the largest are written. `schemas`: of the tables; None: as the rows have them."""

    def __init__(self, root: Root, folder: str, schemas: Mapping[str, pa.Schema] | None, run_bytes: int | None = None) -> None:
        self.root, self.folder, self.schemas = root, folder, schemas
        self.run_bytes = RUN_BYTES if run_bytes is None else min(RUN_BYTES, run_bytes)
        self._writers: dict[str, ExchangeWriter] = {}

    def add(self, tables: Mapping[str, pa.RecordBatch]) -> int:
        """Takes rows in any order and returns their bytes."""
        for name, rows in tables.items():
            if rows.num_rows and name not in self._writers:
                path = f"{self.folder}/{name}.exchange"
                schema = rows.schema if self.schemas is None else self.schemas[name]
                self._writers[name] = ExchangeWriter(self.root, path, schema, self.run_bytes)
            if rows.num_rows:
                self._writers[name].add(rows)
        if sum(writer.held_bytes for writer in self._writers.values()) >= self.run_bytes:
            max(self._writers.values(), key=lambda writer: writer.held_bytes).flush()
        return sum(rows.nbytes for rows in tables.values())

    def finish(self, prefix: str = "") -> dict[str, tuple[ExchangeFile, ...]]:
        return {f"{prefix}{name}": (writer.finish(),) for name, writer in sorted(self._writers.items())}


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of some batches, at least one, as one batch. Takes them out of the list, and
    releases each column when it is copied, so that no more than a column is there twice."""
    schema, held = batches[0].schema, [rows.columns for rows in batches]
    batches.clear()
    columns = [pa.concat_arrays([own.pop(0) for own in held]) for _ in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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
    """The rows of a table as one batch, sorted by their words. Rows with equal words come in any
    order, so their other columns must be equal too."""
    if table.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    rows = table.combine_chunks().to_batches()[0]
    return take_rows(rows, order_of(rows))


def order_of(rows: pa.RecordBatch) -> np.ndarray:
    """The order of rows by their words, (num_rows,). Further words count where hashes are equal: few are."""
    (hashes,) = sort_words(rows, 1)
    order = np.argsort(hashes, kind="stable")
    same = np.concatenate([[False], hashes[order[1:]] == hashes[order[:-1]], [False]])
    positions = np.flatnonzero(same[1:] | same[:-1])
    if len(positions):
        of_equal = order[positions]
        words = sort_words(take_rows(sorted_columns(rows), of_equal))
        order[positions] = of_equal[np.lexsort(words[::-1])]
    return order


def sorted_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.select([field.name for field in rows.schema if num_words(pa.schema([field]))])


def open_rows(root: Root, output: ExchangeFile) -> pa.NativeFile:
    """Opens a file of this run, or of an index, without a map. Raises UserError where a file of an index is gone."""
    if not output.is_reference:
        return root.open_unmapped(output.path, output.bytes)
    try:
        return open_input(output.url)
    except FileNotFoundError as error:
        raise UserError(
            f"{output.url}: this file of an index is gone. If documents were taken down from the index meanwhile, run the same "
            "command again; otherwise make the index again with `datapipe index`."
        ) from error


def read_neighbours(
    stream: pa.NativeFile, output: ExchangeFile, blocks: Iterable[Block], schema: pa.Schema
) -> Iterator[tuple[Block, pa.RecordBatch]]:
    """The rows of some blocks of a file. Blocks that follow each other in it are fetched together."""
    for group in _neighbours(blocks):
        progress()
        stream.seek(group[0].offset)
        fetched = stream.read_buffer(group[-1].offset + group[-1].length - group[0].offset)
        for block in group:
            try:
                rows = _decoded(fetched[block.offset - group[0].offset :][: block.length], output, block, schema)
            except CorruptionError:
                Rereads.count += 1
                rows = read_block(stream, output, block, schema)
            yield block, rows


def _neighbours(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    group: list[Block] = []
    for block in blocks:
        follows = group and group[-1].offset + group[-1].length == block.offset
        if group and not (follows and block.offset + block.length - group[0].offset <= FETCH_BYTES):
            yield group
            group = []
        group.append(block)
    if group:
        yield group


@rereading
def read_block(stream: pa.NativeFile, output: ExchangeFile, block: Block, schema: pa.Schema) -> pa.RecordBatch:
    progress()
    stream.seek(block.offset)
    return _decoded(stream.read_buffer(block.length), output, block, schema)


def _decoded(content: pa.Buffer, output: ExchangeFile, block: Block, schema: pa.Schema) -> pa.RecordBatch:
    if xxhash.xxh3_64_intdigest(content) != block.checksum:
        raise damaged(output, f"the checksum of the block at byte {block.offset} is wrong")
    rows = pa.ipc.read_record_batch(pa.ipc.read_message(content), schema)
    return as_reference(rows) if output.is_reference else rows


@rereading
def read_index(stream: pa.NativeFile, output: ExchangeFile) -> tuple[list[Block], pa.Schema]:
    begins = max(0, output.bytes - _ENDS_BYTES)
    stream.seek(begins)
    ends = stream.read(_ENDS_BYTES)
    tail, size = ends[-_TAIL.size :], stream.size()  # a store gives its size with its first answer
    if size != output.bytes or len(tail) < _TAIL.size:
        raise damaged(output, f"{size} bytes, but {output.bytes} were committed")
    places, checksum, magic = _TAIL.unpack(tail)
    if magic != _MAGIC:
        raise damaged(output, f"no exchange file, or of another version: it ends in {magic!r}, expected {_MAGIC!r}")
    offset, schema_bytes, num_blocks = _PLACES.unpack(places)
    if not 0 <= offset <= size - _TAIL.size:
        raise damaged(output, "its last bytes are damaged")
    if offset < begins:
        stream.seek(offset)
        ends = stream.read(begins - offset) + ends
    footer = ends[max(0, offset - begins) : -_TAIL.size]
    if xxhash.xxh3_64_intdigest(footer + places) != checksum:
        raise damaged(output, "the checksum of its footer is wrong")
    schema = pa.ipc.read_schema(pa.ipc.read_message(footer[:schema_bytes]))
    width = num_words(schema)
    entries = np.frombuffer(footer[schema_bytes:], np.uint64).reshape(num_blocks, 2 * width + _BLOCK_FIELDS)
    if output.is_reference:
        entries = _reference_entries(entries, schema, width)
    blocks: list[Block] = []
    for entry in entries.tolist():
        rows, offset, length, checksum = entry[2 * width :]
        first, last = tuple(entry[:width]), tuple(entry[width : 2 * width])
        blocks.append(Block(first, last, rows, offset, length, checksum))
    return blocks, schema


def _reference_entries(entries: np.ndarray, schema: pa.Schema, width: int) -> np.ndarray:
    """The index of a file of reference rows, whose ranks are without the bit of new documents: (num_blocks, …) uint64."""
    column_of_rank = schema.get_field_index(RANK)
    if column_of_rank < 0:
        return entries
    entries, word = entries.copy(), num_words(pa.schema(list(schema)[:column_of_rank]))
    for column in (word, width + word):
        entries[:, column] &= ~np.uint64(new_bit(dtype_of(schema.field(column_of_rank).type)))
    return entries


def damaged(output: OutputFile, what: str) -> CorruptionError:
    """The error for a committed file whose bytes are not those that were committed."""
    if isinstance(output, ExchangeFile) and output.is_reference:
        return CorruptionError(f"{output.url}: {what}. It is part of an index: make the index again with `datapipe index`.")
    return CorruptionError(f"{output.path}: {what}. Delete this file and run the same command again: its task runs again.")
