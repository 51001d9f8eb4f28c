"""The shared state of a cache's threads: the expected shards, the shards in the cache, and the downloads in progress.

expected  [7, 2, 9, 4]           `next_task` returns the first task in the order of the expected shards:
           │  │  └ fetch         reuse a copy, or make room and download
           │  └ downloading      by another thread
           └ in the cache
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from datapipe.loader.cache.download import DownloadCancelled, ShardDownload, StoreFailsError, is_sound
from datapipe.loader.cache.folder import CLAIM_S, CacheFolder, FolderError, Reservation
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage.root import Root

_BUSY_S = 0.1
_NO_ROOM_S = 1.0
"""Seconds until the scheduler checks again whether another process has finished a shard, or made room."""


class DownloadScheduler:
    """Decides what the threads of a `ShardCache` do next. Threads refer to the scheduler, never to the cache.

    `_changed` guards everything.
    """

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
        """Waits for the next task; None once the scheduler is stopped."""
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
        """Claims the expected copies for another minute, if it is time, and removes those that other processes have deleted."""
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
        """Reuses a copy in the folder, or makes room and fetches the shard. After an error the reader reads from the store."""
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
                self._advise_more(entry)
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
