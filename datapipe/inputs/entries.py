"""What is at a path or URL, without reading it: a file with its size and times, or something in the place of one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.fs as pafs

from datapipe.stage.decoding import COMPRESSION_OF_ENDING
from datapipe.stage.reader import InputFile
from datapipe.storage.http import is_http, state_of
from datapipe.storage.hub import commit_of
from datapipe.storage.local import FileState
from datapipe.storage.root import is_remote, resolve

FOLDER = "a folder"
ETAG = "etag:"
"""What the stamp of a file begins with whose store gives an ETag and no time."""

_NO_FILE = FileState(num_bytes=0)


@dataclass(kw_only=True, slots=True)
class Notes:
    """What is noticed while files are listed, and stops nothing.

    Attributes:
        passed_over: paths that match and are neither file nor folder, such as broken links.
        linked_again: links to folders that are passed over, each with where it leads.
        named_twice: lines of lists that name a file again.
        on_file: called for each file when its facts are known.
        may_grow: whether lists are being written: then a last line without its end is passed over,
            and a file that is not there yet. Otherwise both are what a list says.
        not_there_yet: lines of lists that name such a file.
    """

    passed_over: list[str] = field(default_factory=list)
    linked_again: list[str] = field(default_factory=list)
    named_twice: list[str] = field(default_factory=list)
    on_file: Callable[[], None] = lambda: None
    may_grow: bool = False
    not_there_yet: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, or what is in the place of one.

    Attributes:
        path: absolute, or a URL without its query.
        instead: of a file: "a folder", "a broken link", "neither file nor folder"; empty for a file, which has a `state`.
    """

    path: str
    state: FileState = _NO_FILE
    instead: str = ""

    @classmethod
    def local(cls, path: str, status: os.stat_result | None) -> Entry:
        if status is None:
            return cls(path, instead="a broken link")
        if not stat.S_ISREG(status.st_mode):
            return cls(path, instead=FOLDER if stat.S_ISDIR(status.st_mode) else "neither file nor folder")
        return cls(path, FileState.local(status))

    @classmethod
    def remote(cls, path: str, info: pafs.FileInfo) -> Entry:
        if info.type == pafs.FileType.Directory:
            return cls(path, instead=FOLDER)
        return cls(path, FileState(num_bytes=info.size, mtime_ns=info.mtime_ns))

    def file(self, prefix: str, query: str) -> InputFile:
        """The file as planning sees it, its path relative to `prefix`."""
        return self.file_as(self.path[len(prefix) :], query)

    def file_as(self, path: str, query: str) -> InputFile:
        """The file as planning sees it, by a path of its own."""
        commit, state = commit_of(self.path), self.state
        by_etag = state.mtime_ns is None and state.etag is not None
        return InputFile(
            url=self.path + query,
            path=path,
            num_bytes=state.num_bytes,
            stamp=f"commit:{commit}" if commit is not None else f"{ETAG}{state.etag}" if by_etag else str(state.mtime_ns),
            compression=COMPRESSION_OF_ENDING.get(Path(self.path).suffix.lower()),
            mtime_ns=state.mtime_ns,
            ctime_ns=state.ctime_ns,
        )


def status_of(path: str) -> os.stat_result | None:
    """The status of a local file, links followed; None for a broken link and where nothing is. Raises OSError."""
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def entry_at(path: str, query: str, folder: str = "") -> Entry | None:
    """What is at an absolute path or URL, which may have a `query`; None for nothing. Raises
    OSError. `folder`: URL of a folder above, with a slash at its end, through whose client an
    object store is asked, since making one for each file takes 3.5 ms."""
    if is_http(path):
        try:
            return Entry(path, state_of(path + query))
        except FileNotFoundError:
            return None
    if not is_remote(path):
        return Entry.local(path, status_of(path)) if os.path.lexists(path) else None
    is_below = bool(folder) and "%" not in path  # pyarrow decodes URLs
    filesystem, inside = resolve((folder if is_below else path) + query)
    inside = f"{inside.rstrip('/')}/{path.removeprefix(folder)}" if is_below else inside
    info = filesystem.get_file_info(inside)
    return None if info.type == pafs.FileType.NotFound else Entry.remote(path, info)
