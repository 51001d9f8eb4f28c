"""One shard's way from an object store into the cache: pieces by several threads, then one look at the whole.

    Root  ──▶  ranged reads of PIECE_BYTES  ──▶  the reserved file  ──▶  size, xxh3 of what is now on the disk  ──▶  its name
               tried again until patience ends                          wrong: all of it once more, REFETCHES times

Each read is one request, so that a process that ends in a stall waits for one timeout at most (pyarrow lets none go before its
requests have ended: 8.5 s, where five attempts made it 52 s).

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
from datapipe.shards.manifest import ShardEntry
from datapipe.storage import Root

PIECE_BYTES = 4 << 20
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
"""In the text of pyarrow's OSErrors, which have no other mark: answers that waiting does not change."""


class FetchError(DatapipeError, OSError):
    """A shard could not be fetched; `may_pass` tells whether it is worth trying again."""

    may_pass = False


class Stopped(Exception):  # noqa: N818 (nothing went wrong)
    """The fetch is not wanted any more."""


@dataclass(kw_only=True, slots=True, eq=False)
class Fetch:
    """A shard on its way. The cache hands its pieces to threads, under its lock; each thread reads with `read_piece`.

    Attributes:
        root, entry: what is fetched.
        patience_s: for how long in a row the store may fail.
        ended: set when nobody wants this any more.
        reservation: where the bytes go; None before there is room.
        waiting: offsets of the pieces that nobody has taken yet.
        to_land: pieces that are not on the disk yet; who stores the last one looks at the whole.
        in_flight: threads that are at work on this.
        refetches: how often it came wrong.
    """

    root: Root
    entry: ShardEntry
    patience_s: float
    ended: threading.Event = field(default_factory=threading.Event)
    reservation: Reservation | None = None
    waiting: list[int] = field(default_factory=list)
    to_land: int = 0
    in_flight: int = 0
    refetches: int = 0
    failures: int = 0
    failing_since: float | None = None
    stream: pa.NativeFile | None = None

    def open(self) -> None:
        """Opens the object and holds its size against the manifest."""
        self.stream = stream = self._patiently(lambda: self.root.trying_once().open_input(self.entry.path))
        found = self._patiently(stream.size)
        if found != self.entry.bytes:
            raise CorruptionError(
                f"{self.entry.path} of {self.root.url}: {found} bytes, expected {self.entry.bytes}: it was cut or replaced. "
                f"Restore it from a copy, or run the mixture again"
            )

    def restart(self) -> None:
        """Asks for all pieces, from the first on."""
        self.waiting = list(range(0, max(1, self.entry.bytes), PIECE_BYTES))[::-1]
        self.to_land = len(self.waiting)

    def read_piece(self, offset: int) -> int:
        """Fetches and stores the piece at `offset`; its size in bytes."""
        wanted = min(PIECE_BYTES, self.entry.bytes - offset)
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
            raise OSError(f"{len(content)} bytes came of {wanted} at {offset}")
        return content

    def _patiently(self, request: Callable[[], _Answer]) -> _Answer:
        """The answer to a request, which is repeated with growing pauses for as long as `patience_s` lasts."""
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
        raise Stopped

    def _refused(self, error: OSError) -> FetchError:
        return FetchError(
            f"{self.entry.path} of {self.root.url}: the store has no such object, or does not give it to you: {error}. "
            f"Expected {self.entry.bytes} bytes. Check the credentials and that nothing was deleted; "
            f"`datapipe verify` lists all that is missing"
        )

    def _given_up(self, error: OSError, failing_s: float) -> FetchError:
        given_up = FetchError(
            f"{self.entry.path} of {self.root.url}: the store has failed for {failing_s:.0f} s: {error}. "
            f"It is tried again later; if the store is only slow, set request_timeout in its URL higher"
        )
        given_up.may_pass = True
        return given_up


def wrong_checksum(root: Root, entry: ShardEntry, found: str, times: int) -> CorruptionError:
    return CorruptionError(
        f"{entry.path} of {root.url}: checksum {found}, expected {entry.checksum}, {times} times in a row: its bytes are "
        f"damaged where they are stored. Restore it from a copy, or run the mixture again"
    )


def descriptor_checksum(descriptor: int) -> str:
    """xxh3 of an open local file; from the page cache, where it was just written.

    Read rather than mapped, so that a disk that fails raises an OSError and does not kill the process.
    """
    hasher, buffer, offset = xxhash.xxh3_128(), bytearray(_CHECK_BYTES), 0
    with memoryview(buffer) as view:
        while num_read := os.preadv(descriptor, [buffer], offset):
            hasher.update(view[:num_read])
            offset += num_read
    return f"xxh3_128:{hasher.hexdigest()}"


def is_sound(path: Path, entry: ShardEntry) -> bool:
    """Whether a copy from earlier is as the manifest says. Raises FileNotFoundError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor).st_size == entry.bytes and descriptor_checksum(descriptor) == entry.checksum
    finally:
        os.close(descriptor)


def finish(folder: CacheFolder, fetch: Fetch) -> Path | None:
    """Names the file if it is right; None if it must be fetched again. Raises CorruptionError when that was tried enough."""
    assert fetch.reservation is not None
    found = descriptor_checksum(fetch.reservation.descriptor)
    if found == fetch.entry.checksum:
        return folder.commit(fetch.reservation)
    fetch.refetches += 1
    if fetch.refetches > REFETCHES:
        raise wrong_checksum(fetch.root, fetch.entry, found, fetch.refetches)
    return None
