"""Files that runs on a machine share: `$XDG_CACHE_HOME/datapipe`, by default `~/.cache/datapipe`.

A file holds a checksum and its data, and appears whole (`files.py`). A damaged file counts as
absent. Reading a file marks it as used, once a day; unused files are deleted.
"""

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from datapipe.machine.files import write_atomic

T = TypeVar("T")

UNUSED_S = 14 * 86_400.0
LEFT_OVER_S = 3_600.0
"""Age of an unfinished file of a killed process; writing one takes milliseconds."""

_MARKED_EVERY_S = 86_400.0
_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_home() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if base.startswith("~"):  # a user without a home: nothing is kept
        base = os.devnull
    return Path(base) / "datapipe"


def read_checked(path: Path) -> bytes | None:
    """None where the file is absent or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    mark_used(path)
    return data_of(content)


def data_of(content: bytes) -> bytes | None:
    """The data in the content of a file; None where it is damaged."""
    data = content[_DIGEST_BYTES:]
    return data if hashlib.sha256(data).digest() == content[:_DIGEST_BYTES] else None


def mark_used(path: Path) -> None:
    with suppress(OSError):  # a cache that is baked into an image cannot be marked as used
        if time.time() - path.stat().st_mtime > _MARKED_EVERY_S:
            os.utime(path)


def write_checked(path: Path, data: bytes) -> None:
    """Stores data atomically. Raises OSError."""
    write_atomic(path, hashlib.sha256(data).digest() + data, is_synced=False)


def cached(path: Path, make: Callable[[], bytes], read: Callable[[bytes], T]) -> T:
    """The value that `read` makes of the data in a file. Where the file is absent, or `read` raises ValueError for data of an
    earlier form, `make` makes the data, and unused files in the folder are deleted."""
    if (data := read_checked(path)) is not None:
        with suppress(ValueError):
            return read(data)
    data = make()
    keep(path, data)
    return read(data)


def keep(path: Path, data: bytes) -> None:
    """Stores data where the cache can be written, and deletes unused files in the folder; else each process makes its own."""
    with suppress(OSError):
        write_checked(path, data)
        _remove_unused(path.parent)


@lru_cache(maxsize=64)  # once a process
def _remove_unused(folder: Path) -> None:
    for path in folder.iterdir():
        remove_older(path, time.time() - (LEFT_OVER_S if path.suffix == ".tmp" else UNUSED_S))


def remove_older(path: Path, limit: float) -> None:
    """Deletes a file that was last used before `limit`, in seconds since the epoch."""
    with suppress(OSError):  # another process has removed the file, or another user owns it
        if path.stat().st_mtime < limit:
            path.unlink()
