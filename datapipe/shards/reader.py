"""Reading shards: any rows, in any order, from any number of threads.

    local Arrow            the file is mapped; a row is one memcpy from a known place, a call is one kernel
    Parquet, or remote     record batches or row groups are read and the last ones kept; rows are gathered from those

A file is held against the manifest before its first row (`shard_file.open_shard`). A block that is read is held against its
checksum as it arrives. A mapped file is not, since that would read all of it: its checksums are `verify`'s business, and what
a damaged one could still do here, point outside its own record batch, is refused.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.errors import CorruptionError
from datapipe.kernels import pack as kernels
from datapipe.shards.manifest import ShardEntry
from datapipe.shards.shard_file import Shard, open_shard
from datapipe.storage import Root

CACHE_BYTES = 256 << 20
"""Record batches and row groups that all readers of Parquet or of object stores in this process keep between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRows:
    """Rows in the order they were asked for.

    Attributes:
        tokens: (n, S) uint16 or uint32, padded with the end-of-text id.
        piece_lengths: (num_pieces,) int32, tokens of each piece of a document.
        piece_offsets: (n + 1,) int64; row i holds the pieces `piece_offsets[i]` to `piece_offsets[i + 1]`.
        keys: (num_pieces, 16) uint8, the document of each piece.
        starts: (num_pieces,) int64, where the piece starts in its document.
    """

    tokens: np.ndarray
    piece_lengths: np.ndarray
    piece_offsets: np.ndarray
    keys: np.ndarray
    starts: np.ndarray


class ShardReader:
    """Rows of one shard of a snapshot; opened by its first use.

    Args:
        entry: its line in the manifest.
        sequence_length, tokenizer_fingerprint: those of the snapshot.
    """

    def __init__(self, root: Root, entry: ShardEntry, sequence_length: int, tokenizer_fingerprint: str) -> None:
        self._root, self._entry = root, entry
        self._sequence_length, self._tokenizer = sequence_length, tokenizer_fingerprint
        self._lock = threading.Lock()
        self._source: _Mapped | _Batches | None = None

    @property
    def num_rows(self) -> int:
        return self._entry.sequences

    def open(self) -> None:
        """Opens and checks the file. Raises SnapshotError for one of other data, CorruptionError for a damaged one."""
        self._opened()

    def read(self, rows: np.ndarray) -> SequenceRows:
        """Copies `rows` (n,) int64 of the shard, repeats allowed."""
        return self._opened().read(self._checked(rows))

    def read_tokens(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Copies the tokens of `rows` (n,) int64 into `out` (n, S) int64, without their pieces."""
        self._opened().read_tokens(self._checked(rows), out)

    def close(self) -> None:
        """Lets go of the file; what was read stays valid, and reading again opens it again."""
        with self._lock:
            source, self._source = self._source, None
        if source is not None:
            source.close()

    def _opened(self) -> _Mapped | _Batches:
        with self._lock:
            if self._source is None:
                shard = open_shard(self._root, self._entry, self._sequence_length, self._tokenizer)
                kind = _Batches if shard.mapped is None else _Mapped
                self._source = kind(self._root, self._entry, shard)
            return self._source

    def _checked(self, rows: np.ndarray) -> np.ndarray:
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= self.num_rows):
            raise IndexError(f"{self._entry.path}: rows {rows.min()} to {rows.max()} of {self.num_rows}")
        return np.ascontiguousarray(rows, np.int64)


class _Mapped:
    """A local Arrow file as one block: each column of each record batch is a place in the same bytes."""

    def __init__(self, root: Root, entry: ShardEntry, shard: Shard) -> None:
        assert shard.mapped is not None
        id_dtype = np.dtype(shard.id_type.to_pandas_dtype())
        views = [_views(shard.batch(number)) for number in range(shard.num_batches)]
        base = shard.mapped.address
        # places: (num_batches, 5) bytes from the start of the file; Arrow files align each to 8
        places = np.array([[view.ctypes.data - base for view in one] for one in views], np.int64)
        file = np.frombuffer(shard.mapped, np.uint8, shard.mapped.size // 8 * 8)
        self._block = _Block(
            path=entry.path,
            rows_per_batch=shard.rows_per_batch,
            sequence_length=shard.schema.field("tokens").type.list_size,
            num_pieces=np.array([len(lengths) for _, _, lengths, _, _ in views], np.int64),
            columns=tuple(file.view(dtype) for dtype in (id_dtype, np.int32, np.int32, np.uint64, np.int64)),
            places=tuple(places[:, at] // size for at, size in enumerate((id_dtype.itemsize, 4, 4, 8, 8))),
        )
        shard.close()

    def read(self, rows: np.ndarray) -> SequenceRows:
        return self._block.read(rows)

    def read_tokens(self, rows: np.ndarray, out: np.ndarray) -> None:
        self._block.copy_tokens(rows, out)

    def close(self) -> None:
        """The bytes are unmapped when nobody holds this block."""


class _Batches:
    """A file read by record batches, which `_BatchCache` keeps for a while."""

    def __init__(self, root: Root, entry: ShardEntry, shard: Shard) -> None:
        self._root, self._entry = root, entry
        self._rows_per_batch = shard.rows_per_batch
        self._lock = threading.Lock()
        self._idle = [shard]  # one handle for each thread that ever read at the same time as others
        self._closed = False
        self._owner = next(_OWNERS)

    def read(self, rows: np.ndarray) -> SequenceRows:
        """Gathers batch by batch, then puts the rows into the order asked for."""
        order = np.argsort(rows, kind="stable")
        numbers, first = np.unique(rows[order] // self._rows_per_batch, return_index=True)
        groups = np.split(rows[order] % self._rows_per_batch, first[1:])
        parts = [self._batch(int(number)).read(group) for number, group in zip(numbers, groups)]
        if not parts:
            return self._batch(0).read(rows)
        place = np.empty(len(rows), np.int64)
        place[order] = np.arange(len(rows))
        return _joined(self._entry.path, parts).read(place)

    def read_tokens(self, rows: np.ndarray, out: np.ndarray) -> None:
        out[:] = self.read(rows).tokens

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        _CACHE.forget(self._owner)
        for shard in idle:
            shard.close()

    def _batch(self, number: int) -> _Block:
        found = _CACHE.get(self._owner, number)
        return found if found is not None else self._read_batch(number)

    def _read_batch(self, number: int) -> _Block:
        """Reads with a handle that no other thread is using."""
        with self._lock:
            shard = self._idle.pop() if self._idle else None
        if shard is None:
            shard = Shard(self._root, self._entry)
        try:
            block = _block_of(
                self._entry.path, _views(shard.checked_batch(number)), shard.schema.field("tokens").type.list_size
            )
        except BaseException:
            shard.close()
            raise
        with self._lock:
            if not self._closed:
                self._idle.append(shard)
                _CACHE.put(self._owner, number, block)
                return block
        shard.close()
        return block


class _BatchCache:
    """The blocks last used, of all files together, up to a number of bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[int, int], _Block] = OrderedDict()
        self._bytes = 0

    def get(self, owner: int, number: int) -> _Block | None:
        with self._lock:
            block = self._blocks.get((owner, number))
            if block is not None:
                self._blocks.move_to_end((owner, number))
            return block

    def put(self, owner: int, number: int, block: _Block) -> None:
        with self._lock:
            self._remove((owner, number))
            self._blocks[owner, number] = block
            self._bytes += block.num_bytes
            while self._bytes > self._limit_bytes and len(self._blocks) > 1:
                self._remove(next(iter(self._blocks)))

    def forget(self, owner: int) -> None:
        with self._lock:
            for name in [name for name in self._blocks if name[0] == owner]:
                self._remove(name)

    def _remove(self, name: tuple[int, int]) -> None:
        block = self._blocks.pop(name, None)
        self._bytes -= block.num_bytes if block is not None else 0


_CACHE = _BatchCache(CACHE_BYTES)
_OWNERS = itertools.count()  # never used twice, as an id() is: readers may go without being closed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Record batches as flat columns, and where in each of those a batch begins.

    Attributes:
        num_pieces: (num_batches,) int64.
        columns: tokens, offsets (int32), lengths (int32), keys (two uint64 each), starts (int64): flat.
        places: for each column (num_batches,) int64, the index of the batch's first item.
    """

    path: str
    rows_per_batch: int
    sequence_length: int
    num_pieces: np.ndarray
    columns: tuple[np.ndarray, ...]
    places: tuple[np.ndarray, ...]

    @property
    def num_bytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    def read(self, rows: np.ndarray) -> SequenceRows:
        _, offsets, lengths, keys, starts = self.columns
        _, offset_at, length_at, key_at, start_at = self.places
        tokens = np.empty((len(rows), self.sequence_length), self.columns[0].dtype)
        self.copy_tokens(rows, tokens)
        batch, row = np.divmod(rows, self.rows_per_batch)
        at = offset_at[batch] + row
        first, last = offsets[at].astype(np.int64), offsets[at + 1].astype(np.int64)
        if np.any((first < 0) | (first > last) | (last > self.num_pieces[batch])):
            raise CorruptionError(f"{self.path}: a row points outside its record batch. `datapipe verify` checks all shards")
        counts = last - first
        piece_offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        piece = np.repeat(first - piece_offsets[:-1], counts) + np.arange(piece_offsets[-1])  # (num_pieces,) in its batch
        batch = np.repeat(batch, counts)
        halves = keys[(key_at[batch] + 2 * piece)[:, None] + np.arange(2)]  # (num_pieces, 2) uint64
        return SequenceRows(
            tokens=tokens,
            piece_lengths=lengths[length_at[batch] + piece],
            piece_offsets=piece_offsets,
            keys=halves.view(np.uint8),
            starts=starts[start_at[batch] + piece],
        )

    def copy_tokens(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Rows into `out` (n, S), of the ids' own width or int64."""
        batch, row = np.divmod(rows, self.rows_per_batch)
        tokens = self.columns[0]
        if tokens.dtype == np.uint16:
            copy = kernels.copy_rows_16 if out.dtype == np.uint16 else kernels.widen_rows_16
        else:
            copy = kernels.copy_rows_32 if out.dtype == np.uint32 else kernels.widen_rows_32
        copy(tokens, self.places[0][batch] + row * self.sequence_length, out)


def _views(batch: pa.RecordBatch) -> tuple[np.ndarray, ...]:
    """Tokens, offsets, lengths, keys (two uint64 each) and starts of a record batch: flat, and without a copy."""
    tokens, lengths, keys, starts = (batch.column(name) for name in ("tokens", "lengths", "keys", "starts"))
    key_halves = columns.key_matrix(keys.values).view(np.uint64).reshape(-1)
    return (
        columns.numbers(tokens.values),
        columns.numbers(lengths.offsets),
        columns.numbers(lengths.values),
        key_halves,
        columns.numbers(starts.values),
    )


def _block_of(path: str, views: tuple[np.ndarray, ...], sequence_length: int) -> _Block:
    """One batch as a block, however many rows it has."""
    return _Block(
        path=path,
        rows_per_batch=1 << 62,
        sequence_length=sequence_length,
        num_pieces=np.array([len(views[2])], np.int64),
        columns=views,
        places=(np.zeros(1, np.int64),) * 5,
    )


def _joined(path: str, parts: list[SequenceRows]) -> _Block:
    """Rows read from several batches, as one batch."""
    counts = np.concatenate([np.diff(part.piece_offsets) for part in parts])
    tokens = np.concatenate([part.tokens for part in parts])
    views = (
        tokens.reshape(-1),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        np.concatenate([part.piece_lengths for part in parts]),
        np.concatenate([part.keys for part in parts]).view(np.uint64).reshape(-1),
        np.concatenate([part.starts for part in parts]),
    )
    return _block_of(path, views, tokens.shape[1])
