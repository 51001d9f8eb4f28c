"""The shared state of a cache's threads: the expected shards, the shards in the cache, and the downloads in progress.

expected  [7, 2, 9, 4]           `next_task` returns the first task in the order of the expected shards:
           │  │  └ start         start: reuse a copy, or make room and open the object
           │  └ ranges           ranges: fetch the next range of an open download
           └ in the cache
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from datapipe.loader.cache.download import DownloadCancelled, DownloadError, ShardDownload, finish_download, is_sound
from datapipe.loader.cache.folder import CLAIM_S, CacheFolder, FolderError, Reservation
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage import Root

_BUSY_S = 0.1
_NO_ROOM_S = 1.0
"""Seconds until the scheduler looks again whether another process has finished a shard, or made room."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheCounts:
    """Counts of a cache in this process, and the bytes in its folder.

    Attributes:
        fetched_bytes: bytes from the store, refetched ones included.
        files: shards that were fetched and had the right checksum.
        reused: copies of earlier runs or other processes that had the right checksum.
        refetches: shards fetched again because their checksum was wrong.
        hits, misses: calls of `path_of` that returned a path, or None.
        evicted: files deleted to make room.
        failures: requests that failed, retried ones included.
        resident_bytes: of all files in the folder.
    """

    fetched_bytes: int
    files: int
    reused: int
    refetches: int
    hits: int
    misses: int
    evicted: int
    failures: int
    resident_bytes: int


class DownloadScheduler:
    """Decides what the threads of a `ShardCache` do next. Threads refer to the scheduler, never to the cache.

    `_changed` guards everything but the counts of `path_of`.
    """

    def __init__(self, root: Root, shards: Sequence[ShardEntry], folder: Path, budget_bytes: int, patience_s: float) -> None:
        self.process = os.getpid()
        self.starting = threading.Lock()  # the cache starts its threads under it
        self.ready: dict[int, Path] = {}
        self.failed: dict[int, tuple[Exception, float]] = {}  # the error, and the time of the next attempt
        self.hits = self.misses = 0
        self._root, self._shards, self._patience_s = root, shards, patience_s
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
        self._present: set[str] = set()  # names in the folder at the last look
        self._stamp_at = 0.0
        self._fetched_bytes = self._files = self._reused = self._refetches = self._failures = 0

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
        """Called when another process has deleted a copy."""
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
        """Waits for the next task; None once the scheduler is stopped."""
        with self._changed:
            while True:
                for shard, download in list(self._downloads.items()):
                    if download.ended.is_set() and download.in_flight == 0:
                        self._drop(shard)
                if self._stopped:
                    return None
                task, wait_s = self._choose(time.monotonic())
                if task is not None:
                    return task
                self._changed.wait(wait_s)

    def _choose(self, now: float) -> tuple[Callable[[], None] | None, float | None]:
        """The next task in the order of the expected shards; or None and the seconds to wait."""
        if not self._expected or self._is_off:
            return None, None
        if now >= self._stamp_at:
            self._stamp_at = now + CLAIM_S / 3
            return self._stamp, None
        wake = self._stamp_at
        for shard in self._expected:
            if shard in self.ready:
                continue
            if (download := self._downloads.get(shard)) is not None:
                if download.waiting and not download.ended.is_set():
                    download.in_flight += 1
                    return partial(self._fetch_range, shard, download, download.waiting.pop()), None
                continue
            again = max(self._not_before.get(shard, 0.0), self.failed[shard][1] if shard in self.failed else 0.0)
            if again > now:
                wake = min(wake, again)
            elif self._is_reserving:
                continue
            elif self._no_room_until > now and self._folder.file(self._shards[shard]).name not in self._present:
                wake = min(wake, self._no_room_until)  # no later shard may take the room; a shard in the folder needs none
            else:
                download = ShardDownload(root=self._root, entry=self._shards[shard], patience_s=self._patience_s, in_flight=1)
                self._downloads[shard], self._is_reserving = download, True
                return partial(self._start, shard, download), None
        return None, wake - now

    def _stamp(self) -> None:
        """Claims the expected copies for another minute, and removes those that other processes have deleted."""
        with self._changed:
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

    def _start(self, shard: int, download: ShardDownload) -> None:
        """Reuses a copy in the folder, or makes room and opens the object."""
        with self._reported(shard, download):
            answer = self._reserve(download.entry)
            if isinstance(answer, Reservation):
                download.reservation = answer
                download.open()
                with self._changed:
                    download.restart()
                return
            download.ended.set()
            if answer == "present":
                self._reuse_copy(shard, download.entry)
            elif answer == "busy":
                self._not_before[shard] = time.monotonic() + _BUSY_S
            elif download.entry.bytes > self._folder.budget_bytes:
                self._not_before[shard] = float("inf")
                self._advise_more(download.entry)
            else:
                present = self._folder.names()
                with self._changed:
                    self._present = present
                    if shard in self._expected:
                        self._no_room_until = time.monotonic() + _NO_ROOM_S

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
        """Takes an earlier copy if its checksum is right; else deletes it, so that the shard is fetched."""
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
                self._reused += 1

    def _fetch_range(self, shard: int, download: ShardDownload, offset: int) -> None:
        with self._reported(shard, download):
            num_bytes = download.read_range(offset)
            with self._changed:
                self._fetched_bytes += num_bytes
                download.num_missing -= 1
                is_whole = download.num_missing == 0
            if is_whole:
                self._finish(shard, download)

    def _finish(self, shard: int, download: ShardDownload) -> None:
        path = finish_download(self._folder, download)
        with self._changed:
            if path is None:
                self._refetches += 1
                download.restart()
                return
            download.reservation = None
            download.ended.set()
            self.ready[shard] = path
            self.failed.pop(shard, None)
            self._files += 1

    @contextmanager
    def _reported(self, shard: int, download: ShardDownload) -> Iterator[None]:
        """Wraps a thread's work on a download: an error ends the download and is kept for `failed`."""
        error: Exception | None = None
        try:
            yield
        except DownloadCancelled:
            pass
        except Exception as failure:  # kept for ShardCache.error(); the reader falls back to the store
            error = failure
        with self._changed:
            download.in_flight -= 1
            if isinstance(error, FolderError):
                self._turn_off(error)
            elif error is not None:
                may_pass = isinstance(error, DownloadError) and error.may_pass
                again = time.monotonic() + self._patience_s if may_pass else float("inf")
                self.failed[shard] = error, again
                download.ended.set()
            self._changed.notify_all()

    def _turn_off(self, error: FolderError) -> None:
        self._is_off = True
        self.advice = (
            f"the shard cache in {self._folder.path} cannot be written: {error.strerror}. Its shards stay in use; all others "
            f"are read from the store block by block, which is slower. Free some space there, or give another cache_folder "
            f"or a smaller cache_bytes (now {self._folder.budget_bytes})."
        )
        for download in self._downloads.values():
            download.ended.set()

    def _advise_more(self, entry: ShardEntry) -> None:
        self.advice = (
            f"{entry.path} has {entry.bytes} bytes, more than the shard cache may hold, {self._folder.budget_bytes}. It "
            f"is read from the store block by block, which is slower. Raise cache_bytes to the size of several shards."
        )

    def _drop(self, shard: int) -> None:
        download = self._downloads.pop(shard)
        self._failures += download.failures
        download.close()
        if download.reservation is not None:
            self._folder.give_up(download.reservation)
            self._no_room_until = 0.0

    def counts(self) -> CacheCounts:
        with self._changed:
            return CacheCounts(
                fetched_bytes=self._fetched_bytes,
                files=self._files,
                reused=self._reused,
                refetches=self._refetches,
                hits=self.hits,
                misses=self.misses,
                evicted=self._folder.num_evicted,
                failures=self._failures + sum(download.failures for download in self._downloads.values()),
                resident_bytes=self._folder.resident_bytes(),
            )
