"""Addresses to rows: found in the blocks of open shards by one kernel, and copied out of them by another.

    addresses ── find_rows ──▶ blocks that are there ───────────────────────────────┬── gather ──▶ SequenceRows in that order
                        └────▶ others: shard opened, block checked, or read and copied ─┘

A mapped shard has a table of its blocks, which a kernel follows, so Python is at work only where a shard is opened or a block
is read for the first time, whatever number of shards the rows come from. Blocks of Parquet and of object stores are read one
after another, and of each no more than the wanted rows is kept.

A call keeps the shards that were open when it began, so none is unmapped under it; which are open is a dict that is replaced
and never changed. Past `MAX_MAPPED_SHARDS` or `MAX_OPEN_SHARDS` those not used for the longest time are let go.

Measured on one core of a shared 2-core AMD EPYC, everything in memory: opening a mapped shard takes 0.2 ms, checking a block of
4 MiB 0.4 ms; after that 16 rows of 2,048 uint16 as int64 take 12 us, of which finding takes 0.5 us.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from datapipe.errors import CorruptionError
from datapipe.kernels.loader import gather as kernels
from datapipe.loader.order.layout import Layout
from datapipe.shards.blocks import EVERY_COLUMN, SequenceRows, gather
from datapipe.shards.manifest import Snapshot
from datapipe.shards.reader import ShardReader
from datapipe.shards.schemas import token_type
from datapipe.storage import Root

MAX_OPEN_SHARDS = 256
"""Of Parquet and of object stores; each may hold a file descriptor, and the usual limit is 1,024 for a process."""

MAX_MAPPED_SHARDS = 8_192
"""A memory map holds no descriptor; the usual limit is 65,530 maps for a process."""

LocalCopy = Callable[[int], Path | None]
"""Shard number in the layout -> a whole, checked copy of it on the local disk, if there is one now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenShard:
    """A reader, and what kernels know of its blocks.

    Attributes:
        table: (num_blocks + 1, BLOCK_WIDTH) int64: the rows of a block, then a line for each, zeros until it is checked; None
            where blocks do not stay in memory.
        is_remote: whether a local copy would be better.
    """

    reader: ShardReader
    table: np.ndarray | None
    is_remote: bool


class RowReader:
    """Reads rows of one split by address. Several threads may read at once.

    Args:
        check: whether each block is held against its checksum when it is first used, and again when its shard was closed.
        local_copy: asked for shards that are not on a local disk, before they are opened and at every call that reads them.
    """

    def __init__(
        self, root: Root, snapshot: Snapshot, layout: Layout, *, check: bool = True, local_copy: LocalCopy | None = None
    ) -> None:
        self.layout = layout
        self._root = root
        self._check = check
        self._local_copy = local_copy
        self._sequence_length = snapshot.sequence_length
        self._tokenizer_fingerprint = snapshot.tokenizer.fingerprint
        self._stored = np.dtype(token_type(snapshot.tokenizer.vocab_size).to_pandas_dtype())
        self._lock, self._owner = Lock(), os.getpid()
        self._open: dict[int, _OpenShard] = {}
        self._unsound_copies: frozenset[int] = frozenset()
        self._tables = np.zeros(len(layout.shards), np.int64)
        self._last_used = np.zeros(len(layout.shards), np.int64)
        self._calls = 0

    def read(
        self,
        addresses: np.ndarray,
        wanted: Set[str] = EVERY_COLUMN,
        dtype: np.dtype | None = None,
        allocate: Callable[[tuple[int, ...], np.dtype], np.ndarray] = np.empty,
    ) -> SequenceRows:
        """The rows at `addresses` (n,) int64, in that order; an address may come up twice.

        Args:
            wanted: which columns, of `shards.blocks.EVERY_COLUMN`.
            dtype: of the tokens: int32, int64, or as they are stored.
            allocate: makes the array of the tokens.
        """
        addresses = np.ascontiguousarray(addresses, np.int64)
        if len(addresses) and (int(addresses.min()) < 0 or int(addresses.max()) >= self.layout.num_sequences):
            raise IndexError(f"addresses {addresses.min()} to {addresses.max()} of {self.layout.num_sequences} sequences")
        shards, rows, blocks = np.empty((3, len(addresses)), np.int64)
        self._begin_afresh_after_fork()
        with self._lock:
            self._calls += 1
            kept: list[Any] = [self._open]
            missing = kernels.find_rows(
                addresses, self.layout.shard_starts, self._tables, self._calls, self._last_used, shards, rows, blocks
            )
        if missing:
            kept += self._supply(shards, rows, blocks, wanted)
        found = gather(
            blocks,
            rows,
            sequence_length=self._sequence_length,
            stored=self._stored,
            wanted=wanted,
            dtype=dtype,
            allocate=allocate,
            name=lambda row: self.layout.shards[shards[row]].path,
        )
        del kept  # until here: what `blocks` points to
        return found

    def forget(self, shard: int) -> None:
        """Lets go of one shard, so that a copy that was deleted takes no more room; reading from it opens it again."""
        with self._lock:
            self._replace({number: opened for number, opened in self._open.items() if number != shard})

    def close(self) -> None:
        """Forgets every open shard; the next read opens what it needs."""
        with self._lock:
            self._replace({})

    def _supply(self, shards: np.ndarray, rows: np.ndarray, blocks: np.ndarray, wanted: Set[str]) -> list[Any]:
        """Sets `blocks` and `rows` of the rows that have no block; returns what holds these."""
        # where: the rows without a block, those of one shard front to back
        where = np.flatnonzero(blocks == 0)
        where = where[np.lexsort((rows[where], shards[where]))]
        borders = np.flatnonzero(np.diff(shards[where])) + 1
        kept: list[Any] = []
        for here in np.split(where, borders):
            shard = int(shards[here[0]])
            try:
                kept.append(self._supply_shard(shard, here, rows, blocks, wanted))
            except Exception as error:
                error.add_note(f"while reading {len(here)} rows of shard {self.layout.shards[shard].path} of {self._root.url}")
                raise
        return kept

    def _supply_shard(self, shard: int, here: np.ndarray, rows: np.ndarray, blocks: np.ndarray, wanted: Set[str]) -> Any:
        opened = self._opened(shard)
        try:
            return self._supply_from(opened, here, rows, blocks, wanted)
        except CorruptionError:
            if opened.is_remote or self._root.local is not None:
                raise
        # A local copy that was damaged since it was fetched: what it was copied from is the truth.
        self._unsound_copies |= {shard}
        self.forget(shard)
        return self._supply_from(self._opened(shard), here, rows, blocks, wanted)

    def _supply_from(self, opened: _OpenShard, here: np.ndarray, rows: np.ndarray, blocks: np.ndarray, wanted: Set[str]) -> Any:
        table, reader = opened.table, opened.reader
        if table is None:
            blocks_here, rows_here = np.empty(len(here), np.int64), np.empty(len(here), np.int64)
            kept = reader.take(rows[here], wanted, blocks_here, rows_here)
            blocks[here], rows[here] = blocks_here, rows_here
            return kept
        numbers, within = np.divmod(rows[here], reader.rows_per_block)
        for number in np.unique(numbers).tolist():
            if table[number + 1, kernels.TOKENS] == 0:
                entry = reader.block(number).entry
                with self._lock:  # under which kernels read tables
                    table[number + 1] = entry
        blocks[here] = table.ctypes.data + (numbers + 1) * kernels.BLOCK_BYTES
        rows[here] = within
        return opened

    def _opened(self, shard: int) -> _OpenShard:
        found = self._open.get(shard)
        if found is not None and not found.is_remote:
            return found
        copied = self._open_copy(shard)
        if copied is None and found is not None:
            return found
        opened = copied or self._open_shard(shard, None)
        with self._lock:
            now = self._open.get(shard)
            if now is not None and (copied is None or not now.is_remote):
                return now  # another thread was first
            self._replace({**self._open, shard: opened}, unlike=shard)
        return opened

    def _open_copy(self, shard: int) -> _OpenShard | None:
        """The local copy of a remote shard. One that is gone, or no longer whole, is as good as none."""
        if self._local_copy is None or self._root.local is not None or shard in self._unsound_copies:
            return None
        path = self._local_copy(shard)
        try:
            return None if path is None else self._open_shard(shard, path)
        except FileNotFoundError:
            return None
        except CorruptionError:
            self._unsound_copies |= {shard}
            return None

    def _open_shard(self, shard: int, copy: Path | None) -> _OpenShard:
        entry = self.layout.shards[shard]
        reader = ShardReader(
            self._root, entry, self._sequence_length, self._tokenizer_fingerprint, check=self._check, local=copy
        )
        is_remote = copy is None and self._root.local is None
        if reader.id_dtype != self._stored:
            raise CorruptionError(f"{entry.path}: ids of {reader.id_dtype}, expected {self._stored} as in the snapshot")
        if not reader.is_mapped:
            return _OpenShard(reader=reader, table=None, is_remote=is_remote)
        num_blocks = -(-entry.sequences // reader.rows_per_block)
        table = np.zeros((num_blocks + 1, kernels.BLOCK_WIDTH), np.int64)
        table[0, 0] = reader.rows_per_block
        return _OpenShard(reader=reader, table=table, is_remote=False)

    def _replace(self, shards: dict[int, _OpenShard], unlike: int = -1) -> None:
        """Makes `shards` the open ones, but for the oldest where they are too many; the lock is held.

        Args:
            unlike: a shard that stays.
        """
        for is_mapped, limit in ((True, MAX_MAPPED_SHARDS), (False, MAX_OPEN_SHARDS)):
            alike = [number for number, opened in shards.items() if (opened.table is not None) == is_mapped]
            if len(alike) > limit:
                alike.sort(key=lambda number: (number == unlike, self._last_used[number]))
                for number in alike[: len(alike) - limit + limit // 16]:  # some more, so that it is not at every turn
                    del shards[number]
        for number in self._open.keys() - shards.keys():
            self._tables[number] = 0
        for number in shards.keys() - self._open.keys() | ({unlike} & shards.keys()):
            table = shards[number].table
            self._tables[number] = 0 if table is None else table.ctypes.data
        self._open = shards

    def _begin_afresh_after_fork(self) -> None:
        if os.getpid() != self._owner:
            # The parent's other threads are gone, with whatever locks they held.
            self._lock, self._owner, self._open = Lock(), os.getpid(), {}
            self._tables[:] = 0
