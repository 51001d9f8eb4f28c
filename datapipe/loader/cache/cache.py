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
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from threading import Lock
from typing import Literal

from datapipe.errors import UserError
from datapipe.loader.cache.download import DownloadCancelled, ShardDownload, StoreFailsError, is_sound
from datapipe.loader.cache.folder import CLAIM_S, CacheFolder, FolderError, Reservation
from datapipe.loader.order.batch_order import BatchOrder
from datapipe.loader.reading import RowReader
from datapipe.machine.cache import cache_home
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage.root import Root

MOST_S = 300.0
JOIN_S = 2.0
"""The time that `close` waits for its threads. A thread in a stalled request ends, and cleans up, when the request ends."""


class ShardCache:
    """Copies of `shards`, by their index. All files in the folder have `budget_bytes` at most. After `most_s` seconds
    in which the store fails without a break, a download pauses for as long."""

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
        """The path of a complete, checked copy; None if there is none. Another process may delete
        the file at any time; an open or mapped one stays readable."""
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


_BUSY_S = 0.1
_NO_ROOM_S = 1.0
"""Seconds until the scheduler checks again whether another process has finished a shard, or made room."""


class DownloadScheduler:
    """Decides what the threads of a `ShardCache` do next. `_changed` guards everything."""

    def __init__(self, root: Root, shards: Sequence[ShardEntry], folder: Path, budget_bytes: int, most_s: float) -> None:
        self.process = os.getpid()
        self.starting = threading.Lock()  # the cache starts its threads under it
        self.ready: dict[int, Path] = {}
        self._root, self._shards, self._most_s = root, shards, most_s
        self._folder = CacheFolder(folder, budget_bytes)
        self._changed = threading.Condition()
        self._stopped = False
        self.advice: str | None = None  # a warning that the user has not got yet
        self._is_off = False  # the disk failed
        self._is_prepared = False
        self._asked: tuple[int, ...] = ()
        self._expected: tuple[int, ...] = ()
        self._ranks: dict[str, int] = {}  # name of the copy -> its rank in the order of use
        self._downloads: dict[int, ShardDownload] = {}
        self._is_reserving = False  # one reservation at a time, or a later shard could take the room of an earlier one
        self._not_before: dict[int, float] = {}
        self._no_room_until = 0.0
        self._present: set[str] = set()  # names in the folder at the last check
        self._stamp_at = 0.0

    def expect(self, shards: Sequence[int]) -> None:
        if tuple(shards) == self._asked:
            return
        ranks: dict[str, int] = {}
        for shard in shards:
            ranks.setdefault(self._folder.file(self._shards[shard]).name, len(ranks))
        with self._changed:
            self._asked = tuple(shards)
            self._expected, self._ranks = tuple(dict.fromkeys(shards)), ranks
            for shard, download in self._downloads.items():
                if shard not in self._expected:
                    download.ended.set()
            self._no_room_until = self._stamp_at = 0.0
            self._changed.notify_all()

    def lost(self, shard: int) -> None:
        with self._changed:
            self.ready.pop(shard, None)
            self._changed.notify_all()

    def resume(self) -> None:
        with self._changed:
            self._stopped = False

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            for download in self._downloads.values():
                download.ended.set()
            self._changed.notify_all()

    def next_task(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._stopped:
                task, wait_s = self._choose(time.monotonic())
                if task is not None:
                    return task
                self._changed.wait(wait_s)
        return None

    def _choose(self, now: float) -> tuple[Callable[[], None] | None, float | None]:
        """The next task in the order of the expected shards; or None and the seconds to wait."""
        if not self._expected or self._is_off:
            return None, None
        if now >= self._stamp_at:
            return self._stamp, None
        wake = self._stamp_at
        for shard in self._expected:
            if shard in self.ready or shard in self._downloads:
                continue
            again = self._not_before.get(shard, 0.0)
            if again > now:
                wake = min(wake, again)
            elif self._is_reserving:
                continue
            elif self._no_room_until > now and self._folder.file(self._shards[shard]).name not in self._present:
                wake = min(wake, self._no_room_until)  # no later shard may take the room; a shard in the folder needs none
            else:
                download = ShardDownload(self._root, self._shards[shard], self._most_s)
                self._downloads[shard], self._is_reserving = download, True
                return partial(self._fetch, shard, download), None
        return None, wake - now

    def _stamp(self) -> None:
        """Claims the expected copies for another minute, and removes those that others deleted."""
        with self._changed:
            if time.monotonic() < self._stamp_at:
                return
            self._stamp_at = time.monotonic() + CLAIM_S / 3
            held = [(shard, self.ready[shard]) for shard in self._expected if shard in self.ready]
        try:
            self._present = self._folder.names()
            deleted = [shard for shard, path in held if not self._folder.stamp(path.name)]
        except FolderError as error:
            with self._changed:
                self._turn_off(error)
            return
        for shard in deleted:
            self.lost(shard)

    def _fetch(self, shard: int, download: ShardDownload) -> None:
        entry, reservation = self._shards[shard], None
        try:
            answer = self._reserve(entry)
            if isinstance(answer, Reservation):
                reservation = answer
                path = download.run(self._folder, reservation, self._stamp)
                reservation = None
                with self._changed:
                    self.ready[shard] = path
            elif answer == "present":
                self._reuse_copy(shard, entry)
            elif answer == "busy":
                self._not_before[shard] = time.monotonic() + _BUSY_S
            elif entry.bytes > self._folder.budget_bytes:
                self._not_before[shard] = float("inf")
                self.advice = (
                    f"{entry.path} has {entry.bytes} bytes, more than the shard cache may hold, {self._folder.budget_bytes}. "
                    f"It is read from the store block by block, which is slower. Raise cache_bytes to the size of several "
                    f"shards."
                )
            else:
                present = self._folder.names()
                with self._changed:
                    self._present = present
                    if shard in self._expected:
                        self._no_room_until = time.monotonic() + _NO_ROOM_S
        except DownloadCancelled:
            pass
        except FolderError as error:
            with self._changed:
                self._turn_off(error)
        except Exception as error:  # the reader's own read raises it, or succeeds
            may_pass = isinstance(error, StoreFailsError)
            self._not_before[shard] = time.monotonic() + self._most_s if may_pass else float("inf")
        finally:
            if reservation is not None:
                self._folder.give_up(reservation)
            with self._changed:
                if reservation is not None:
                    self._no_room_until = 0.0
                del self._downloads[shard]
                self._changed.notify_all()

    def _reserve(self, entry: ShardEntry) -> Reservation | Literal["present", "busy", "no room"]:
        try:
            if not self._is_prepared:
                self._folder.prepare()
                self._is_prepared = True
            return self._folder.reserve(entry, self._ranks.get)
        finally:
            with self._changed:
                self._is_reserving = False
                self._changed.notify_all()

    def _reuse_copy(self, shard: int, entry: ShardEntry) -> None:
        path = self._folder.file(entry)
        try:
            is_reusable = is_sound(path, entry)
        except FileNotFoundError:
            return
        except OSError:  # an unreadable copy is no better than a damaged one
            is_reusable = False
        if not is_reusable:
            path.unlink(missing_ok=True)
        elif self._folder.stamp(path.name):
            with self._changed:
                self.ready[shard] = path

    def _turn_off(self, error: FolderError) -> None:
        self._is_off = True
        self.advice = (
            f"the shard cache in {self._folder.path} cannot be written: {error.strerror}. Its shards stay in use; all others "
            f"are read from the store block by block, which is slower. Free some space there, or give another cache_folder "
            f"or a smaller cache_bytes (now {self._folder.budget_bytes})."
        )
        for download in self._downloads.values():
            download.ended.set()


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
