"""What this process is at, told before the work begins, in memory that outlives the process.

    worker:   doing("filter.length") ─▶ on_documents(…) ─▶ the stage runs        supervisor, at any time:
                       └────────────────────┴─▶ page of shared memory ──────────▶ count of messages, latest `Activity`

A native call may crash, or hold the interpreter for ever, so nothing can be sent when it matters: the worker writes before it
calls. A message is one copy of `PAGE_BYTES` into memory: about 10 µs for each stage and batch, which takes 10 ms and more. The
page belongs to the supervisor and survives any end of the worker. The state is one for the process, because a kernel that is
compiled, a thousand calls below the task, has something to tell too. Without a page, as in tests and benchmarks, nothing is
written.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter

_HEAD = struct.Struct("<QI")  # number of messages, CRC-32 of the body
_BODY = struct.Struct("<QQ?16s160s320s")  # documents, bytes, is_waiting, key, work, place; texts end in zero bytes
PAGE_BYTES = _HEAD.size + _BODY.size


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """What a process is at.

    Attributes:
        work: a stage, or other work by the name that the metrics give it; empty between two.
        place: the id of the first document in hand, or the position in an input file; empty for work on rows.
        key: of the first document, 16 bytes; empty where the work is on no documents.
        num_docs, num_bytes: in hand; 0 where nobody knows.
        is_waiting: for another process of this machine, which will end or die: it cannot go faster.
    """

    work: str = ""
    place: str = ""
    key: bytes = b""
    num_docs: int = 0
    num_bytes: int = 0
    is_waiting: bool = False

    @property
    def is_on_documents(self) -> bool:
        return bool(self.key) and self.num_docs > 0

    def __str__(self) -> str:
        if not self.work:
            return "between two pieces of work"
        if not self.is_on_documents:
            return f"{self.work}, at {self.place}" if self.place else self.work
        documents = "the document" if self.num_docs == 1 else f"{self.num_docs:,} documents, from"
        return f"{self.work} on {documents} {self.place}"


class Page:
    """Shared memory with the latest message of one process.

    Args:
        descriptor: of a file of `PAGE_BYTES`; the page does not close it.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, PAGE_BYTES)
        self._count = 0

    def write(self, activity: Activity) -> None:
        """Replaces the message."""
        self._count += 1
        body = _BODY.pack(
            activity.num_docs,
            activity.num_bytes,
            activity.is_waiting,
            activity.key,
            _shortened(activity.work, 160),
            _shortened(activity.place, 320),
        )
        self._memory[:] = _HEAD.pack(self._count, zlib.crc32(body)) + body

    def read(self) -> tuple[int, Activity] | None:
        """How many messages were written, and the latest; None while one is being written, or before the first."""
        content = self._memory[:]
        count, checksum = _HEAD.unpack_from(content)
        body = content[_HEAD.size :]
        if count == 0 or zlib.crc32(body) != checksum:
            return None
        num_docs, num_bytes, is_waiting, key, work, place = _BODY.unpack(body)
        activity = Activity(
            work=_text(work),
            place=_text(place),
            key=key if key.strip(b"\0") else b"",
            num_docs=num_docs,
            num_bytes=num_bytes,
            is_waiting=is_waiting,
        )
        return count, activity

    def close(self) -> None:
        self._memory.close()


def _shortened(text: str, num_bytes: int) -> bytes:
    """UTF-8 of at most `num_bytes`, without zero bytes and without half a character."""
    content = text[:num_bytes].replace("\0", " ").encode("utf-8", "replace")
    return content if len(content) <= num_bytes else content[:num_bytes].decode("utf-8", "ignore").encode()


def _text(content: bytes) -> str:
    """Text of a message for display. An id of a document may hold control characters."""
    text = content.rstrip(b"\0").decode("utf-8", "replace")
    return text if text.isprintable() else "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def shared_file(num_bytes: int = 0) -> int:
    """A descriptor of a file in memory, of zeros, that children may inherit: on Linux, elsewhere an unlinked file on disk."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("datapipe")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.write(descriptor, bytes(num_bytes))  # a page of a file with a hole ends the process where the disk is full
    return descriptor


# ------------------------------------------------------------------------------------------------ told by the worker


@dataclass(slots=True)
class _Told:
    """The state of this process."""

    page: Page | None = None
    activity: Activity = Activity()


_told = _Told()


def tell_to(page: Page | None) -> None:
    """From now on this process writes to `page`; None: to nobody."""
    _told.page = page
    _tell(Activity())


@contextmanager
def doing(work: str, num_bytes: int = 0, *, is_waiting: bool = False) -> Iterator[None]:
    """Tells that this process begins with `work`, and at the end of the block that it is back at what it did before."""
    if _told.page is None:
        yield
        return
    before = _told.activity
    _tell(Activity(work=work, num_bytes=num_bytes, is_waiting=is_waiting))
    try:
        yield
    finally:
        _tell(before)


def is_told() -> bool:
    """Whether anybody reads what this process tells, so that an expensive message is worth its making."""
    return _told.page is not None


def at_place(place: str) -> None:
    """Tells where in its input the work is."""
    if _told.page is not None:
        _tell(replace(_told.activity, place=place))


def on_documents(place: str, key: bytes, num_docs: int, num_bytes: int) -> None:
    """Tells the documents that the work gets next."""
    if _told.page is not None:
        _tell(replace(_told.activity, place=place, key=key, num_docs=num_docs, num_bytes=num_bytes))


def progress() -> None:
    """Tells that the work goes on: one more of its many parts is done."""
    if _told.page is not None:
        _tell(_told.activity)


def _tell(activity: Activity) -> None:
    _told.activity = activity
    if _told.page is not None:
        _told.page.write(activity)


# ---------------------------------------------------------------------------------------------------- time of work

_starting = [0.0]
"""Seconds of all blocks of `starting`."""


def work_clock() -> float:
    """Seconds of this process without those of `starting`: what work takes that is done again and again."""
    return perf_counter() - _starting[0]


@contextmanager
def starting() -> Iterator[None]:
    """A block that only the first use of something takes, such as loading compiled code. Work that needs it is not charged."""
    began = work_clock()
    try:
        yield
    finally:
        _starting[0] += work_clock() - began  # without those of blocks inside
