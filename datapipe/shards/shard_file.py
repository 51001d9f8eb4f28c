"""One shard file, Arrow or Parquet: its metadata, and opening it with its metadata compared with the manifest.

Every record batch (Arrow) or row group (Parquet) but the last holds `rows_per_batch` rows, so row
-> (batch, row in it) is arithmetic in both formats. Each carries the checksum of its rows: in Arrow
as metadata of the record batch, in Parquet in the footer. So a block from an object store is
checked without the rest of the file, and in a damaged file the damaged rows are known.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.errors import CorruptionError, CutShortError, SnapshotError
from datapipe.records.checksum import intact, rows_checksum
from datapipe.shards import schemas
from datapipe.shards.blocks import CUT
from datapipe.shards.shard_table import RowForm, ShardEntry, ShardGroup
from datapipe.storage.root import Root

_RESTORE = "Delete the file and run the mixture again to restore it"

FORMAT_VERSION = "2"
VERSION_KEY, TOKENIZER_KEY, LENGTH_KEY = b"datapipe.version", b"datapipe.tokenizer", b"datapipe.sequence_length"
SOURCE_KEY, ROWS_KEY = b"datapipe.source", b"datapipe.rows_per_batch"
CHECKSUM_KEY = b"datapipe.checksum"
"""In a record batch: its checksum. In a Parquet file: the checksums of its row groups, separated by spaces."""


def identity(sequence_length: int, tokenizer_fingerprint: str, group: ShardGroup) -> dict[bytes, bytes]:
    """The metadata that a shard must have."""
    return {
        VERSION_KEY: FORMAT_VERSION.encode(),
        TOKENIZER_KEY: tokenizer_fingerprint.encode(),
        LENGTH_KEY: str(sequence_length).encode(),
        **group.metadata(),
    }


def open_shard(root: Root, entry: ShardEntry, form: RowForm, local: Path | None = None) -> Shard:
    """Opens a shard and checks everything but its rows. Raises SnapshotError for other data, CorruptionError for damage.
    `form`: of the snapshot. `local`: a complete copy of the file to open instead."""
    size = root.size(entry.path) if local is None else local.stat().st_size
    if size != entry.bytes:
        present = "no such file" if size is None else f"{size} bytes"
        cleaned = "; if `datapipe clean` deleted its snapshot, open another one" if size is None else ""
        raise CorruptionError(
            f"{entry.path}: {present}, expected {entry.bytes} bytes. Run the mixture again to restore it{cleaned}"
        )
    return intact(lambda: Shard.open(root, entry, form, local))


class Shard:
    """An open file as record batches of constant size. Only one thread may use it at a time.

    Attributes: mapped: the bytes of a local Arrow file, of which batches are views; else None.
        num_batches: record batches or row groups. num_rows: of a Parquet file, from its footer;
        None of an Arrow file, whose footer does not have it.
    """

    def __init__(self, entry: ShardEntry, form: RowForm, stream: pa.NativeFile, *, is_local: bool) -> None:
        self.entry, self._form, self._stream, self._is_local = entry, form, stream, is_local
        self.mapped: pa.Buffer | None = None
        self._mapping: Mapping | None = None
        self.schema, self.num_batches = pa.schema([]), 0
        self.num_rows: int | None = None
        self._get: Callable[[int], tuple[Any, bytes]]

    @classmethod
    def open(cls, root: Root, entry: ShardEntry, form: RowForm, local: Path | None = None) -> Shard:
        """Opens a file and checks its footer. Raises SnapshotError for one of other data, CorruptionError for a damaged
        one. `local`: a complete copy of the file to open instead."""
        stream = root.open_input(entry.path) if local is None else pa.memory_map(str(local))
        shard = cls(entry, form, stream, is_local=root.local is not None or local is not None)
        try:
            with shard._damage_named():
                shard._read_footer()
            shard._check_footer()
        except BaseException:
            shard.close()
            raise
        return shard

    def _read_footer(self) -> None:
        whole = self._stream.read_buffer() if self._is_local else None
        self._mapping = None if whole is None else Mapping(whole)
        if self.entry.path.endswith(".parquet"):
            file: Any = pq.ParquetFile(self._stream if whole is None else pa.BufferReader(whole))
            self.schema, self.num_batches, self.num_rows = file.schema_arrow, file.num_row_groups, file.metadata.num_rows
            checksums = (file.metadata.metadata or {}).get(CHECKSUM_KEY, b"").split()
            self._get = lambda number: _row_group(file, number, checksums)
        else:
            self.mapped = whole
            file = pa.ipc.open_file(self._stream if self.mapped is None else pa.BufferReader(self.mapped))
            self.schema, self.num_batches = file.schema, file.num_record_batches
            self._get = lambda number: _record_batch(file, number)

    @cached_property
    def rows_per_batch(self) -> int:
        return int(self.schema.metadata[ROWS_KEY])

    @cached_property
    def id_type(self) -> pa.DataType:
        return self.schema.field("tokens").type.value_type

    def _check_footer(self) -> None:
        metadata, path, form = self.schema.metadata or {}, self.entry.path, self._form
        expected = identity(form.sequence_length, form.tokenizer, self.entry.group)
        for name, value in expected.items():
            if metadata.get(name) != value:
                actual = metadata.get(name, b"nothing").decode(errors="replace")
                raise SnapshotError(
                    f"{path}: {name.decode()} is {actual}, expected {value.decode()} as in the snapshot. {_RESTORE}"
                )
        known = [
            schemas.sequences(id_type, form.sequence_length, has_mask=has_mask)
            for id_type in (pa.uint16(), pa.uint32())
            for has_mask in (False, True)
        ]
        rows = metadata.get(ROWS_KEY, b"")
        is_number = rows.isdigit() and 1 <= int(rows[:20]) < 1 << 31
        if not any(self.schema.equals(schema) for schema in known) or not is_number:
            raise CorruptionError(f"{path}: its columns are not those of a shard. Run the mixture again to restore it")
        expected_type = None if form.vocab_size is None else schemas.token_type(form.vocab_size)
        if expected_type not in (None, self.id_type):
            raise CorruptionError(
                f"{path}: token ids of type {self.id_type}, expected {expected_type} from the vocabulary size in the snapshot. "
                f"{_RESTORE}"
            )
        num_batches = -(-self.entry.sequences // self.rows_per_batch)
        counts = {"record batches": (self.num_batches, num_batches), "rows": (self.num_rows, self.entry.sequences)}
        for what, (count, wanted) in counts.items():
            if count not in (None, wanted):
                raise CorruptionError(f"{path}: {count} {what}, expected {wanted}. Run the mixture again to restore it")

    def batch(self, number: int) -> pa.RecordBatch:
        """Record batch or row group `number`, with buffers of sufficient length; its checksum is not compared."""
        return self._laid_out(number)[0]

    def checked_batch(self, number: int) -> pa.RecordBatch:
        """Record batch or row group `number`, compared with its checksum. Raises CorruptionError, naming the rows."""
        return intact(lambda: self._checked_batch(number))

    def _checked_batch(self, number: int) -> pa.RecordBatch:
        batch, checksum = self._laid_out(number)
        largest_ids: list[np.integer] = []
        if rows_checksum(batch, lambda ids: largest_ids.append(np.maximum.reduce(ids))).encode() != checksum:
            raise CorruptionError(f"{self.entry.path}: {self.rows_of(number)} are damaged. {_RESTORE}")
        largest, vocab_size = max(largest_ids, default=-1), self._form.vocab_size
        if vocab_size is not None and largest >= vocab_size:
            raise CorruptionError(
                f"{self.entry.path}: {self.rows_of(number)} hold token id {largest}, expected ids below {vocab_size}"
            )
        return batch

    def rows_of(self, number: int) -> str:
        """A block in words: "record batch 3, rows 300 to 399,"."""
        start = number * self.rows_per_batch
        stop = min(start + self.rows_per_batch, self.entry.sequences)
        kind = "row group" if self.entry.path.endswith(".parquet") else "record batch"
        return f"{kind} {number}, rows {start} to {stop - 1},"

    def _laid_out(self, number: int) -> tuple[pa.RecordBatch, bytes]:
        self._check_whole()  # Arrow reads the footer again, and would take zeros for one
        with self._damage_named(f"{self.rows_of(number)} "):
            batch, checksum = self._get(number)
            batch.validate()
        self._check_whole()
        expected = min(self.rows_per_batch, self.entry.sequences - number * self.rows_per_batch)
        pieces = {len(lists.values) for lists in batch.columns[1:4]}  # lengths, keys, starts
        if batch.num_rows != expected or len(pieces) != 1:
            raise CorruptionError(f"{self.entry.path}: {self.rows_of(number)} do not have the layout in the footer. {_RESTORE}")
        return batch, checksum

    def _check_whole(self) -> None:
        if self._mapping is not None and self._mapping.is_cut:
            raise CutShortError(f"{self.entry.path}: {CUT}")

    def close(self) -> None:
        """Closes the file. Batches and `mapped` stay valid."""
        self._stream.close()

    @contextmanager
    def _damage_named(self, rows: str = "") -> Iterator[None]:
        """Turns Arrow's errors about damaged content into a CorruptionError that names the file and `rows`."""
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            self._check_whole()
            if isinstance(error, OSError) and (not self._is_local or error.errno is not None):
                raise  # an error of the disk or the network, not of the content
            raise CorruptionError(f"{self.entry.path}: {rows}cannot be read: {error}. {_RESTORE}") from error


def _row_group(file: Any, number: int, checksums: list[bytes]) -> tuple[pa.RecordBatch, bytes]:
    batch = pa.concat_batches(file.read_row_group(number, use_threads=False).to_batches())
    return batch, checksums[number] if number < len(checksums) else b""


def _record_batch(file: Any, number: int) -> tuple[pa.RecordBatch, bytes]:
    batch, metadata = file.get_batch_with_custom_metadata(number)
    return batch, (metadata or {}).get(CHECKSUM_KEY, b"")


_PAGE = mmap.PAGESIZE
_MAP_FIXED, _SA_SIGINFO, _ADDRESS_OFFSET = 0x10, 4, 16
"""Of Linux; and where `si_addr` is in a siginfo_t of 64 bits."""


class Mapping:
    """A mapped file that does not end with a zero, safe to read for as long as this object lives."""

    def __init__(self, whole: pa.Buffer) -> None:
        self.whole = whole
        self.start, self.stop = whole.address, whole.address + whole.size
        _MAPPINGS[id(self)] = self
        if _IS_SUPPORTED:
            _install()

    @property
    def is_cut(self) -> bool:
        """Whether the file was cut short: what was read before this may be zeros."""
        return self.whole.size > 0 and self.whole[self.whole.size - 1] == 0


_MAPPINGS: weakref.WeakValueDictionary[int, Mapping] = weakref.WeakValueDictionary()
_IS_SUPPORTED = sys.platform == "linux" and sys.maxsize > 1 << 32


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux on 64-bit processors, in glibc and musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_LIBC = ctypes.CDLL(None)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


def _on_bus_error(number: int, info: int, context: int) -> None:
    """Maps zeros from the page that is read to the end of its file."""
    address = ctypes.c_void_p.from_address(info + _ADDRESS_OFFSET).value or 0
    for mapping in list(_MAPPINGS.values()):
        if mapping.start <= address < mapping.stop:
            start, flags = address - address % _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            _LIBC.mmap(start, mapping.stop - start, mmap.PROT_READ, flags, -1, 0)
            return
    _LIBC.sigaction(signal.SIGBUS, ctypes.byref(_BEFORE), None)


_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_on_bus_error)
_ADDRESS = ctypes.cast(_HANDLER, ctypes.c_void_p).value
_BEFORE = _Action()


def _install() -> None:
    """Makes `_HANDLER` that of the process, unless it is: another one may have taken its place since the last mapping."""
    current = _Action()
    _LIBC.sigaction(signal.SIGBUS, None, ctypes.byref(current))
    if current.handler != _ADDRESS:
        ctypes.memmove(ctypes.byref(_BEFORE), ctypes.byref(current), ctypes.sizeof(_Action))
        action = _Action(handler=_ADDRESS, flags=_SA_SIGINFO)
        _LIBC.sigaction(signal.SIGBUS, ctypes.byref(action), None)
