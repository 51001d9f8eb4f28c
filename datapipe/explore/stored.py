"""Rows of the tables under work/, read one record batch at a time from anywhere in a file.

    number of the batch ─▶ its bytes and those of the schema ─▶ a stream of one batch ─▶ the wanted columns, decompressed

A table is a stream of compressed record batches (`exchange/partitions.py`), which Arrow reads from its beginning. Here the
bytes of one batch are put behind those of the schema, so a row costs one batch, and only the columns that are asked for. The
checksums of whole files were compared when the look-up file was made; a batch that was damaged since raises CorruptionError.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock

import pyarrow as pa

from datapipe.errors import CorruptionError
from datapipe.explore.lookup.file import LookUp
from datapipe.explore.output import BrowsedOutput, Table

_HELD_BYTES = 64 << 20
"""Of columns that are kept for the next request. Columns of texts are not kept."""

_KEPT_OUT = frozenset({"text", "html"})


def batch_offsets(stream: pa.NativeFile) -> list[int]:
    """The byte offset of each record batch of a table, and the end of the last one."""
    pa.ipc.read_message(stream)  # the schema
    offsets = [stream.tell()]
    while True:
        try:
            message = pa.ipc.read_message(stream)
        except EOFError:
            break
        if message is None or message.type != "record batch":
            break
        offsets.append(stream.tell())
    return offsets


class StoredRows:
    """Record batches of the tables of an output. Safe for several threads."""

    def __init__(self, output: BrowsedOutput, lookup: LookUp) -> None:
        self._output, self._lookup, self._lock = output, lookup, Lock()
        self._held: OrderedDict[tuple[int, int, tuple[str, ...]], pa.RecordBatch] = OrderedDict()
        self._held_bytes = 0

    def table_of(self, row: int) -> Table:
        return self._output.tables[self._lookup.place(row)[0]]

    def row(self, row: int, names: Sequence[str] = ()) -> dict[str, object]:
        """One row; columns that its table does not have are left out.

        Args:
            names: of the columns; empty for all.
        """
        table, batch, number = self._lookup.place(row)
        return self.batch(table, batch, names).slice(number, 1).to_pylist()[0]

    def batch(self, table: int, number: int, names: Sequence[str] = ()) -> pa.RecordBatch:
        """One record batch. Raises CorruptionError where the file is not the committed one any more."""
        wanted = (table, number, tuple(names))
        with self._lock:
            if wanted in self._held:
                self._held.move_to_end(wanted)
                return self._held[wanted]
        batch = self._read(table, number, names)
        if names and _KEPT_OUT.isdisjoint(names):
            self._hold(wanted, batch)
        return batch

    def batches(self, table: int, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Every record batch of a table with the number of its first row, one in memory at a time."""
        starts, _ = self._lookup.batches(table)
        if self._output.root.local is None or not names:
            yield from ((start, self._read(table, number, names)) for number, start in enumerate(starts.tolist()))
            return
        file = self._output.tables[table].file
        try:  # mapped: the columns that nobody asks for are not even read
            with self._output.root.open_input(file.path) as stream, _opened(stream, names) as reader:
                yield from zip(starts.tolist(), reader)
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise CorruptionError(f"{file.path} cannot be read: {error}. Start `datapipe browse` again.") from error

    def _hold(self, wanted: tuple[int, int, tuple[str, ...]], batch: pa.RecordBatch) -> None:
        with self._lock:
            if wanted in self._held:
                return
            self._held[wanted] = batch
            self._held_bytes += batch.nbytes
            while self._held_bytes > _HELD_BYTES and len(self._held) > 1:
                self._held_bytes -= self._held.popitem(last=False)[1].nbytes

    def _read(self, table: int, number: int, names: Sequence[str]) -> pa.RecordBatch:
        file, (starts, offsets) = self._output.tables[table].file, self._lookup.batches(table)
        begin = int(offsets[number])
        stop = int(offsets[number + 1]) if number + 1 < len(starts) else file.bytes
        try:
            with self._output.root.filesystem.open_input_file(self._output.root.path(file.path)) as stream:
                content = stream.read_at(int(offsets[0]), 0) + stream.read_at(stop - begin, begin)
            return _parsed(content, names)
        except FileNotFoundError as error:
            raise CorruptionError(
                f"{file.path}: the file is gone since this page was started. Start `datapipe browse` again."
            ) from error
        except (pa.ArrowInvalid, StopIteration, OSError) as error:
            raise CorruptionError(
                f"{file.path}: record batch {number} cannot be read: {error}. Start `datapipe browse` again."
            ) from error


def _parsed(content: bytes, names: Sequence[str]) -> pa.RecordBatch:
    with _opened(pa.BufferReader(content), names) as reader:
        return reader.read_next_batch()


def _opened(stream: pa.NativeFile, names: Sequence[str]) -> pa.ipc.RecordBatchStreamReader:
    """A reader of the columns `names`, or of the key where the table has none of them; of all columns for no names."""
    options = pa.ipc.IpcReadOptions(use_threads=False)
    if names:
        known = pa.ipc.read_schema(stream).names
        stream.seek(0)
        options.included_fields = [number for number, name in enumerate(known) if name in names] or [known.index("key")]
    return pa.ipc.open_stream(stream, options=options)
