"""What tells whether the content of a file has changed, without reading it."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class FileState:
    """Facts about a file; those that its file system lacks are None.

    Attributes:
        num_bytes: size as stored.
        mtime_ns: time of the last change of the content, which any program can set. Whole seconds of a web server, and of an
            object that was opened: some stores list fractions of a second and leave them out then.
        ctime_ns: time of the last change of content, metadata or name, which no program can set back.
        inode: (device, inode), which another file at the same path does not have.
        etag: of an object, or of a file on a web server, with its quotes.
    """

    num_bytes: int
    mtime_ns: int | None = None
    ctime_ns: int | None = None
    inode: tuple[int, int] | None = None
    etag: str | None = None

    @classmethod
    def local(cls, status: os.stat_result) -> FileState:
        return cls(
            num_bytes=status.st_size,
            mtime_ns=status.st_mtime_ns,
            ctime_ns=status.st_ctime_ns,
            inode=(status.st_dev, status.st_ino),
        )
