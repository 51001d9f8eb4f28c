"""What the threads of a cache share: which shards are expected, which are here, which are on their way, and what comes next.

expected  [7, 2, 9, 4]     the thread that asks next_task() gets the first thing to do in this order:
          here  │  │       look for a copy or make room, a piece of a fetch that is open, …
          pieces┘  └ start
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

from datapipe.loader.cache import fetch as fetching
from datapipe.loader.cache.fetch import Fetch, FetchError
from datapipe.loader.cache.folder import CLAIM_S, CacheFolder, FolderError, Reservation
from datapipe.shards.manifest import ShardEntry
from datapipe.storage import Root

_BUSY_S = 0.1
_NO_ROOM_S = 1.0
"""How soon to look again whether another process has finished a shard, or has made room."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheCounts:
    """What a cache did in this process, and what it holds.

    Attributes:
        fetched_bytes: that arrived from the store, refetched ones included.
        files: shards that were fetched and found right.
        reused: copies of earlier runs or other processes that were found right.
        refetches: shards fetched once more because their checksum was wrong.
        hits, misses: calls of `found` that gave a path, or None.
        evicted: files deleted to make room.
        failures: requests that failed, those tried again included.
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


class Fetcher:
    """The state behind a `ShardCache`. Threads hold this, never the cache. `_changed` guards all but the counts of `found`."""

    def __init__(self, root: Root, shards: tuple[ShardEntry, ...], folder: Path, budget_bytes: int, patience_s: float) -> None:
        self.process = os.getpid()
        self.starting = threading.Lock()  # of the cache's, for its threads
        self.ready: dict[int, Path] = {}
        self.failed: dict[int, tuple[Exception, float]] = {}  # and when to try again
        self.hits = self.misses = 0
        self._root, self._shards, self._patience_s = root, shards, patience_s
        self._folder = CacheFolder(folder, budget_bytes)
        self._changed = threading.Condition()
        self._stopped = False
        self.advice: str | None = None  # what the user must hear, once
        self._is_off = False  # the disk failed
        self._is_prepared = False
        self._asked: tuple[int, ...] = ()
        self._expected: tuple[int, ...] = ()
        self._ranks: dict[str, int] = {}  # name of the copy -> when it is used next
        self._fetches: dict[int, Fetch] = {}
        self._is_reserving = False  # one at a time, or a later shard would take the room of a sooner one
        self._not_before: dict[int, float] = {}
        self._no_room_until = 0.0
        self._present: set[str] = set()  # names seen in the folder lately
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
            for shard, fetch in self._fetches.items():
                if shard not in self._expected:
                    fetch.ended.set()
            self._no_room_until = self._stamp_at = 0.0
            self._changed.notify_all()

    def lost(self, shard: int) -> None:
        """A copy was deleted by another process."""
        with self._changed:
            self.ready.pop(shard, None)
            self._changed.notify_all()

    def resume(self) -> None:
        with self._changed:
            self._stopped = False

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            for fetch in self._fetches.values():
                fetch.ended.set()
            self._changed.notify_all()

    def next_task(self) -> Callable[[], None] | None:
        """Waits for something to do; None at the end."""
        with self._changed:
            while True:
                for shard, fetch in list(self._fetches.items()):
                    if fetch.ended.is_set() and fetch.in_flight == 0:
                        self._drop(shard)
                if self._stopped:
                    return None
                task, wait_s = self._choose(time.monotonic())
                if task is not None:
                    return task
                self._changed.wait(wait_s)

    def _choose(self, now: float) -> tuple[Callable[[], None] | None, float | None]:
        """The first thing to do for the shard expected first, or how long to wait."""
        if not self._expected or self._is_off:
            return None, None
        if now >= self._stamp_at:
            self._stamp_at = now + CLAIM_S / 3
            return self._stamp, None
        wake = self._stamp_at
        for shard in self._expected:
            if shard in self.ready:
                continue
            if (fetch := self._fetches.get(shard)) is not None:
                if fetch.waiting and not fetch.ended.is_set():
                    fetch.in_flight += 1
                    return partial(self._piece, shard, fetch, fetch.waiting.pop()), None
                continue
            again = max(self._not_before.get(shard, 0.0), self.failed[shard][1] if shard in self.failed else 0.0)
            if again > now:
                wake = min(wake, again)
            elif self._is_reserving:
                continue
            elif self._no_room_until > now and self._folder.file(self._shards[shard]).name not in self._present:
                wake = min(wake, self._no_room_until)  # nothing later may take the room; what is here needs none
            else:
                fetch = Fetch(root=self._root, entry=self._shards[shard], patience_s=self._patience_s, in_flight=1)
                self._fetches[shard], self._is_reserving = fetch, True
                return partial(self._start, shard, fetch), None
        return None, wake - now

    def _stamp(self) -> None:
        """Tells other processes what is still expected here, and sees what they deleted."""
        with self._changed:
            held = [(shard, self.ready[shard]) for shard in self._expected if shard in self.ready]
        try:
            self._present = self._folder.names()
            gone = [shard for shard, path in held if not self._folder.stamp(path.name)]
        except FolderError as error:
            with self._changed:
                self._turn_off(error)
            return
        for shard in gone:
            self.lost(shard)

    def _start(self, shard: int, fetch: Fetch) -> None:
        """Finds a copy that is already here, or makes room and opens the object."""
        with self._reported(shard, fetch):
            answer = self._reserve(fetch.entry)
            if isinstance(answer, Reservation):
                fetch.reservation = answer
                fetch.open()
                with self._changed:
                    fetch.restart()
                return
            fetch.ended.set()
            if answer == "found":
                self._accept(shard, fetch.entry)
            elif answer == "busy":
                self._not_before[shard] = time.monotonic() + _BUSY_S
            elif fetch.entry.bytes > self._folder.budget_bytes:
                self._not_before[shard] = float("inf")
                self._advise_more(fetch.entry)
            else:
                present = self._folder.names()
                with self._changed:
                    self._present = present
                    if shard in self._expected:
                        self._no_room_until = time.monotonic() + _NO_ROOM_S

    def _reserve(self, entry: ShardEntry) -> Reservation | Literal["found", "busy", "no room"]:
        try:
            if not self._is_prepared:
                self._folder.prepare()
                self._is_prepared = True
            return self._folder.reserve(entry, self._ranks.get)
        finally:
            with self._changed:
                self._is_reserving = False
                self._changed.notify_all()

    def _accept(self, shard: int, entry: ShardEntry) -> None:
        """Takes a copy from earlier if it is right, else deletes it, so that it is fetched."""
        path = self._folder.file(entry)
        try:
            is_sound = fetching.is_sound(path, entry)
        except FileNotFoundError:
            return
        except OSError:  # what cannot be read is as bad as what is wrong
            is_sound = False
        if not is_sound:
            path.unlink(missing_ok=True)
        elif self._folder.stamp(path.name):
            with self._changed:
                self.ready[shard] = path
                self._reused += 1

    def _piece(self, shard: int, fetch: Fetch, offset: int) -> None:
        with self._reported(shard, fetch):
            num_bytes = fetch.read_piece(offset)
            with self._changed:
                self._fetched_bytes += num_bytes
                fetch.to_land -= 1
                is_whole = fetch.to_land == 0
            if is_whole:
                self._finish(shard, fetch)

    def _finish(self, shard: int, fetch: Fetch) -> None:
        path = fetching.finish(self._folder, fetch)
        with self._changed:
            if path is None:
                self._refetches += 1
                fetch.restart()
                return
            fetch.reservation = None
            fetch.ended.set()
            self.ready[shard] = path
            self.failed.pop(shard, None)
            self._files += 1

    @contextmanager
    def _reported(self, shard: int, fetch: Fetch) -> Iterator[None]:
        """Around a thread's work on a fetch: what goes wrong ends the fetch, and is kept for the user."""
        error: Exception | None = None
        try:
            yield
        except fetching.Stopped:
            pass
        except Exception as failure:  # kept for error(), which a reader raises or falls back from
            error = failure
        with self._changed:
            fetch.in_flight -= 1
            if isinstance(error, FolderError):
                self._turn_off(error)
            elif error is not None:
                may_pass = isinstance(error, FetchError) and error.may_pass
                again = time.monotonic() + self._patience_s if may_pass else float("inf")
                self.failed[shard] = error, again
                fetch.ended.set()
            self._changed.notify_all()

    def _turn_off(self, error: FolderError) -> None:
        self._is_off = True
        self.advice = (
            f"the cache of shards in {self._folder.path} cannot be written: {error.strerror}. What is in it stays in use; the "
            f"rest is read from the store block by block, which is slower. Free some space there, or give another cache_folder "
            f"or a smaller cache_bytes (now {self._folder.budget_bytes})."
        )
        for fetch in self._fetches.values():
            fetch.ended.set()

    def _advise_more(self, entry: ShardEntry) -> None:
        self.advice = (
            f"{entry.path} has {entry.bytes} bytes and the cache of shards may hold {self._folder.budget_bytes}: it is "
            f"read from the store block by block, which is slower. Give cache_bytes of several shards."
        )

    def _drop(self, shard: int) -> None:
        fetch = self._fetches.pop(shard)
        self._failures += fetch.failures
        fetch.close()
        if fetch.reservation is not None:
            self._folder.give_up(fetch.reservation)
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
                failures=self._failures + sum(fetch.failures for fetch in self._fetches.values()),
                resident_bytes=self._folder.resident_bytes(),
            )
