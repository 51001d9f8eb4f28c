"""The activity of this process, written before the work begins to memory that outlives the process.

    worker:   doing("filter.length") ─▶ on_documents(…) ─▶ the stage runs        supervisor, at any time:
                       └────────────────────┴─▶ block of shared memory ─────────▶ count of messages, latest `Activity`

A native call may crash, or hold the interpreter for ever, so nothing can be sent when it matters: the worker writes before it
calls. A message is one copy into memory: about 10 µs for each stage and batch, which takes 10 ms
and more. The state is one for the process, because kernels that are compiled, a thousand calls
below the task, report too. Without a block, as in tests and benchmarks, nothing is written.
"""

import marshal
import mmap
import os
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from datapipe.dataclass import dataclass, replace

_HEAD = struct.Struct("<QI")  # number of messages, CRC-32 of the body
_MOST_CHARS = 160, 320  # of the work and the place, of at most four bytes each
BLOCK_BYTES = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    work: str = ""  # a stage, or other work by its name in the metrics; empty between two
    # the id of the first document of the batch, or the position in an input file; empty for work on rows
    place: str = ""
    key: bytes = b""  # of the first document, 16 bytes; empty where the work is on no documents
    # num_docs, num_bytes: of the batch; 0 where unknown
    num_docs: int = 0
    num_bytes: int = 0
    is_waiting: bool = False  # for another process of this machine, which will end or die

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


class ActivityBlock:
    """Shared memory with the latest message of one process: an open file of `BLOCK_BYTES`."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, BLOCK_BYTES)
        self._count = 0

    def write(self, activity: Activity) -> None:
        self._count += 1
        texts = (text[:most] for text, most in zip((activity.work, activity.place), _MOST_CHARS))
        numbers = int(activity.num_docs), int(activity.num_bytes), activity.is_waiting
        body = marshal.dumps((*texts, activity.key, *numbers)).ljust(BLOCK_BYTES - _HEAD.size, b"\0")
        self._memory[:] = _HEAD.pack(self._count, zlib.crc32(body)) + body

    def read(self) -> tuple[int, Activity] | None:
        """The number of messages, and the latest; None during a write, or before the first."""
        content = self._memory[:]
        count, checksum = _HEAD.unpack_from(content)
        if count == 0 or zlib.crc32(content[_HEAD.size :]) != checksum:
            return None
        work, place, key, num_docs, num_bytes, is_waiting = marshal.loads(content[_HEAD.size :])
        of_documents = {"key": key, "num_docs": num_docs, "num_bytes": num_bytes}
        return count, Activity(work=_printable(work), place=_printable(place), is_waiting=is_waiting, **of_documents)

    def close(self) -> None:
        self._memory.close()


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def shared_file(num_bytes: int = 0) -> int:
    """A descriptor of a file in memory, of zeros, that children may inherit: on Linux, elsewhere an unlinked file on disk."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("datapipe")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.write(descriptor, bytes(num_bytes))  # a hole in the file ends the process where the disk is full
    return descriptor


class _Published:
    block: ActivityBlock | None = None
    activity = Activity()


def publish_to(block: ActivityBlock | None) -> None:
    """From now on this process writes to `block`, or not at all."""
    _Published.block = block
    _publish(Activity())


@contextmanager
def doing(work: str, num_bytes: int = 0, *, is_waiting: bool = False) -> Iterator[None]:
    """A block of `work`. At its end the process is back at the work before."""
    if _Published.block is None:
        yield
        return
    before = _Published.activity
    _publish(Activity(work=work, num_bytes=num_bytes, is_waiting=is_waiting))
    try:
        yield
    finally:
        _publish(before)


def is_published() -> bool:
    """Whether messages are written, so that an expensive one is worth its cost."""
    return _Published.block is not None


def at_place(place: str) -> None:
    if _Published.block is not None:
        _publish(replace(_Published.activity, place=place))


def on_documents(place: str, key: bytes, num_docs: int, num_bytes: int) -> None:
    if _Published.block is not None:
        _publish(replace(_Published.activity, place=place, key=key, num_docs=num_docs, num_bytes=num_bytes))


def progress() -> None:
    """Publishes that the work goes on: one more of its many parts is done."""
    if _Published.block is not None:
        _publish(_Published.activity)


def _publish(activity: Activity) -> None:
    _Published.activity = activity
    if _Published.block is not None:
        _Published.block.write(activity)


_starting = [0.0]  # seconds of all blocks of `starting`


def work_clock() -> float:
    """Seconds of this process without those of `starting`: the time of repeated work."""
    return perf_counter() - _starting[0]


@contextmanager
def starting() -> Iterator[None]:
    """A block that only the first use of something takes. It is not charged to work."""
    began = work_clock()
    try:
        yield
    finally:
        _starting[0] += work_clock() - began  # without those of blocks inside
