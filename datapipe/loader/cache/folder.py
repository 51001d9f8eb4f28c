"""A folder of complete shard files that several processes fill and evict from, within one budget.

    <folder>/8f3c….arrow     a shard, named by its checksum: any snapshot that has this shard may use it
    <folder>/8f3c….part      a shard in progress, owned by the process that holds its flock; allocated at its full size

Every decision is made under a flock of the folder, so shards and `.part` files never exceed the
budget together, for any number of processes. The operating system releases both locks when their
holder dies. A process that finds an unlocked `.part` file takes it over or deletes it.

A process stamps the files that it still expects (by their modification time), and does not delete
files that another process stamped in the last minute. A file that another process has mapped may be
deleted: its bytes stay readable until they are unmapped.
"""

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from datapipe.dataclass import dataclass
from datapipe.machine.files import lock_file, locked, release
from datapipe.shards.shard_table import ShardEntry

CLAIM_S = 60.0
"""The time that a stamp protects a file from other processes. Stamps are renewed three times as often."""

Rank = Callable[[str], int | None]
"""The name of a file -> its rank in the order of use, from 0; None for files that are not expected."""

_NAME = re.compile(r"[0-9a-f]{32}\.(arrow|parquet)")


class FolderError(OSError):
    """The local disk is full, read-only or broken. Never an error of the object store."""


@dataclass(kw_only=True, slots=True)
class Reservation:
    """Room for one file, locked until it is committed or given up."""

    descriptor: int  # of the `.part` file, allocated at the size of the shard
    name: str


class CacheFolder:
    """One process's view of the folder, whose files have at most `budget_bytes` together."""

    def __init__(self, path: Path, budget_bytes: int) -> None:
        self.path = path
        self.budget_bytes = budget_bytes
        self._stamps: dict[str, int] = {}  # name -> modification time that this process set, ns
        self._stamping = threading.Lock()

    def file(self, entry: ShardEntry) -> Path:
        return self.path / f"{entry.checksum.rpartition(':')[2]}{Path(entry.path).suffix}"

    def prepare(self) -> None:
        """Creates the folder, and deletes `.part` files of processes that were killed."""
        with disk_errors():
            self.path.mkdir(parents=True, exist_ok=True)
        with self._locked():
            for name in self._sizes():
                if name.endswith(".part") and (descriptor := self._lock_part(self.path / name)) is not None:
                    (self.path / name).unlink()
                    os.close(descriptor)

    def reserve(self, entry: ShardEntry, rank: Rank) -> Reservation | Literal["present", "busy", "no room"]:
        """Makes room for a shard, by deleting the files that are needed last.

        "present": the shard is in the folder. "busy": another process is fetching it. "no room":
        all files in the folder are needed earlier, or by another process.
        """
        final = self.file(entry)
        own_rank = rank(final.name)  # None if the shard is not expected any more
        with self._locked():
            if final.exists():
                return "present"
            part = final.with_suffix(".part")
            descriptor = self._lock_part(part, create=True)
            if descriptor is None:
                return "busy"
            try:
                if own_rank is None or not self._make_room(entry.bytes, part.name, own_rank, rank):
                    part.unlink()
                    os.close(descriptor)
                    return "no room"
                os.ftruncate(descriptor, 0)
                if entry.bytes:
                    os.posix_fallocate(descriptor, 0, entry.bytes)
            except BaseException:
                part.unlink(missing_ok=True)
                os.close(descriptor)
                raise
        return Reservation(descriptor=descriptor, name=final.name)

    def commit(self, reservation: Reservation) -> Path:
        """Gives the file its final name. The file is not synced: a torn one has a wrong checksum and is fetched again."""
        final = self.path / reservation.name
        with self._locked():  # otherwise another process could see neither name, and fetch the shard again
            os.replace(final.with_suffix(".part"), final)
            self.stamp(reservation.name)
        release(reservation.descriptor)
        return final

    def give_up(self, reservation: Reservation) -> None:
        """Deletes an unfinished file. If the disk fails, the next process deletes it."""
        with suppress(OSError):
            (self.path / reservation.name).with_suffix(".part").unlink(missing_ok=True)
        release(reservation.descriptor)

    def stamp(self, name: str) -> bool:
        """Claims a file for another minute. False if it does not exist any more."""
        now = time.time_ns()
        with disk_errors(), self._stamping:  # otherwise another thread's time could be taken for another process's
            try:
                os.utime(self.path / name, ns=(now, now))
                self._stamps[name] = os.stat(self.path / name).st_mtime_ns
            except FileNotFoundError:
                return False
            except PermissionError:  # a file of another user who shares the folder
                return True
        return True

    def names(self) -> set[str]:
        with disk_errors():
            return set(self._sizes()) if self.path.is_dir() else set()

    def _make_room(self, wanted: int, part: str, own_rank: int, rank: Rank) -> bool:
        sizes = self._sizes()
        free = self.budget_bytes - sum(size for name, size in sizes.items() if name != part) - wanted
        evictable: list[tuple[float, str]] = []
        for name in sizes:
            if _NAME.fullmatch(name) is None or self._is_claimed(name):
                continue
            their_rank = rank(name)
            if their_rank is None or their_rank > own_rank:
                evictable.append((float("inf") if their_rank is None else their_rank, name))
        if free + sum(sizes[name] for _, name in evictable) < 0:
            return False
        for _, name in sorted(evictable, reverse=True):
            if free >= 0:
                break
            (self.path / name).unlink(missing_ok=True)
            self._stamps.pop(name, None)
            free += sizes[name]
        return True

    def _is_claimed(self, name: str) -> bool:
        try:
            stamp = os.stat(self.path / name).st_mtime_ns
        except FileNotFoundError:
            return False
        return stamp != self._stamps.get(name) and time.time_ns() - stamp < CLAIM_S * 1e9

    def _sizes(self) -> dict[str, int]:
        sizes = {}
        with os.scandir(self.path) as items:
            for item in items:
                try:
                    if item.is_file(follow_symlinks=False):
                        sizes[item.name] = item.stat(follow_symlinks=False).st_size
                except FileNotFoundError:  # finished or deleted since the folder was listed
                    continue
        return sizes

    def _lock_part(self, part: Path, *, create: bool = False) -> int | None:
        """Opens and locks a `.part` file; None if another process holds it, or if there is none. The holder may finish the
        file between the open and the lock. The locked file then has its final name."""
        try:
            descriptor = lock_file(part, is_created=create)
        except (BlockingIOError, FileNotFoundError):
            return None
        with suppress(FileNotFoundError):
            if os.stat(part).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)
        return None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with disk_errors(), locked(self.path, wait=True):
            yield


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raises errors of the local disk as FolderError."""
    try:
        yield
    except FolderError:
        raise
    except OSError as error:
        raise FolderError(error.errno or errno.EIO, os.strerror(error.errno or errno.EIO), error.filename) from error
