"""Addresses to rows of tokens: grouped by shard, read, and put back in the order that was asked for.

    addresses  ->  (shard, row)  ->  one read per shard  ->  SequenceRows in the order of the addresses

At most `MAX_OPEN_SHARDS` readers are kept, the least recently used forgotten first. A forgotten reader is closed when its last
reference goes, so a thread that is still reading from it never finds it shut.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock

import numpy as np

from datapipe.columns import KEY_BYTES
from datapipe.loader.layout import Layout
from datapipe.shards.manifest import ShardEntry, Snapshot
from datapipe.shards.reader import SequenceRows, ShardReader
from datapipe.storage import Root

MAX_OPEN_SHARDS = 256
"""Each memory map may hold a file descriptor; the usual limit is 1,024 for a process."""


class RowReader:
    """Reads rows of one split by address. Several threads may read at once."""

    def __init__(self, root: Root, snapshot: Snapshot, layout: Layout) -> None:
        self.layout = layout
        self._root = root
        self._sequence_length = snapshot.sequence_length
        self._tokenizer_fingerprint = snapshot.tokenizer.fingerprint
        self._token_type = np.dtype(np.uint16 if snapshot.tokenizer.vocab_size < 65_500 else np.uint32)
        self._open: OrderedDict[str, ShardReader] = OrderedDict()
        self._lock, self._owner = Lock(), os.getpid()

    def read(self, addresses: np.ndarray) -> SequenceRows:
        """The rows at `addresses` (n,) int64, in that order; an address may come up twice."""
        if len(addresses) == 0:
            return self._no_rows()
        shards, rows = self.layout.find(addresses)
        order = np.lexsort((rows, shards))  # rows of one shard front to back
        borders = np.flatnonzero(np.diff(shards[order])) + 1
        groups = [self._read_shard(self.layout.shards[shards[part[0]]], rows[part]) for part in np.split(order, borders)]
        return take_rows(groups, np.argsort(order))

    def close(self) -> None:
        """Forgets every open shard; the next read opens what it needs."""
        with self._lock:
            self._open.clear()

    def _read_shard(self, shard: ShardEntry, rows: np.ndarray) -> SequenceRows:
        try:
            return self._reader(shard).read(rows)
        except Exception as error:
            error.add_note(f"while reading {len(rows)} rows of shard {shard.path} of {self._root.url}")
            raise

    def _reader(self, shard: ShardEntry) -> ShardReader:
        if os.getpid() != self._owner:
            # After a fork the parent's other threads are gone, with whatever locks they held: begin afresh.
            self._open, self._lock, self._owner = OrderedDict(), Lock(), os.getpid()
        with self._lock:
            reader = self._open.get(shard.path)
            if reader is None:
                reader = ShardReader(self._root, shard, self._sequence_length, self._tokenizer_fingerprint)
                self._open[shard.path] = reader
            self._open.move_to_end(shard.path)
            if len(self._open) > MAX_OPEN_SHARDS:
                self._open.popitem(last=False)
            return reader

    def _no_rows(self) -> SequenceRows:
        return SequenceRows(
            tokens=np.zeros((0, self._sequence_length), self._token_type),
            piece_lengths=np.zeros(0, np.int32),
            piece_offsets=np.zeros(1, np.int64),
            keys=np.zeros((0, KEY_BYTES), np.uint8),
            starts=np.zeros(0, np.int64),
        )


def take_rows(groups: list[SequenceRows], wanted: np.ndarray) -> SequenceRows:
    """Rows `wanted` (n,) int64 of the concatenation of `groups`, with their pieces."""
    counts = np.concatenate([np.diff(group.piece_offsets) for group in groups])  # (num_rows,)
    starts = np.cumsum(counts) - counts
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[wanted])])  # (n + 1,)
    # pieces: (num_pieces,) where each wanted piece lies in the concatenation
    pieces = np.repeat(starts[wanted] - offsets[:-1], counts[wanted]) + np.arange(offsets[-1])
    return SequenceRows(
        tokens=np.concatenate([group.tokens for group in groups])[wanted],
        piece_lengths=np.concatenate([group.piece_lengths for group in groups])[pieces],
        piece_offsets=offsets,
        keys=np.concatenate([group.keys for group in groups])[pieces],
        starts=np.concatenate([group.starts for group in groups])[pieces],
    )
