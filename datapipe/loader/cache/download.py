"""The download of one shard from an object store into the cache: ranges by several threads, then a check of the whole file.

    Root  ──▶  ranged reads of RANGE_BYTES  ──▶  the reserved file  ──▶  size and checksum of the file on disk  ──▶  final name
               retried until patience ends                              wrong: fetched again, up to REFETCHES times

Each read is one request. pyarrow does not let a process end before its requests have ended, so with one request a process that
ends during a stall waits for one timeout, not for five.

Failures are sorted by what helps: waiting (timeouts, resets, 5xx, stalls), fetching again (a flipped bit), or nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import xxhash

from datapipe.errors import CorruptionError, DatapipeError
from datapipe.loader.cache.folder import CacheFolder, Reservation, write_at
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage import Root

RANGE_BYTES = 4 << 20
REFETCHES = 2
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 15.0
_CHECK_BYTES = 1 << 20
_Answer = TypeVar("_Answer")
_LASTING = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY_ID",
    "NO_SUCH_BUCKET",
    "NO_SUCH_KEY",
    "RESOURCE_NOT_FOUND",
    "SIGNATURE_DOES_NOT",
)
"""Parts of the text of pyarrow's OSErrors that mark answers which waiting does not change; the errors carry no code."""


class DownloadError(DatapipeError, OSError):
    """A shard could not be fetched. `may_pass` tells whether a later attempt may succeed."""

    may_pass = False


class DownloadCancelled(Exception):  # noqa: N818 (not an error)
    """The download is not needed any more."""


@dataclass(kw_only=True, slots=True, eq=False)
class ShardDownload:
    """The download of a shard. The scheduler hands its ranges to threads, under its lock; each thread calls `read_range`.

    Attributes:
        root, entry: the snapshot and the shard.
        patience_s: seconds that the store may fail without a break.
        ended: set when the download is complete, failed or cancelled.
        reservation: the file for the bytes; None before there is room.
        waiting: byte offsets of the ranges that no thread has taken yet.
        num_missing: ranges that are not on the disk yet. The thread that stores the last one checks the file.
        in_flight: threads that work on this download.
        refetches: times that the checksum was wrong.
        failures: requests that failed.
    """

    root: Root
    entry: ShardEntry
    patience_s: float
    ended: threading.Event = field(default_factory=threading.Event)
    reservation: Reservation | None = None
    waiting: list[int] = field(default_factory=list)
    num_missing: int = 0
    in_flight: int = 0
    refetches: int = 0
    failures: int = 0
    failing_since: float | None = None
    stream: pa.NativeFile | None = None

    def open(self) -> None:
        """Opens the object and compares its size with the manifest."""
        self.stream = stream = self._patiently(lambda: self.root.trying_once().open_input(self.entry.path))
        num_bytes = self._patiently(stream.size)
        if num_bytes != self.entry.bytes:
            raise CorruptionError(
                f"{self.entry.path} of {self.root.url}: {num_bytes} bytes, expected {self.entry.bytes}: the object was "
                f"truncated or replaced. Restore it from a copy, or run the mixture again"
            )

    def restart(self) -> None:
        """Schedules all ranges, from the first on."""
        self.waiting = list(range(0, max(1, self.entry.bytes), RANGE_BYTES))[::-1]
        self.num_missing = len(self.waiting)

    def read_range(self, offset: int) -> int:
        """Fetches and stores the range at byte `offset`. Returns its size in bytes."""
        wanted = min(RANGE_BYTES, self.entry.bytes - offset)
        content = self._patiently(lambda: self._read(wanted, offset))
        assert self.reservation is not None
        write_at(self.reservation.descriptor, content, offset)
        return wanted

    def close(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()

    def _read(self, wanted: int, offset: int) -> bytes:
        assert self.stream is not None
        content = self.stream.read_at(wanted, offset)
        if len(content) != wanted:
            raise OSError(f"{len(content)} bytes at offset {offset}, expected {wanted}")
        return content

    def _patiently(self, request: Callable[[], _Answer]) -> _Answer:
        """The answer to a request, which is retried with growing pauses for `patience_s`."""
        pause_s = FIRST_PAUSE_S
        while not self.ended.is_set():
            try:
                answer = request()
            except OSError as error:
                self.failures += 1
                self.failing_since = time.monotonic() if self.failing_since is None else self.failing_since
                failing_s = time.monotonic() - self.failing_since
                if isinstance(error, FileNotFoundError) or any(mark in str(error) for mark in _LASTING):
                    raise self._refused(error) from error
                if failing_s + pause_s > self.patience_s:
                    raise self._given_up(error, failing_s) from error
                self.ended.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                self.failing_since = None
                return answer
        raise DownloadCancelled

    def _refused(self, error: OSError) -> DownloadError:
        return DownloadError(
            f"{self.entry.path} of {self.root.url}: the object is missing, or access to it is denied: {error}. "
            f"Expected {self.entry.bytes} bytes. Check the credentials, and that the object was not deleted; "
            f"`datapipe verify` lists all missing files"
        )

    def _given_up(self, error: OSError, failing_s: float) -> DownloadError:
        given_up = DownloadError(
            f"{self.entry.path} of {self.root.url}: the store has failed for {failing_s:.0f} s: {error}. "
            f"The download is tried again later. If the store is only slow, raise request_timeout in its URL"
        )
        given_up.may_pass = True
        return given_up


def checksum_error(root: Root, entry: ShardEntry, checksum: str, times: int) -> CorruptionError:
    return CorruptionError(
        f"{entry.path} of {root.url}: checksum {checksum}, expected {entry.checksum}, {times} times in a row: the object is "
        f"damaged in the store. Restore it from a copy, or run the mixture again"
    )


def descriptor_checksum(descriptor: int) -> str:
    """Checksum of an open local file.

    The file is read and not mapped: a failing disk then raises an OSError, where a map would kill the process.
    """
    hasher, buffer, offset = xxhash.xxh3_128(), bytearray(_CHECK_BYTES), 0
    with memoryview(buffer) as view:
        while num_read := os.preadv(descriptor, [buffer], offset):
            hasher.update(view[:num_read])
            offset += num_read
    return f"xxh3_128:{hasher.hexdigest()}"


def is_sound(path: Path, entry: ShardEntry) -> bool:
    """Whether an earlier copy has the size and checksum of the manifest. Raises FileNotFoundError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor).st_size == entry.bytes and descriptor_checksum(descriptor) == entry.checksum
    finally:
        os.close(descriptor)


def finish_download(folder: CacheFolder, download: ShardDownload) -> Path | None:
    """Commits a file with the right checksum; None if it must be fetched again. Raises CorruptionError past REFETCHES."""
    assert download.reservation is not None
    checksum = descriptor_checksum(download.reservation.descriptor)
    if checksum == download.entry.checksum:
        return folder.commit(download.reservation)
    download.refetches += 1
    if download.refetches > REFETCHES:
        raise checksum_error(download.root, download.entry, checksum, download.refetches)
    return None
