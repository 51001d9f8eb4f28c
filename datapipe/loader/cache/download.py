"""The download of one shard from an object store into the cache: range after range, then a check of the whole file.

    Root  ──▶  ranged reads of RANGE_BYTES  ──▶  the reserved file  ──▶  size and checksum of the file on disk  ──▶  final name
               retried for `most_s` seconds                             wrong: fetched again, up to REFETCHES times

Each read is one request without retries by pyarrow, which does not let a process end before its requests have ended.
Failures are sorted by what helps: waiting (timeouts, resets, 5xx, stalls), fetching again (a flipped bit), or nothing.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from datapipe.errors import CorruptionError
from datapipe.loader.cache.folder import CacheFolder, Reservation, disk_errors
from datapipe.machine.files import write_at
from datapipe.machine.retries import RetryPolicy, retry_io
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage.root import Root
from datapipe.storage.written import chunks_checksum

RANGE_BYTES = 4 << 20
REFETCHES = 2
_POLICY = RetryPolicy(first_s=0.1, longest_s=15.0)
_CHECK_BYTES = 1 << 20
_Answer = TypeVar("_Answer")


class StoreFailsError(Exception):
    """The store has failed for too long. A later attempt may succeed."""


class DownloadCancelled(Exception):  # noqa: N818 (not an error)
    """The download is not needed any more."""


class ShardDownload:
    """The download of a shard, by one thread. It ends when `ended` is set."""

    def __init__(self, root: Root, entry: ShardEntry, most_s: float) -> None:
        self.ended = threading.Event()
        self._root, self._entry, self._most_s = root, entry, most_s
        self._failing_since: float | None = None

    def run(self, folder: CacheFolder, reservation: Reservation, between: Callable[[], None]) -> Path:
        """Fetches the shard into the reserved file, and commits it; calls `between` after each range. Raises FolderError,
        StoreFailsError, or what no later attempt repairs: CorruptionError and FileNotFoundError."""
        entry, checksum = self._entry, ""
        with closing(self._retry_io(lambda: self._root.trying_once().open_input(entry.path))) as stream:
            num_bytes = self._retry_io(stream.size)
            if num_bytes != entry.bytes:
                raise CorruptionError(f"{entry.path}: {num_bytes} bytes, expected {entry.bytes}")
            for _ in range(REFETCHES + 1):
                for offset in range(0, entry.bytes, RANGE_BYTES):
                    content = self._retry_io(lambda offset=offset: self._read(stream, offset))
                    with disk_errors():
                        write_at(reservation.descriptor, content, offset)
                    between()
                checksum = descriptor_checksum(reservation.descriptor)
                if checksum == entry.checksum:
                    return folder.commit(reservation)
        raise CorruptionError(f"{entry.path}: checksum {checksum}, expected {entry.checksum}")

    def _read(self, stream: pa.NativeFile, offset: int) -> bytes:
        wanted = min(RANGE_BYTES, self._entry.bytes - offset)
        content = stream.read_at(wanted, offset)
        if len(content) != wanted:
            raise OSError(f"{len(content)} bytes at offset {offset}, expected {wanted}")
        return content

    def _retry_io(self, request: Callable[[], _Answer]) -> _Answer:
        def attempt() -> _Answer:
            if self.ended.is_set():
                raise DownloadCancelled
            return request()

        answer = retry_io(attempt, self._pause_after, self.ended.wait)
        self._failing_since = None
        return answer

    def _pause_after(self, error: OSError, number: int) -> float:
        self._failing_since = self._failing_since or time.monotonic()
        pause_s = _POLICY.pause_s(number)
        if isinstance(error, FileNotFoundError):
            raise error
        if time.monotonic() - self._failing_since + pause_s > self._most_s:
            raise StoreFailsError from error
        return pause_s


def descriptor_checksum(descriptor: int) -> str:
    """Checksum of an open local file, which is read: on a failing disk, a map would kill the process."""
    offsets = range(0, os.fstat(descriptor).st_size, _CHECK_BYTES)
    return chunks_checksum(os.pread(descriptor, _CHECK_BYTES, offset) for offset in offsets)[0]


def is_sound(path: Path, entry: ShardEntry) -> bool:
    """Whether an earlier copy has the size and checksum of the manifest. Raises FileNotFoundError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor).st_size == entry.bytes and descriptor_checksum(descriptor) == entry.checksum
    finally:
        os.close(descriptor)
