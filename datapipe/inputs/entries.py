"""Files at paths and URLs, without reading them: size and times, other things in their places, files that are read twice."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from datapipe.dataclass import dataclass, field
from datapipe.stage.decoding import COMPRESSION_OF_ENDING
from datapipe.stage.reader import InputFile
from datapipe.storage.http import is_http, state_of
from datapipe.storage.hub import commit_of
from datapipe.storage.local import FileState
from datapipe.storage.root import is_remote, resolve, split_query

FOLDER = "a folder"
ETAG = "etag:"  # what the stamp of a file begins with whose store gives an ETag and no time
NO_FILE = FileState(num_bytes=0)


@dataclass(kw_only=True, slots=True)
class Notes:
    """Findings of listing files that stop nothing."""

    passed_over: list[str] = field(default_factory=list)  # what matches and is neither file nor folder, as broken links
    linked_again: list[str] = field(default_factory=list)  # links to folders that are passed over, each with its target
    named_twice: list[str] = field(default_factory=list)  # lines of lists that name a file again
    on_file: Callable[[], None] = lambda: None  # called for each file when its facts are known
    may_grow: bool = False  # whether lists are being written, and a missing file and a line without its end passed over
    not_there_yet: list[str] = field(default_factory=list)  # lines of lists that name such a file


@dataclass(frozen=True, slots=True)
class Entry:
    """A file at an absolute path, or a URL without its query; or `instead` of one "a folder", "a broken link" and the like."""

    path: str
    state: FileState = NO_FILE
    instead: str = ""

    @classmethod
    def local(cls, path: str, status: os.stat_result | None) -> Entry:
        if status is None:
            return cls(path, instead="a broken link")
        if not stat.S_ISREG(status.st_mode):
            return cls(path, instead=FOLDER if stat.S_ISDIR(status.st_mode) else "neither file nor folder")
        return cls(path, FileState.local(status))

    def file(self, prefix: str, query: str) -> InputFile:
        """The file as planning sees it, its path relative to `prefix`."""
        return self.file_as(self.path[len(prefix) :], query)

    def file_as(self, path: str, query: str) -> InputFile:
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


def entry_at(path: str, query: str) -> Entry | None:
    """The entry at an absolute path or URL, which may have a `query`; None for nothing. Raises OSError."""
    if not is_remote(path):
        return Entry.local(path, status_of(path)) if os.path.lexists(path) else None
    store, key = (None, "") if is_http(path) else resolve(path + query)
    try:
        return Entry(path, state_of(path + query) if store is None else store.state(key))
    except FileNotFoundError:
        return Entry(path, instead=FOLDER) if store is not None and store.is_folder(key) else None


Reading = tuple[str, InputFile]  # Name of a source, and a file that it reads


def same_files(files: Mapping[str, Iterable[InputFile]]) -> list[list[Reading]]:
    """The files of all sources that are read more than once, each with all its readings, in the order of sources and paths.
    Local files are the same where device and inode are; files elsewhere where their URLs are, without credentials and options.
    The system is asked only about files that agree in size and times."""
    alike: dict[object, list[Reading]] = {}
    for source, listed in files.items():
        for file in listed:
            facts = file.num_bytes, file.mtime_ns, file.ctime_ns, is_remote(file.url)
            alike.setdefault(facts, []).append((source, file))
    same: dict[object, list[Reading]] = {}
    for readings in alike.values():
        for source, file in readings if len(readings) > 1 else ():
            for identity in _identity(file):
                same.setdefault(identity, []).append((source, file))
    return [readings for readings in same.values() if len(readings) > 1]


def _identity(file: InputFile) -> Iterator[object]:
    """What the same file has and no other; nothing for a file that is gone meanwhile."""
    if is_remote(file.url):
        yield file.url if is_http(file.url) else split_query(file.url)[0]  # the query of a web server may name the file
        return
    try:
        status = os.stat(file.url)
    except OSError:
        return
    yield status.st_dev, status.st_ino
