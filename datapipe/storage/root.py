"""Files by URL, on a local disk or an object store.

    runs/a, /data/a, file:///data/a          local
    s3://bucket/a?endpoint_override=http://127.0.0.1:5000&region=us-east-1      and gs://, abfs:// (`storage/store_options.py`)
    s3://anonymous@bucket/a                                                     a public bucket, without credentials
    https://host/a, http://host/a                                               input files of web servers (`storage/http.py`)
    hf://datasets/OWNER/NAME/a                                                  input files of the hub (`storage/hub.py`)

When a store stops answering, a read fails instead of hanging. Input files are read by positional reads and never mapped: a
mapped file that is cut short while it is read ends the process by SIGBUS. Local files that the engine itself wrote are mapped.

A `Root` is one folder by URL. A write appears completely or not at all: on a disk by `machine/files.py`, on an object store by
one upload. Local outputs are never opened under their final name.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlencode

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.credentials import is_masked
from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.machine.files import replacing, write_atomic
from datapipe.storage.http import RemoteFile, is_http, open_file, state_of
from datapipe.storage.hub import HubFiles, is_hub
from datapipe.storage.large_pages import LargePageFile
from datapipe.storage.local import FileState, local_files
from datapipe.storage.object_store import Bucket
from datapipe.storage.store_options import SCHEMES, options_of
from datapipe.storage.written import OutputStream, chunks_checksum

STORE_SCHEMES = frozenset({"http", "https", "hf", *SCHEMES})
REQUEST_BYTES = 8 << 20  # of an object store
_CHUNK_BYTES = 1 << 20


def is_remote(url: str) -> bool:
    return "://" in url and not url.startswith("file://")


def resolve(url: str) -> tuple[Bucket | HubFiles | None, str]:
    """The store of a URL and the key in it; None and the path of a local file."""
    if not is_remote(url):  # of the current working directory
        return None, os.path.abspath(url.removeprefix("file://"))
    _check_credentials(url)
    base, query = split_query(url)
    if is_hub(url):
        return HubFiles(), base.rstrip("/")
    scheme, _, rest = base.partition("://")
    if scheme.lower() not in SCHEMES:
        why = "web servers give single files to read" if is_http(url) else f"found the scheme {scheme}://"
        raise UserError(f"cannot open {url} as a folder: {why}. Expected a local path or a URL such as s3://bucket/folder")
    authority, _, path = rest.partition("/")
    return _bucket(f"{scheme}://{authority}{query}"), unquote(path).strip("/")


@lru_cache(maxsize=64)
def _bucket(url: str) -> Bucket:
    """The bucket at a URL, whose client all its users share."""
    options_of(url)
    return Bucket(url)


def _check_credentials(url: str) -> None:
    if is_masked(url):
        raise UserError(
            f"cannot open {url}: its credentials are not stored with the output. Write them in the mixture as variables, "
            f"such as s3://${{KEY}}:${{SECRET}}@bucket/folder, and set these variables here too."
        )


def split_query(url: str) -> tuple[str, str]:
    """A remote URL and its "?key=value…" tail. A `?` in a local path, or without a following `=`, is part of the path."""
    if is_remote(url) and "?" in url:
        base, _, query = url.rpartition("?")
        if "=" in query and "/" not in query.split("=", 1)[0]:
            return base, "?" + query
    return url, ""


def open_input(url: str, num_bytes: int | None = None) -> pa.NativeFile:
    """An input file for random access, not mapped. An object of a known size, `num_bytes`, is opened without a request."""
    if is_http(url):
        _check_credentials(url)
        return open_file(url)
    store, path = resolve(url)
    if store is not None:
        return store.open(path, num_bytes)
    _check_regular(path, os.stat(path))  # opening a pipe would wait for a writer
    return pa.OSFile(path)


def _check_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENXIO, "not a regular file", path)


def _check_waits_for_nobody(path: str) -> None:
    """Raises UserError for a pipe, socket or device: reading might never end."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UserError(f"{path}: a pipe, a socket or a device. Expected a file; delete it, and restore the file.")


def file_state(url: str, stream: pa.NativeFile) -> FileState:
    """The state of the file at `url`, which `stream` has just opened. Costs no request of a bucket or a web server."""
    if isinstance(stream, RemoteFile):
        return stream.state
    store, path = resolve(url)
    return FileState.local(os.stat(path)) if store is None else store.state(path)


def current_state(url: str) -> FileState:
    """The state of the file at `url` now. A local file is opened, since a network file system asks its server only then."""
    if is_http(url):
        return state_of(url)
    store, path = resolve(url)
    if store is not None:
        return store.state(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe does not wait for a writer
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    _check_regular(path, status)
    return FileState.local(status)


def whole_seconds(time_ns: int) -> int:
    return time_ns // 1_000_000_000 * 1_000_000_000


def parquet_table(content: bytes, columns: list[str] | None = None) -> pa.Table:
    """The table in the bytes of a Parquet file, decoded by the calling thread alone: a thread of `pq.read_table` may release
    the bytes after the call, which aborts the process (status 134) if the interpreter is ending meanwhile."""
    file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
    return file.read(columns, use_threads=False)


@dataclass(frozen=True)
class Root:
    """A folder by URL; every method takes a path relative to it, with forward slashes."""

    url: str

    @cached_property
    def _target(self) -> tuple[Bucket | HubFiles | None, str]:
        return resolve(self.url)

    @property
    def bucket(self) -> Bucket:
        """The bucket of an object store."""
        store = self._target[0]
        if not isinstance(store, Bucket):
            raise UserError(f"{self.url}: cannot be written. Expected a local path or a URL such as s3://bucket/folder")
        return store

    @property
    def _store(self) -> Bucket | HubFiles:
        store = self._target[0]
        assert store is not None
        return store

    @property
    def local(self) -> Path | None:
        """The folder on the local disk, or None for an object store."""
        return Path(self._target[1]) if self._target[0] is None else None

    def path(self, relative: str = "") -> str:
        """The path of a file on the disk, or its key in the bucket."""
        folder = self._target[1]
        return f"{folder}/{relative}" if relative and folder else relative or folder

    @property
    def location(self) -> str:
        """The path on the disk, or store, bucket and key: alike for all URLs of a folder."""
        store, path = self._target
        scheme = self.url.partition("://")[0].lower()
        return path if store is None else f"{SCHEMES.get(scheme, scheme)}://{store.name}/{path}"

    def child_url(self, relative: str) -> str:
        base, query = split_query(self.url)
        return f"{base.rstrip('/')}/{relative}{query}"

    def within(self, folder: str) -> Self:
        """The folder `folder` below this one; this one for an empty name."""
        return type(self)(self.child_url(folder)) if folder else self

    def trying_once(self) -> Self:
        """The same folder of a store with one attempt for each read, for a caller that retries itself."""
        base, _, query = self.url.partition("?")
        given = dict(parse_qsl(query, keep_blank_values=True))
        return self if not is_remote(self.url) else type(self)(f"{base}?{urlencode(given | {'max_attempts': 1})}")

    def open_input(self, relative: str, num_bytes: int | None = None) -> pa.NativeFile:
        """Random access; memory-mapped where local. An object of a known size is opened without a request."""
        path = self.path(relative)
        if self.local is None:
            return self._store.open(path, num_bytes)
        _check_waits_for_nobody(path)
        return pa.memory_map(path) if os.path.getsize(path) else pa.BufferReader(b"")

    def open_unmapped(self, relative: str, num_bytes: int | None = None) -> pa.NativeFile:
        """Random access, without a map where local."""
        return pa.OSFile(self.path(relative)) if self.local is not None else self.open_input(relative, num_bytes)

    def open_output(self, relative: str, *, is_mapped: bool = False) -> OutputStream:
        """A stream to a new file. Only for paths that no reader uses: attempt paths under work/, or files of an export.
        `is_mapped`: readers will map the file; the stream of a local one then holds up to 2 MiB."""
        if self.local is None:
            stream: Any = self.bucket.create(self.path(relative))
        else:
            Path(self.path(relative)).parent.mkdir(parents=True, exist_ok=True)
            stream = LargePageFile(self.path(relative)) if is_mapped else pa.OSFile(self.path(relative), "wb")
        return OutputStream.to(stream, lambda num_bytes, checksum: self._has(relative, num_bytes, checksum))

    def _has(self, relative: str, num_bytes: int, checksum: str) -> bool:
        """Whether a store has this file: its answer to a write may have been lost."""
        try:
            return self.local is None and self.checksum(relative) == (checksum, num_bytes)
        except OSError:
            return False

    def checksum(self, relative: str) -> tuple[str, int]:
        """Checksum and size in bytes of a file, read in chunks: mapped pages would count as memory of the process."""
        if self.local is not None:
            _check_waits_for_nobody(self.path(relative))
        chunk_bytes = _CHUNK_BYTES if self.local is not None else REQUEST_BYTES
        with self.open_unmapped(relative) as stream:
            return chunks_checksum(iter(lambda: stream.read_buffer(chunk_bytes), b""))

    def read_bytes(self, relative: str) -> bytes:
        """The content of a file. Raises FileNotFoundError, also if this root is a file."""
        if self.local is not None:
            try:
                _check_waits_for_nobody(self.path(relative))
                return Path(self.path(relative)).read_bytes()
            except NotADirectoryError as error:
                raise FileNotFoundError(*error.args) from error
        return self._store.read(self.path(relative))

    def write_atomic(self, relative: str, content: bytes) -> None:
        if self.local is None:
            with self.open_output(relative) as stream:
                stream.write(content)
            return
        write_atomic(Path(self.path(relative)), content)

    def take(self, other: Self, source: str, target: str, staging: str) -> None:
        """Links or copies the file `source` to `target`, completely or not at all. `staging`: a unique path elsewhere."""
        if self.local is None and self._target[0] == other._target[0]:
            self.bucket.copy(other.path(source), self.path(target))
        elif self.local is None:
            with other.open_input(source) as stream, self.open_output(target) as sink:
                _copy(stream, sink)
        else:
            with replacing(Path(self.path(target)), Path(self.path(staging))) as temporary:
                temporary.unlink(missing_ok=True)
                if other.local is None:
                    with other.open_input(source) as stream, pa.OSFile(str(temporary), "wb") as sink:
                        _copy(stream, sink)
                    return
                try:
                    os.link(other.path(source), temporary)
                except OSError:  # another disk, or a file system without hard links
                    shutil.copyfile(other.path(source), temporary)

    def delete(self, relative: str) -> None:
        with suppress(FileNotFoundError):
            if self.local is None:
                self.bucket.delete(self.path(relative))
            else:
                os.unlink(self.path(relative))

    def delete_folder(self, relative: str) -> None:
        with suppress(FileNotFoundError):
            if self.local is None:
                self.bucket.delete_folder(self.path(relative))
            else:
                shutil.rmtree(self.path(relative))

    def delete_empty_folders(self, relative: str) -> None:
        """Deletes a local folder that has no files, and those below it."""
        for folder, _, _ in os.walk(self.path(relative), topdown=False) if self.local is not None else ():
            if not os.listdir(folder):
                os.rmdir(folder)

    def exists(self, relative: str) -> bool:
        return self.size(relative) is not None

    def size(self, relative: str) -> int | None:
        """Bytes of a file; None if it does not exist."""
        path = self.path(relative)
        with suppress(FileNotFoundError, NotADirectoryError):
            if self.local is None:
                return self._store.state(path).num_bytes
            status = os.stat(path)
            return status.st_size if stat.S_ISREG(status.st_mode) else None
        return None

    def folders(self) -> list[str]:
        """Names of the folders directly below this root, sorted; none if the root is a file."""
        if self.local is not None:
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.local) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
            return []
        found = self._store.entries(self.path(), recursive=False)
        return sorted(key.rpartition("/")[2] for key, state in found if state is None)

    def list_files(self, relative: str, *, recursive: bool = True) -> list[tuple[str, int]]:
        """(path relative to this root, bytes) of every file below `relative`, or directly in it, sorted by path."""
        return sorted(self.each_file(relative, recursive=recursive))

    def each_file(self, relative: str, *, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """As `list_files`, in any order, as they are found."""
        if self.local is not None:
            return local_files(self.local / relative, f"{relative}/" if relative else "", recursive=recursive)
        start = len(self.path(".")) - 1
        found = self._store.entries(self.path(relative), recursive=recursive)
        return ((key[start:], state.num_bytes) for key, state in found if state is not None)


def _copy(source: pa.NativeFile, target: pa.NativeFile) -> None:
    while part := source.read(REQUEST_BYTES):
        target.write(part)
