"""Local files: listing them, and the facts that show whether the content of a file has changed."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from datapipe.dataclass import dataclass


def local_files(folder: Path, prefix: str, *, recursive: bool) -> Iterator[tuple[str, int]]:
    """(path, bytes) of the files in a folder, or anywhere below it, in no order, with `prefix` in place of the folder."""
    folders = [(str(folder), prefix)]
    while folders:
        path, begin = folders.pop()
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir():
                    if recursive:
                        folders.append((entry.path, f"{begin}{entry.name}/"))
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    if stat.S_ISREG(status.st_mode):
                        yield begin + entry.name, status.st_size


@dataclass(frozen=True, kw_only=True, slots=True)
class FileState:
    """Facts about a file, local or remote; those that its file system lacks are None."""

    num_bytes: int
    # of the last change of the content, which any program can set; whole seconds of a web server and of an opened object
    mtime_ns: int | None = None
    ctime_ns: int | None = None  # of the last change of content, metadata or name, which no program can set back
    inode: tuple[int, int] | None = None  # (device, inode), which another file at the same path does not have
    etag: str | None = None  # of an object, or of a file on a web server, with its quotes

    @classmethod
    def local(cls, status: os.stat_result) -> Self:
        inode = status.st_dev, status.st_ino
        return cls(num_bytes=status.st_size, mtime_ns=status.st_mtime_ns, ctime_ns=status.st_ctime_ns, inode=inode)
