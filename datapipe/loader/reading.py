"""Addresses to rows: one kernel finds the blocks of the rows in open shards, another copies the rows out.

    addresses ── find ──▶ rows of known blocks ────────────────────────────────────┬── gather ──▶ SequenceRows
                   └────▶ other rows: shard opened, block checked, or rows copied ─┘

A mapped shard has a table of its blocks, which the kernels read. Python runs only when a shard is
opened or a block is read for the first time. Blocks of Parquet files and of object stores are read
one after another, and only the wanted rows of each are kept.

A call of `read` holds the shards that were open when it began, so none is unmapped during the call: opening a shard adds to the
dict of open shards, closing one replaces the dict. `FoundRows` hold no shard: after one was closed, their rows are found again.
Past `MAX_MAPPED_SHARDS` or `MAX_OPEN_SHARDS`, the least recently used are closed.
"""

import os
from collections.abc import Callable, Set
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from datapipe.columns import dtype_of
from datapipe.credentials import masked
from datapipe.dataclass import dataclass
from datapipe.errors import CorruptionError, CutShortError
from datapipe.kernels.tokens import gather as kernels
from datapipe.loader.order.layout import Layout
from datapipe.shards.blocks import EVERY_COLUMN, SequenceRows, gather
from datapipe.shards.manifest import Snapshot
from datapipe.shards.reader import ShardReader
from datapipe.shards.removed import Removed, read_removed
from datapipe.shards.schemas import UNLEARNED, token_type
from datapipe.storage.root import Root

MAX_OPEN_SHARDS = 256
"""Of Parquet and of object stores. Each may hold a file descriptor, and the usual limit is 1,024 for a process."""

MAX_MAPPED_SHARDS = 8_192
"""A memory map holds no descriptor; the usual limit is 65,530 maps for a process."""

LocalCopy = Callable[[int], Path | None]
"""Shard number in the layout -> path of a complete, checked copy on the local disk; None if there is none now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenShard:
    reader: ShardReader
    # (num_blocks + 1, BLOCK_WIDTH) int64. Line 0 holds the rows per block, line i + 1 the entry of block i,
    # which is zeros until the block is checked. None for a shard whose blocks do not stay in memory.
    table: np.ndarray | None
    is_remote: bool  # whether it reads from an object store, so that a local copy should replace it


class FoundRows(NamedTuple):
    """Rows, each with its shard, its row in a block, and the address of the block's entry: all (n,) int64."""

    addresses: np.ndarray
    shards: np.ndarray
    rows: np.ndarray
    blocks: np.ndarray  # 0: not open, or not checked yet
    version: int  # of the open shards that own the blocks; -1 where some block is absent

    def part(self, start: int, stop: int) -> "FoundRows":
        addresses, shards, rows, blocks, version = self
        return FoundRows(addresses[start:stop], shards[start:stop], rows[start:stop], blocks[start:stop], version)


class RowReader:
    """Reads rows of a split by address, in any thread; `local_copy` finds remote shards on disk."""

    def __init__(self, root: Root, snapshot: Snapshot, layout: Layout, local_copy: LocalCopy | None = None) -> None:
        self.layout = layout
        self.snapshot = snapshot
        self._root = root
        self._local_copy = local_copy
        self._stored = dtype_of(token_type(snapshot.tokenizer.vocab_size))
        self._lock, self._owner = Lock(), os.getpid()
        self._open: dict[int, _OpenShard] = {}
        self._version = 0  # rises before another dict of open shards takes the place of this one
        self._num_mapped = 0
        self._has_mask = False  # whether a shard that was opened has runs that no loss counts
        self._damaged_copies: frozenset[int] = frozenset()
        self._tables = np.zeros(len(layout.shards), np.int64)
        self._last_used = np.zeros(len(layout.shards), np.int64)
        self._calls = 0

    def read(
        self,
        wanted_rows: np.ndarray | FoundRows,
        wanted: Set[str] = EVERY_COLUMN,
        dtype: np.dtype | None = None,  # of the tokens: int32, int64, or None for the stored type
        allocate: Callable[[tuple[int, ...], np.dtype], np.ndarray] = np.empty,
    ) -> SequenceRows:
        """The rows at some addresses (n,) int64, in that order; an address may come up twice."""
        found = wanted_rows if isinstance(wanted_rows, FoundRows) else self.find(wanted_rows)[0]
        kept: list[Any] = [self._open]  # read before the version, which rises first
        if found.version != self._version:
            found, kept[0] = self.find(found.addresses)
            if found.version < 0:
                kept += self._fill_missing(found.shards, found.rows, found.blocks, wanted)
        if UNLEARNED in wanted and not self._has_mask:
            wanted -= {UNLEARNED}
        try:
            return gather(
                found.blocks,
                found.rows,
                sequence_length=self.snapshot.sequence_length,
                stored=self._stored,
                wanted=wanted,
                dtype=dtype,
                allocate=allocate,
                name=lambda row: self.layout.shards[found.shards[row]].path,
            )
        except CutShortError:
            self.close()
        finally:
            del kept  # the memory that `blocks` points to must live until here
        return self.read(found.addresses, wanted, dtype, allocate)  # opens the file again, or another copy

    def find(self, addresses: np.ndarray) -> tuple[FoundRows, dict[int, _OpenShard]]:
        """The rows at `addresses` (n,) int64 for `read`, and the open shards that own their blocks."""
        addresses = np.ascontiguousarray(addresses, np.int64)
        shards, rows, blocks = np.empty((3, len(addresses)), np.int64)
        if os.getpid() != self._owner:
            # a fork copies no threads: a lock that another thread of the parent held would never be released
            self._lock, self._owner = Lock(), os.getpid()
            self._replace({})
        with self._lock:
            self._calls += 1
            opened, version = self._open, self._version
            missing = kernels.find_rows(
                addresses, self.layout.shard_starts, self._tables, self._calls, self._last_used, shards, rows, blocks
            )
        if missing < 0:
            raise IndexError(f"addresses {addresses.min()} to {addresses.max()} of {self.layout.num_sequences} sequences")
        return FoundRows(addresses, shards, rows, blocks, -1 if missing else version), opened

    @cached_property
    def removed(self) -> Removed:
        return read_removed(self._root, self.snapshot)

    def forget(self, shard: int) -> None:
        """Closes one shard, so that a deleted copy frees its space. The next read from it opens it again."""
        with self._lock:
            self._replace({number: opened for number, opened in self._open.items() if number != shard})

    def close(self) -> None:
        with self._lock:
            self._replace({})

    def _fill_missing(self, shards: np.ndarray, rows: np.ndarray, blocks: np.ndarray, wanted: Set[str]) -> list[Any]:
        """Fills `blocks` and `rows` shard by shard. Returns the owners of the blocks."""
        # missing: (num_missing,) requests without a block, sorted by shard and row
        missing = np.flatnonzero(blocks == 0)
        missing = missing[np.lexsort((rows[missing], shards[missing]))]
        borders = np.flatnonzero(np.diff(shards[missing])) + 1
        kept: list[Any] = []
        for requests in np.split(missing, borders):
            shard = int(shards[requests[0]])
            try:
                kept.append(self._fill_from_shard(shard, requests, rows, blocks, wanted))
            except Exception as error:
                path = self.layout.shards[shard].path
                error.add_note(f"while reading {len(requests)} rows of shard {path} of {masked(self._root.url)}")
                raise
        return kept

    def _fill_from_shard(self, shard: int, requests: np.ndarray, rows: np.ndarray, blocks: np.ndarray, wanted: Set[str]) -> Any:
        opened = self._opened(shard)
        try:
            return self._fill_from_blocks(opened, requests, rows, blocks, wanted)
        except CorruptionError:
            if opened.is_remote or self._root.local is not None:
                raise
        # the local copy was damaged after it was fetched, so the store is read instead
        self._damaged_copies |= {shard}
        self.forget(shard)
        return self._fill_from_blocks(self._opened(shard), requests, rows, blocks, wanted)

    def _fill_from_blocks(
        self, opened: _OpenShard, requests: np.ndarray, rows: np.ndarray, blocks: np.ndarray, wanted: Set[str]
    ) -> Any:
        table, reader = opened.table, opened.reader
        if table is None:
            copied_blocks, copied_rows = np.empty(len(requests), np.int64), np.empty(len(requests), np.int64)
            kept = reader.take(rows[requests], wanted, copied_blocks, copied_rows)
            blocks[requests], rows[requests] = copied_blocks, copied_rows
            return kept
        numbers, within = np.divmod(rows[requests], reader.rows_per_block)
        for number in np.unique(numbers).tolist():
            with reader.checking:  # no two threads check a block
                if table[number + 1, kernels.TOKENS] == 0:
                    entry = reader.block(number).entry
                    with self._lock:  # kernels read tables under this lock
                        table[number + 1] = entry
        blocks[requests] = table.ctypes.data + (numbers + 1) * kernels.BLOCK_BYTES
        rows[requests] = within
        return opened

    def _opened(self, shard: int) -> _OpenShard:
        known = self._open.get(shard)
        if known is not None and not known.is_remote:
            return known
        copied = self._open_copy(shard)
        if copied is None and known is not None:
            return known
        opened = copied or self._open_shard(shard, None)
        with self._lock:
            current = self._open.get(shard)
            if current is not None and (copied is None or not current.is_remote):
                return current  # another thread was first
            self._add(shard, opened)
        return opened

    def _open_copy(self, shard: int) -> _OpenShard | None:
        if self._local_copy is None or self._root.local is not None or shard in self._damaged_copies:
            return None
        path = self._local_copy(shard)
        try:
            return None if path is None else self._open_shard(shard, path)
        except FileNotFoundError:
            return None
        except CorruptionError:
            self._damaged_copies |= {shard}
            return None

    def _open_shard(self, shard: int, copy: Path | None) -> _OpenShard:
        entry = self.layout.shards[shard]
        reader = ShardReader(self._root, entry, self.snapshot.form, local=copy)
        is_remote = copy is None and self._root.local is None
        self._has_mask = self._has_mask or reader.has_mask
        if not reader.is_mapped:
            return _OpenShard(reader=reader, table=None, is_remote=is_remote)
        num_blocks = -(-entry.sequences // reader.rows_per_block)
        table = np.zeros((num_blocks + 1, kernels.BLOCK_WIDTH), np.int64)
        table[0, 0] = reader.rows_per_block
        return _OpenShard(reader=reader, table=table, is_remote=False)

    def _add(self, shard: int, opened: _OpenShard) -> None:
        """Makes a shard one of the open shards. The caller holds the lock."""
        if shard in self._open:  # a local copy replaces a remote shard, which a call may still hold
            self._replace({number: other for number, other in self._open.items() if number != shard})
        self._open[shard] = opened
        self._tables[shard] = 0 if opened.table is None else opened.table.ctypes.data
        self._num_mapped += opened.table is not None
        for is_mapped, limit in ((True, MAX_MAPPED_SHARDS), (False, MAX_OPEN_SHARDS)):
            if (self._num_mapped if is_mapped else len(self._open) - self._num_mapped) > limit:
                # the least recently used of this kind past `limit`, and a sixteenth more, so that this is rare
                numbers = [number for number, each in self._open.items() if (each.table is not None) == is_mapped]
                numbers.sort(key=lambda number: (number == shard, self._last_used[number]))
                closed = set(numbers[: len(numbers) - limit + limit // 16])
                self._replace({number: each for number, each in self._open.items() if number not in closed})

    def _replace(self, shards: dict[int, _OpenShard]) -> None:
        for number in self._open.keys() - shards.keys():
            self._tables[number] = 0
        self._num_mapped = sum(opened.table is not None for opened in shards.values())
        self._version += 1
        self._open = shards
