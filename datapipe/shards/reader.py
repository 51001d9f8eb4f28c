"""Reading one shard block by block; `loader/reading.py` puts many of them together.

    local Arrow            the file is mapped; a block is checked once and then is a place in the file
    Parquet, or remote     a block is read, checked as it arrives, and kept for a while

A file is held against the manifest before its first row (`shard_file.open_shard`), and a block against its checksum before its
first row. For a mapped file that reads all of the block, about 4 MiB: 0.4 ms where the file is in memory, once.

A file that is cut short, or written over, while it is mapped cannot be guarded against: the kernel ends a process that reads
past its end (SIGBUS). Replace a shard under a reader by renaming another file to its name; the map keeps the bytes it had.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Set
from pathlib import Path

import numpy as np
import pyarrow as pa

from datapipe.errors import CorruptionError
from datapipe.shards.blocks import EVERY_COLUMN, Block, SequenceRows, block_of_batch, block_of_rows, gather
from datapipe.shards.manifest import ShardEntry
from datapipe.shards.shard_file import Shard, open_shard
from datapipe.storage import Root

CACHE_BYTES = 256 << 20
"""Record batches and row groups that all readers of Parquet or of object stores in this process keep between them."""


class ShardReader:
    """Rows of one shard of a snapshot; opened by its first use. Several threads may use it at once.

    Args:
        entry: its line in the manifest.
        sequence_length, tokenizer_fingerprint: those of the snapshot.
        check: whether blocks are held against their checksums.
        local: a whole copy of the file, read in its place.
    """

    def __init__(
        self,
        root: Root,
        entry: ShardEntry,
        sequence_length: int,
        tokenizer_fingerprint: str,
        *,
        check: bool = True,
        local: Path | None = None,
    ) -> None:
        self.entry = entry
        self.sequence_length = sequence_length
        self._root, self._tokenizer, self._check, self._local = root, tokenizer_fingerprint, check, local
        self._lock = threading.Lock()
        self._source: _Mapped | _Streamed | None = None

    @property
    def num_rows(self) -> int:
        return self.entry.sequences

    @property
    def is_mapped(self) -> bool:
        """Whether blocks are places in a mapped file, which last as long as this reader is open."""
        return isinstance(self._opened(), _Mapped)

    @property
    def rows_per_block(self) -> int:
        return self._opened().rows_per_block

    @property
    def id_dtype(self) -> np.dtype:
        return self._opened().id_dtype

    def open(self) -> None:
        """Opens and checks the file. Raises SnapshotError for one of other data, CorruptionError for a damaged one."""
        self._opened()

    def block(self, number: int) -> Block:
        """Block `number`, checked: of a mapped file checked at each call, so the caller remembers it."""
        return self._opened().block(number)

    def read(self, rows: np.ndarray, wanted: Set[str] = EVERY_COLUMN) -> SequenceRows:
        """Copies `rows` (n,) int64 of the shard, repeats allowed."""
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= self.num_rows):
            raise IndexError(f"{self.entry.path}: rows {rows.min()} to {rows.max()} of {self.num_rows}")
        blocks, within = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        kept = list(self.take(np.ascontiguousarray(rows, np.int64), wanted, blocks, within))
        found = self._gather(blocks, within, wanted)
        del kept  # until here: it holds what `blocks` points to
        return found

    def take(self, rows: np.ndarray, wanted: Set[str], blocks: np.ndarray, within: np.ndarray) -> list[Block]:
        """Copies of `rows`, one block at a time in memory; says where each is in `blocks` and `within`, both (n,) int64.

        Returns what holds them.
        """
        numbers, row_in_block = np.divmod(rows, self.rows_per_block)
        kept: list[Block] = []
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            block = self.block(number)
            copied = block_of_rows(self._gather(np.full(len(here), block.entry.ctypes.data), row_in_block[here], wanted))
            blocks[here], within[here] = copied.entry.ctypes.data, np.arange(len(here))
            kept.append(copied)
        return kept

    def close(self) -> None:
        """Lets go of the file; what was read stays valid, and reading again opens it again."""
        with self._lock:
            source, self._source = self._source, None
        if source is not None:
            source.close()

    def _gather(self, blocks: np.ndarray, rows: np.ndarray, wanted: Set[str]) -> SequenceRows:
        return gather(
            blocks,
            rows,
            sequence_length=self.sequence_length,
            stored=self.id_dtype,
            wanted=wanted,
            name=lambda _: self.entry.path,
        )

    def _opened(self) -> _Mapped | _Streamed:
        source = self._source
        if source is not None:
            return source
        with self._lock:
            if self._source is None:
                shard = open_shard(self._root, self.entry, self.sequence_length, self._tokenizer, self._local)
                kind = _Streamed if shard.mapped is None else _Mapped
                self._source = kind(self._root, self.entry, shard, self._check, self._local)
            return self._source


class _Source:
    """What both ways of reading have in common."""

    def __init__(self, root: Root, entry: ShardEntry, shard: Shard, check: bool, local: Path | None) -> None:
        self._root, self._entry, self._check, self._local = root, entry, check, local
        self._lock = threading.Lock()
        self.rows_per_block = shard.rows_per_batch
        self.id_dtype = np.dtype(shard.id_type.to_pandas_dtype())

    def _read(self, shard: Shard, number: int, within: pa.Buffer | None) -> Block:
        batch = shard.checked_batch(number) if self._check else shard.batch(number)
        block = block_of_batch(batch, within)
        if block is None:
            raise CorruptionError(
                f"{self._entry.path}: {shard.rows_of(number)} are not laid out as a shard's. "
                f"Delete the file and run the mixture again to restore it"
            )
        return block


class _Mapped(_Source):
    """A local Arrow file, mapped until the last reference to this goes."""

    def __init__(self, root: Root, entry: ShardEntry, shard: Shard, check: bool, local: Path | None) -> None:
        super().__init__(root, entry, shard, check, local)
        self._shard = shard
        if shard.num_batches:
            shard.batch(shard.num_batches - 1)  # the one that shows whether there are as many rows as the manifest says
        shard.close()  # the descriptor; the bytes stay mapped

    def block(self, number: int) -> Block:
        with self._lock:
            return self._read(self._shard, number, self._shard.mapped)

    def close(self) -> None:
        """The bytes are unmapped when nobody holds this."""


class _Streamed(_Source):
    """A file read block by block, which `_BlockCache` keeps for a while."""

    def __init__(self, root: Root, entry: ShardEntry, shard: Shard, check: bool, local: Path | None) -> None:
        super().__init__(root, entry, shard, check, local)
        self._idle = [shard]  # one handle for each thread that ever read at the same time as others
        self._closed = False
        self._owner = next(_OWNERS)

    def block(self, number: int) -> Block:
        found = _CACHE.get(self._owner, number)
        return found if found is not None else self._fetch(number)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        _CACHE.forget(self._owner)
        for shard in idle:
            shard.close()

    def _fetch(self, number: int) -> Block:
        """Reads with a handle that no other thread is using."""
        with self._lock:
            shard = self._idle.pop() if self._idle else None
        if shard is None:
            shard = Shard(self._root, self._entry, self._local)
        try:
            block = self._read(shard, number, None)
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


class _BlockCache:
    """The blocks last used, of all files together, up to a number of bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._bytes = 0

    def get(self, owner: int, number: int) -> Block | None:
        with self._lock:
            block = self._blocks.get((owner, number))
            if block is not None:
                self._blocks.move_to_end((owner, number))
            return block

    def put(self, owner: int, number: int, block: Block) -> None:
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

    def begin_afresh(self) -> None:
        """In a forked child: a thread of the parent may have held the lock, in the midst of a change."""
        self._lock, self._blocks, self._bytes = threading.Lock(), OrderedDict(), 0

    def _remove(self, name: tuple[int, int]) -> None:
        block = self._blocks.pop(name, None)
        self._bytes -= block.num_bytes if block is not None else 0


_CACHE = _BlockCache(CACHE_BYTES)
os.register_at_fork(after_in_child=_CACHE.begin_afresh)
_OWNERS = itertools.count()  # never used twice, as an id() is: readers may go without being closed
