"""A folder of whole shard files that several processes fill and clear together, within one budget.

    <folder>/8f3c….arrow     a shard, named by its checksum: any snapshot that has this shard may use it
    <folder>/8f3c….part      one that is being fetched, by the process that holds its flock; as long on disk as it will be

Every decision is made under a flock of the folder itself, so the sizes of shards and of `.part` files never add up to more than
the budget, however many processes decide. The kernel releases both locks when their holder dies, also by SIGKILL: whoever meets
a `.part` file that nobody holds takes it over or deletes it. There is no other state, and nothing to repair.

A process stamps the files that it still expects (their time of modification is when it did so last), and does not delete what
another one stamped in the last minute. A file that another process has mapped can be deleted nevertheless: on Linux its bytes
stay readable, and on the disk, until they are unmapped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from datapipe.shards.manifest import ShardEntry

CLAIM_S = 60.0
"""For how long a stamp keeps a file from being deleted by another process; stamps are renewed three times as often."""

Rank = Callable[[str], int | None]

_NAME = re.compile(r"[0-9a-f]{32}\.(arrow|parquet|part)")


def default_folder() -> Path:
    """$XDG_CACHE_HOME/datapipe/shards, or the same below ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "datapipe" / "shards"


class FolderError(OSError):
    """The local disk refused: it is full, read-only or broken. Never a fault of the object store."""


@dataclass(kw_only=True, slots=True)
class Reservation:
    """Room for one file, locked until it is committed or given up.

    Attributes:
        descriptor: of the `.part` file, open for reading and writing, as long as the shard will be.
        name: of the finished file.
    """

    descriptor: int
    name: str


class CacheFolder:
    """One process's view of the folder.

    Args:
        budget_bytes: of all its files together, those of other processes and snapshots included.
    """

    def __init__(self, path: Path, budget_bytes: int) -> None:
        self.path = path
        self.budget_bytes = budget_bytes
        self.num_evicted = 0
        self._stamps: dict[str, int] = {}  # name -> the time we gave it, ns
        self._stamping = threading.Lock()

    def file(self, entry: ShardEntry) -> Path:
        """Where the copy of a shard is, if there is one."""
        return self.path / f"{_digest(entry)}{Path(entry.path).suffix}"

    def prepare(self) -> None:
        """Makes the folder, and deletes what processes left in it that were killed while they fetched."""
        with _disk_errors():
            self.path.mkdir(parents=True, exist_ok=True)
        with self._locked():
            for name in self._sizes():
                if name.endswith(".part") and (descriptor := self._lock_part(self.path / name)) is not None:
                    (self.path / name).unlink()
                    os.close(descriptor)

    def reserve(
        self, entry: ShardEntry, rank: Callable[[str], int | None]
    ) -> Reservation | Literal["found", "busy", "no room"]:
        """Makes room for a shard, deleting what is needed least.

        Args:
            rank: of a file's name: when it will be used next, from 0, or None where it is not expected.

        Returns:
            A reservation; or that the shard is there; or that another process is fetching it; or that everything in the folder
            is needed sooner, or by another process.
        """
        final = self.file(entry)
        own_rank = rank(final.name)  # None where it was expected, and is not any more
        with self._locked():
            if final.exists():
                return "found"
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
        """Gives the file its name. Not synced: after a power cut its checksum is wrong, and it is fetched again."""
        final = self.path / reservation.name
        with self._locked():  # so that nobody finds neither of the two names, and begins again
            os.replace(final.with_suffix(".part"), final)
            self.stamp(reservation.name)
        _release(reservation.descriptor)
        return final

    def give_up(self, reservation: Reservation) -> None:
        """Frees the room of a file that will not be finished; where the disk refuses even that, the next process does it."""
        with suppress(OSError):
            (self.path / reservation.name).with_suffix(".part").unlink(missing_ok=True)
        _release(reservation.descriptor)

    def stamp(self, name: str) -> bool:
        """Claims a file for another minute; whether it is still there."""
        now = time.time_ns()
        with _disk_errors(), self._stamping:  # or another thread's time would be taken for another process's
            try:
                os.utime(self.path / name, ns=(now, now))
                self._stamps[name] = os.stat(self.path / name).st_mtime_ns
            except FileNotFoundError:
                return False
            except PermissionError:  # another user's, who may share the folder
                return True
        return True

    def names(self) -> set[str]:
        """Of all files in the folder."""
        with _disk_errors():
            return set(self._sizes()) if self.path.is_dir() else set()

    def resident_bytes(self) -> int:
        """Of all files in the folder, those being fetched at their full size."""
        return sum(self._sizes().values()) if self.path.is_dir() else 0

    def _make_room(self, wanted: int, part: str, own_rank: int, rank: Rank) -> bool:
        sizes = self._sizes()
        free = self.budget_bytes - sum(size for name, size in sizes.items() if name != part) - wanted
        evictable: list[tuple[float, str]] = []
        for name in sizes:
            if _NAME.fullmatch(name) is None or name.endswith(".part"):
                continue
            their_rank = rank(name)
            if self._is_claimed(name):
                continue
            if their_rank is None:
                evictable.append((float("inf"), name))
            elif their_rank > own_rank:
                evictable.append((their_rank, name))
        if free + sum(sizes[name] for _, name in evictable) < 0:
            return False
        for _, name in sorted(evictable, reverse=True):
            if free >= 0:
                break
            (self.path / name).unlink(missing_ok=True)
            self._stamps.pop(name, None)
            self.num_evicted += 1
            free += sizes[name]
        return True

    def _is_claimed(self, name: str) -> bool:
        """Whether another process stamped the file last, and not long ago."""
        try:
            stamp = os.stat(self.path / name).st_mtime_ns
        except FileNotFoundError:
            return False
        return stamp != self._stamps.get(name) and time.time_ns() - stamp < CLAIM_S * 1e9

    def _sizes(self) -> dict[str, int]:
        """Bytes of each file; folders are not ours and not counted."""
        sizes = {}
        with os.scandir(self.path) as found:
            for item in found:
                try:
                    if item.is_file(follow_symlinks=False):
                        sizes[item.name] = item.stat(follow_symlinks=False).st_size
                except FileNotFoundError:  # finished or deleted since the folder was listed
                    continue
        return sizes

    def _lock_part(self, part: Path, *, create: bool = False) -> int | None:
        """Opens and locks a `.part` file that nobody holds; None where somebody does, or where there is none.

        Between opening and locking, its holder may have finished it: then what was locked goes by its final name, and must not
        be touched. Files are created under the lock of the folder, so one look at the name tells.
        """
        try:
            descriptor = os.open(part, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(part) and os.stat(part).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with _disk_errors():
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                _release(descriptor)


def _digest(entry: ShardEntry) -> str:
    return entry.checksum.rpartition(":")[2]


def _release(descriptor: int) -> None:
    """Unlocks at once, also where a fork copied the descriptor, and closes."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except FolderError:
        raise
    except OSError as error:
        raise FolderError(error.errno or errno.EIO, os.strerror(error.errno or errno.EIO), error.filename) from error


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """Writes all of `content` at `offset`. Raises FolderError."""
    with _disk_errors():
        view = memoryview(content)
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written
