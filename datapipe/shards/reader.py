"""Reads one shard block by block; `loader/reading.py` reads from many shards.

    local Arrow            the file is mapped; a block is checked once and then is a region of the map
    Parquet, or remote     a block is read, checked as it arrives, and cached

A file is compared with the manifest before its first row is read (`shard_file.open_shard`), and a block with its checksum
before its first row is read. The check of a mapped block reads all of it, about 4 MiB, once.

A file that is cut short while it is mapped is an error. Bytes that are overwritten after their block was checked are not
detected. To replace a shard in use, rename another file to its name; the map keeps the old bytes.
"""

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Set
from pathlib import Path

import numpy as np

from datapipe.columns import dtype_of
from datapipe.errors import CorruptionError
from datapipe.records.checksum import intact
from datapipe.shards.blocks import EVERY_COLUMN, Block, SequenceRows, block_of_batch, block_of_rows, gather, stored_columns
from datapipe.shards.schemas import UNLEARNED
from datapipe.shards.shard_file import Shard, open_shard
from datapipe.shards.shard_table import RowForm, ShardEntry
from datapipe.storage.root import Root

CACHE_BYTES = 256 << 20  # of all blocks that the readers of this process cache together


class ShardReader:
    """Rows of one shard of a snapshot. Several threads may use a reader at once.

    The first use opens the file: it raises SnapshotError for a file of other data, CorruptionError for a damaged one.
    `local`: a complete copy of the file to read instead."""

    def __init__(self, root: Root, entry: ShardEntry, form: RowForm, *, local: Path | None = None) -> None:
        self.entry = entry
        self._root, self._form, self._local = root, form, local
        self._lock, self.checking = threading.Lock(), threading.RLock()  # held while a block of a mapped file is checked
        self._shard: Shard | None = None
        self._turns: dict[tuple[int, int], threading.Lock] = {}  # by block: held by the thread that fetches it
        self._idle: list[Shard] = []  # handles that no thread uses; there are as many as threads that read at the same time
        self._owner = next(_OWNERS)

    @property
    def num_rows(self) -> int:
        return self.entry.sequences

    @property
    def is_mapped(self) -> bool:
        """Whether blocks are regions of a mapped file, which are valid while this reader is open."""
        return self._opened().mapped is not None

    @property
    def has_mask(self) -> bool:
        """Whether rows have `schemas.UNLEARNED`."""
        return UNLEARNED in self._opened().schema.names

    @property
    def rows_per_block(self) -> int:
        return self._opened().rows_per_batch

    def block(self, number: int) -> Block:
        """Block `number`, checked. A block of a mapped file is checked at each call, so callers keep it."""
        shard = self._opened()
        if shard.mapped is not None:
            with self.checking:
                return _checked_block(shard, number)
        with self._turn(number):
            cached = _CACHE.get(self._owner, number)
            return cached if cached is not None else intact(lambda: self._fetch(number))  # by a handle with another footer

    def read(self, rows: np.ndarray, wanted: Set[str] = EVERY_COLUMN) -> SequenceRows:
        """Copies `rows` (n,) int64 of the shard, repeats allowed."""
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= self.num_rows):
            raise IndexError(f"{self.entry.path}: rows {rows.min()} to {rows.max()} of {self.num_rows}")
        blocks, within = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        kept = list(self.take(np.ascontiguousarray(rows, np.int64), wanted, blocks, within))
        sequences = self._gather(blocks, within, wanted)
        del kept  # the memory that `blocks` points to must live until here
        return sequences

    def take(self, rows: np.ndarray, wanted: Set[str], blocks: np.ndarray, within: np.ndarray) -> list[Block]:
        """Copies `rows`, a block at a time, what another thread fetches last. Returns the copied blocks, which own the memory.
        Of each row, `blocks` (n,) int64 gets the address of its block's entry, `within` (n,) int64 its row there."""
        numbers, row_in_block = np.divmod(rows, self.rows_per_block)
        kept: list[Block] = []
        for number in sorted(np.unique(numbers).tolist(), key=lambda each: self._turn(each).locked()):
            requests = np.flatnonzero(numbers == number)
            block = self.block(number)
            addresses = np.full(len(requests), block.entry.ctypes.data)
            copied = block_of_rows(self._gather(addresses, row_in_block[requests], wanted))
            blocks[requests], within[requests] = copied.entry.ctypes.data, np.arange(len(requests))
            kept.append(copied)
        return kept

    def close(self) -> None:
        """Closes the file. Rows that were read stay valid, and the next read opens the file again."""
        with self._lock:
            self._shard, idle, self._idle = None, self._idle, []
        _CACHE.forget(self._owner)
        for shard in idle:
            shard.close()

    def _gather(self, blocks: np.ndarray, rows: np.ndarray, wanted: Set[str]) -> SequenceRows:
        return gather(
            blocks,
            rows,
            sequence_length=self._form.sequence_length,
            stored=dtype_of(self._opened().id_type),
            wanted=stored_columns(wanted),
            name=lambda _: self.entry.path,
        )

    def _opened(self) -> Shard:
        shard = self._shard
        if shard is not None:
            return shard
        with self._lock:
            if self._shard is None:
                shard = open_shard(self._root, self.entry, self._form, self._local)
                if shard.mapped is None:
                    self._idle = [shard]
                else:
                    if shard.num_batches:
                        shard.batch(shard.num_batches - 1)  # it shows whether the number of rows is that of the manifest
                    shard.close()  # closes the descriptor; the bytes stay mapped
                self._shard = shard
            return self._shard

    def _turn(self, number: int) -> threading.Lock:
        """The lock of a block in this process: after a fork no thread would release one that was held."""
        return self._turns.setdefault((os.getpid(), number), threading.Lock())

    def _fetch(self, number: int) -> Block:
        """Reads with a handle that no other thread is using."""
        with self._lock:
            shard = self._idle.pop() if self._idle else None
        if shard is None:
            shard = Shard.open(self._root, self.entry, self._form, self._local)
        try:
            block = _checked_block(shard, number)
        except BaseException:
            shard.close()
            raise
        with self._lock:
            if self._shard is not None:
                self._idle.append(shard)
                _CACHE.put(self._owner, number, block)
                return block
        shard.close()
        return block


def _checked_block(shard: Shard, number: int) -> Block:
    block = block_of_batch(shard.checked_batch(number), shard.mapped)
    if block is None:
        raise CorruptionError(
            f"{shard.entry.path}: {shard.rows_of(number)} do not have the layout of a shard. "
            f"Delete the file and run the mixture again to restore it"
        )
    return block


class _BlockCache:
    """The least-recently-used cache of blocks of all files, limited in bytes."""

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
        """Resets the cache in a forked child: a thread of the parent may hold the lock, in the middle of a change."""
        self._lock, self._blocks, self._bytes = threading.Lock(), OrderedDict(), 0

    def _remove(self, name: tuple[int, int]) -> None:
        block = self._blocks.pop(name, None)
        self._bytes -= block.num_bytes if block is not None else 0


_CACHE = _BlockCache(CACHE_BYTES)
os.register_at_fork(after_in_child=_CACHE.begin_afresh)
_OWNERS = itertools.count()  # unlike an id(), never used twice: a reader may be freed without being closed
