"""A local cache of whole shards of a snapshot on an object store, filled in the order in which shards are needed.

    expect([7, 2, 9, …])  ──▶  the missing shards are fetched in this order, as far as they fit into the budget
                               │ threads: make room (folder.py), fetch ranges and check (download.py)
    path_of(7)            ◀──  the path of a complete, checked copy, or None: the reader then reads blocks from the store

To make room, shards that are not expected are deleted first, then those expected last. A shard is never deleted for one
expected later. A copy that an earlier run or another process left is checked once, by a thread, before it is used. Any number
of processes and snapshots may share the folder.

A download that fails is tried again for `patience_s`; then `error(shard)` tells why, and the download starts over after the
same time. A shard that is missing, or damaged in the store, is not tried again. A full or broken disk ends all downloads with
one warning. `path_of` raises none of these errors: the reader reads from the store and reports the store's error.

Memory: `num_threads` ranges of 4 MiB. Threads are daemons that hold no reference to the cache; they end with `close`, with the
last reference to the cache, and with the process. A fork copies no threads: the child starts its own.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from datapipe.errors import UserError
from datapipe.loader.cache.folder import default_folder
from datapipe.loader.cache.scheduler import CacheCounts, DownloadScheduler
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage import Root

__all__ = ["CacheCounts", "ShardCache", "default_folder"]

PATIENCE_S = 300.0
JOIN_S = 2.0
"""The time that `close` waits for its threads. A thread in a stalled request ends, and cleans up, when the request ends."""


class ShardCache:
    """Copies of `shards`, by their index in that sequence.

    Args:
        root: of the snapshot, on an object store.
        folder: of the copies.
        budget_bytes: of all files in the folder.
        num_threads: ranges fetched at the same time, 4 MiB of memory each. More threads help where the store is slow.
        patience_s: seconds that the store may fail without a break before `error` returns the reason.
    """

    def __init__(
        self,
        root: Root,
        shards: Sequence[ShardEntry],
        folder: Path,
        budget_bytes: int,
        *,
        num_threads: int = 4,
        patience_s: float = PATIENCE_S,
    ) -> None:
        if budget_bytes < 1 or num_threads < 1:
            raise UserError(f"a cache of {budget_bytes} bytes with {num_threads} threads: expected at least 1 of each.")
        self._num_threads = num_threads
        self._new_scheduler = partial(DownloadScheduler, root, shards, Path(folder), budget_bytes, patience_s)
        self._scheduler = self._new_scheduler()
        self._finalizer: weakref.finalize | None = None

    def path_of(self, shard: int) -> Path | None:
        """The path of a complete, checked copy; None if there is none. A missing copy costs one look-up in a dictionary.

        Another process may delete the file before it is opened, so opening it may raise FileNotFoundError; treat that as None.
        An open or mapped file stays readable.
        """
        scheduler = self._scheduler_here()
        path = scheduler.ready.get(shard)
        if path is not None and not path.exists():
            scheduler.lost(shard)
            path = None
        if path is None:
            scheduler.misses += 1
        else:
            scheduler.hits += 1
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

    def error(self, shard: int) -> Exception | None:
        """The reason why an expected shard is missing, if it is known."""
        failed = self._scheduler_here().failed.get(shard)
        return failed[0] if failed is not None else None

    def counts(self) -> CacheCounts:
        return self._scheduler_here().counts()

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
        """Warns in the caller's thread of what a thread of the cache found."""
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
