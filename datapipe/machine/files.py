"""Local files that processes share: locks that end with their process, and files that appear whole.

A new file is written beside its target, flushed where a power cut must not lose it, and renamed. A
killed process leaves the temporary file, whose name `UNFINISHED` matches.
"""

import fcntl
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

_SYNCS = 8

UNFINISHED = re.compile(r"(.*/)?\.[^/]+\.[0-9a-f]{32}\.tmp")


def lock_file(path: Path, *, wait: bool = False, is_created: bool = True) -> int:
    """Locks a file, or a folder that exists, by flock, which ends with the process. Returns its descriptor, for `release`.
    Raises BlockingIOError where another process holds the lock and `wait` is false, and OSError
    where the file cannot be opened, or its file system has no locks."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | (os.O_CREAT if is_created else 0)
    descriptor = os.open(path, flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def release(descriptor: int) -> None:
    """Unlocks and closes a file, also where a fork has copied the descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[int]:
    """Holds the lock of a file, which is created where it is missing. Raises as `lock_file`."""
    descriptor = lock_file(path, wait=wait)
    try:
        yield descriptor
    finally:
        release(descriptor)


@contextmanager
def replacing(path: Path, temporary: Path | None = None, *, is_synced: bool = True) -> Iterator[Path]:
    """A path on the file system of `path`, by default hidden beside it. Its file replaces `path` when the
    block ends without an exception, and survives a power cut where `is_synced`; else it is deleted."""
    temporary = temporary or path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    for parent in (path.parent, temporary.parent):
        parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        if is_synced:
            sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # two links to one file both stay after os.replace (POSIX rename)
    if is_synced:
        sync(path.parent)


def write_atomic(path: Path, content: bytes, *, is_synced: bool = True) -> None:
    """Writes a file: readers see all of `content`, or the content before. Raises OSError."""
    with replacing(path, is_synced=is_synced) as temporary:
        temporary.write_bytes(content)


def sync(path: Path) -> None:
    """fsync of a file, or of a folder so that a rename in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Sequence[Path]) -> None:
    """`sync` of several paths at the same time, since a file system commits together what waits for it together."""
    with ThreadPoolExecutor(max(1, min(_SYNCS, len(paths)))) as pool:
        for _ in pool.map(sync, paths):
            pass


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """Writes all of `content` at an offset of an open file. Raises OSError."""
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
