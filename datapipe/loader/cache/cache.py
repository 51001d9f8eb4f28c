"""A local cache of whole shards of a snapshot on an object store, filled in the order in which shards are needed.

    expect([7, 2, 9, …])  ──▶  the missing shards are fetched in this order, as far as they fit into the budget
                               │ threads, a shard each: make room (folder.py), fetch and check (download.py)
    path_of(7)            ◀──  the path of a complete, checked copy, or None: the reader then reads blocks from the store

To make room, shards that are not expected are deleted first, then those expected last. A copy that an earlier run or another
process left is checked before it is used. Any number of processes and snapshots may share the folder.

A download that fails is tried again for `most_s`, and starts over after the same time. A shard that is missing, or damaged
in the store, is not tried again. A full or broken disk ends all downloads with one warning. `path_of` raises none of these
errors: the reader reads from the store and reports the store's error.

Memory: `num_threads` ranges of 4 MiB. Threads end with `close`, with the last reference to the cache, and with the process.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from threading import Lock

from datapipe.errors import UserError
from datapipe.loader.cache.scheduler import DownloadScheduler
from datapipe.loader.order.batch_order import BatchOrder
from datapipe.loader.reading import RowReader
from datapipe.machine.cache import cache_home
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage.root import Root

MOST_S = 300.0
JOIN_S = 2.0
"""The time that `close` waits for its threads. A thread in a stalled request ends, and cleans up, when the request ends."""


class ShardCache:
    """Copies of `shards`, by their index in that sequence.

    Args:
        budget_bytes: of all files in the folder.
        num_threads: shards fetched at the same time.
        most_s: seconds that the store may fail without a break before a download pauses for as long.
    """

    def __init__(
        self,
        root: Root,
        shards: Sequence[ShardEntry],
        folder: Path,
        budget_bytes: int,
        *,
        num_threads: int = 4,
        most_s: float = MOST_S,
    ) -> None:
        if budget_bytes < 1 or num_threads < 1:
            raise UserError(f"a cache of {budget_bytes} bytes with {num_threads} threads: expected at least 1 of each.")
        self._num_threads = num_threads
        self._new_scheduler = partial(DownloadScheduler, root, shards, Path(folder), budget_bytes, most_s)
        self._scheduler = self._new_scheduler()
        self._finalizer: weakref.finalize | None = None

    def path_of(self, shard: int) -> Path | None:
        """The path of a complete, checked copy; None if there is none. Another process may delete the file at any time; an open
        or mapped one stays readable."""
        scheduler = self._scheduler_here()
        path = scheduler.ready.get(shard)
        if path is not None and not path.exists():
            scheduler.lost(shard)
            path = None
        if scheduler.advice is not None:
            self._warn(scheduler)
        return path

    def expect(self, shards: Sequence[int]) -> None:
        """Sets the shards that are used from now on, in the order of their use. Starts the threads."""
        scheduler = self._scheduler_here()
        scheduler.expect(shards)
        self._warn(scheduler)
        with scheduler.starting:
            if self._finalizer is None and shards:
                self._finalizer = weakref.finalize(self, _stop, scheduler, self._start_threads(scheduler))

    def close(self) -> None:
        """Stops the threads and cancels downloads. Copies stay, and `expect` starts new threads."""
        self._scheduler_here()
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None

    def _start_threads(self, scheduler: DownloadScheduler) -> list[threading.Thread]:
        scheduler.resume()
        threads = [
            threading.Thread(target=_serve, args=(scheduler,), name=f"datapipe-cache-{number}", daemon=True)
            for number in range(self._num_threads)
        ]
        for thread in threads:
            thread.start()
        return threads

    @staticmethod
    def _warn(scheduler: DownloadScheduler) -> None:
        advice, scheduler.advice = scheduler.advice, None
        if advice is not None:
            warnings.warn(advice, RuntimeWarning, stacklevel=3)

    def _scheduler_here(self) -> DownloadScheduler:
        if self._scheduler.process != os.getpid():
            # After a fork the parent's threads are gone, and locks that they held are never released. Copies of the parent's
            # open files stay open: some may have been closing at that moment, and the parent unlocks them itself.
            self._scheduler, self._finalizer = self._new_scheduler(), None
        return self._scheduler


def _serve(scheduler: DownloadScheduler) -> None:
    while (task := scheduler.next_task()) is not None:
        task()


def _stop(scheduler: DownloadScheduler, threads: list[threading.Thread]) -> None:
    if scheduler.process != os.getpid():  # the end of a forked child: the threads are its parent's
        return
    scheduler.stop()
    deadline = time.monotonic() + JOIN_S
    for thread in threads:
        if thread is not threading.current_thread():  # the collector may run in one of them
            thread.join(max(0.0, deadline - time.monotonic()))


CACHE_BYTES = 16 << 30
"""The default size of the cache, unless that is more than half of the free disk space."""


class ReadAhead:
    """Announces the next shards of iterations to the cache: of one for a loader, of all streams for a server."""

    def __init__(self, cache: ShardCache, reader: RowReader) -> None:
        self._cache, self._reader, self._lock = cache, reader, Lock()
        self._by_stream: dict[object, list[int]] = {}
        self._expected: list[int] = []

    def announce(self, batch_order: BatchOrder, step: int, stream: object = None) -> None:
        """Announces the shards that a stream reads from `step` on. Thread-safe, and cheap while they do not change."""
        shards = batch_order.sample_order.windows_ahead(batch_order.steps.samples(step)[0])
        with self._lock:
            if self._by_stream.get(stream) != shards:
                self._by_stream[stream] = shards
                self._expect()

    def leave(self, stream: object) -> None:
        with self._lock:
            if self._by_stream.pop(stream, None) is not None:
                self._expect()

    def _expect(self) -> None:
        """Expects the first shard of every stream, then the second, and so on."""
        in_turn = [shard for row in zip_longest(*self._by_stream.values()) for shard in row if shard is not None]
        if not in_turn:  # the last expected shards stay in the cache without readers
            return
        before, self._expected = self._expected, list(dict.fromkeys(in_turn))
        self._cache.expect(self._expected)
        for shard in set(before) - set(self._expected):
            self._reader.forget(shard)


def plan_budget(cache_bytes: int | None, folder: Path | None) -> tuple[int, Path]:
    folder = cache_home() / "shards" if folder is None else folder
    if cache_bytes is not None:
        return cache_bytes, folder
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return min(CACHE_BYTES, shutil.disk_usage(existing).free // 2), folder
