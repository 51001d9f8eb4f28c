"""Files by URL, on a local disk or an object store, through the file systems of pyarrow.

    runs/a, /data/a, file:///data/a          local
    s3://bucket/a?endpoint_override=http://127.0.0.1:5000&region=us-east-1      and gs://, as pyarrow takes them
    s3://anonymous@bucket/a                                                     a public bucket, without credentials
    https://host/a, http://host/a                                               input files of web servers (`storage/http.py`)

When a store stops answering, a read fails instead of hanging. Input files are read by positional reads and never mapped: a
mapped file that is cut short while it is read ends the process by SIGBUS. Local files that the engine itself wrote are mapped.

A `Root` is one folder by URL. A write appears completely or not at all: on a disk by
`machine/files.py`, on an object store by one upload. An exception inside pyarrow's local output
stream leaves a visible partial file, so local outputs are never opened under their final name.
"""

import errno
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from datapipe.credentials import is_masked
from datapipe.errors import UserError
from datapipe.machine.files import replacing, write_atomic
from datapipe.storage.http import HttpFile, is_http, open_file
from datapipe.storage.local import FileState, local_files
from datapipe.storage.s3 import is_s3, s3_filesystem, with_one_attempt
from datapipe.storage.written import OutputStream, chunks_checksum

STORE_SCHEMES = frozenset({"http", "https", "s3", "gs", "gcs", "abfs", "abfss", "hf"})
"""Schemes of stores and servers. Others, as file:// and fsspec+local://, reach this machine."""
_SECOND_NS = 1_000_000_000
_REQUEST_BYTES = 8 << 20  # of an object store
_CHUNK_BYTES = 1 << 20


def is_remote(url: str) -> bool:
    return "://" in url and not url.startswith("file://")


def resolve(url: str) -> tuple[pafs.FileSystem, str]:
    """The pyarrow file system of a URL and the path on it."""
    if not is_remote(url):  # of the current working directory
        return _LOCAL, os.path.abspath(url.removeprefix("file://"))
    return _remote_filesystem(url)


_LOCAL = pafs.LocalFileSystem()


@lru_cache(maxsize=64)
def _remote_filesystem(base: str) -> tuple[pafs.FileSystem, str]:
    _check_credentials(base)
    if is_http(base):
        raise UserError(
            f"cannot open {base} as a folder: web servers give single files to read. Expected a local path or a URL such as "
            f"s3://bucket/folder"
        )
    try:
        return s3_filesystem(base) if is_s3(base) else pafs.FileSystem.from_uri(base)
    except pa.ArrowInvalid as error:  # `from None`: its text quotes the URL, credentials and all
        raise UserError(f"cannot open {base}: {error}. Expected a local path or a URL such as s3://bucket/folder") from None


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


def open_input(url: str) -> pa.NativeFile:
    """An input file for random access, not mapped. Raises FileNotFoundError, IsADirectoryError or another OSError."""
    if is_http(url):
        _check_credentials(url)
        return open_file(url)
    filesystem, path = resolve(url)
    if not isinstance(filesystem, pafs.LocalFileSystem):
        return filesystem.open_input_file(path)
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
    """The state of the file at `url`, which `stream` has just opened. Costs no request of S3 or a
    web server. Raises OSError."""
    if isinstance(stream, HttpFile):
        return stream.state
    filesystem, path = resolve(url)
    if isinstance(filesystem, pafs.LocalFileSystem):
        return FileState.local(os.stat(path))
    metadata = stream.metadata()
    etag, modified = metadata.get("ETag"), metadata.get("Last-Modified")
    mtime_ns = (
        filesystem.get_file_info(path).mtime_ns
        if modified is None
        else int(datetime.fromisoformat(modified.decode()).timestamp()) * _SECOND_NS
    )
    return FileState(
        num_bytes=stream.size(),
        mtime_ns=None if mtime_ns is None else whole_seconds(mtime_ns),
        etag=etag.decode(errors="replace") if etag else None,
    )


def current_state(url: str) -> FileState:
    """The state of the file at `url` now; one request of a store. A local file is opened, since a
    network file system asks its server only then. Raises OSError as `open_input`."""
    if is_http(url) or not isinstance(resolve(url)[0], pafs.LocalFileSystem):
        with open_input(url) as stream:
            return file_state(url, stream)
    _, path = resolve(url)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe does not wait for a writer
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    _check_regular(path, status)
    return FileState.local(status)


def whole_seconds(time_ns: int) -> int:
    return time_ns // _SECOND_NS * _SECOND_NS


def parquet_table(content: bytes, columns: list[str] | None = None) -> pa.Table:
    """The table in the bytes of a Parquet file, decoded by the calling thread alone.

    A thread of `pq.read_table` may release the bytes after the call has returned, for which it needs the interpreter. If the
    interpreter is ending meanwhile, the process aborts with "terminate called without an active exception" and status 134.
    """
    file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
    return file.read(columns, use_threads=False)


@dataclass(frozen=True)
class Root:
    """A folder by URL; every method takes a path relative to it, with forward slashes."""

    url: str

    @cached_property
    def _target(self) -> tuple[pafs.FileSystem, str]:
        base, query = split_query(self.url)
        filesystem, path = resolve(base.rstrip("/") + query if query else base)
        return filesystem, path.rstrip("/")

    @property
    def filesystem(self) -> pafs.FileSystem:
        return self._target[0]

    @property
    def local(self) -> Path | None:
        """The folder on the local disk, or None for an object store."""
        return Path(self._target[1]) if isinstance(self.filesystem, pafs.LocalFileSystem) else None

    def path(self, relative: str = "") -> str:
        return f"{self._target[1]}/{relative}" if relative else self._target[1]

    def child_url(self, relative: str) -> str:
        base, query = split_query(self.url)
        return f"{base.rstrip('/')}/{relative}{query}"

    def within(self, folder: str) -> Self:
        """The folder `folder` below this one; this one for an empty name."""
        return type(self)(self.child_url(folder)) if folder else self

    def trying_once(self) -> Self:
        """The same S3 folder with one attempt for each read, for a caller that retries itself."""
        return type(self)(with_one_attempt(self.url)) if is_s3(self.url) else self

    def open_input(self, relative: str) -> pa.NativeFile:
        """Random access; memory-mapped where local."""
        path = self.path(relative)
        if self.local is None:
            return self.filesystem.open_input_file(path)
        _check_waits_for_nobody(path)
        return pa.memory_map(path) if os.path.getsize(path) else pa.BufferReader(b"")

    def open_output(self, relative: str) -> OutputStream:
        """A stream to a new file. Only for paths that no reader uses: attempt paths under work/, or files of an export."""
        if self.local is not None:
            Path(self.path(relative)).parent.mkdir(parents=True, exist_ok=True)
        stream = self.filesystem.open_output_stream(self.path(relative), compression=None)
        return OutputStream.to(stream, lambda num_bytes, checksum: self._has(relative, num_bytes, checksum))

    def _has(self, relative: str, num_bytes: int, checksum: str) -> bool:
        """Whether a store has this file: its answer to a write may have been lost."""
        try:
            return self.local is None and self.checksum(relative) == (checksum, num_bytes)
        except OSError:
            return False

    def checksum(self, relative: str) -> tuple[str, int]:
        """Checksum and size in bytes of a file, read in chunks, since mapped pages would count as
        memory of the process. Raises OSError."""
        if self.local is not None:
            _check_waits_for_nobody(self.path(relative))
        chunk_bytes = _CHUNK_BYTES if self.local is not None else _REQUEST_BYTES
        with self.filesystem.open_input_file(self.path(relative)) as stream:
            return chunks_checksum(iter(lambda: stream.read_buffer(chunk_bytes), b""))

    def read_bytes(self, relative: str) -> bytes:
        """The content of a file. Raises FileNotFoundError, also if this root is a file."""
        if self.local is not None:
            try:
                _check_waits_for_nobody(self.path(relative))
                return Path(self.path(relative)).read_bytes()
            except NotADirectoryError as error:
                raise FileNotFoundError(*error.args) from error
        with self.filesystem.open_input_file(self.path(relative)) as stream:
            return stream.read_at(stream.size(), 0)  # `read` asks for 256 KiB at a time

    def write_atomic(self, relative: str, content: bytes) -> None:
        if self.local is None:
            with self.open_output(relative) as stream:
                stream.write(content)
            return
        write_atomic(Path(self.path(relative)), content)

    def take(self, other: Self, source: str, target: str, staging: str) -> None:
        """Links or copies the file `source` of a root, maybe this one, to `target`, which appears completely or not at all.

        Args: staging: a unique relative path outside the target's folder, for the link or copy
            before it is renamed.
        """
        if self.local is None and self.filesystem == other.filesystem:
            self.filesystem.copy_file(other.path(source), self.path(target))
        elif self.local is None:
            with other.open_input(source) as stream, self.open_output(target) as sink:
                while part := stream.read(_REQUEST_BYTES):
                    sink.write(part)
        else:
            with replacing(Path(self.path(target)), Path(self.path(staging))) as temporary:
                temporary.unlink(missing_ok=True)
                if other.local is None:
                    pafs.copy_files(other.path(source), str(temporary), other.filesystem, self.filesystem)
                    return
                try:
                    os.link(other.path(source), temporary)
                except OSError:  # another disk, or a file system without hard links
                    shutil.copyfile(other.path(source), temporary)

    def delete(self, relative: str) -> None:
        with suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(relative))

    def delete_folder(self, relative: str) -> None:
        with suppress(FileNotFoundError):
            self.filesystem.delete_dir(self.path(relative))

    def delete_empty_folders(self, relative: str) -> None:
        """Deletes a local folder that has no files, and those below it."""
        for folder, _, _ in os.walk(self.path(relative), topdown=False) if self.local is not None else ():
            if not os.listdir(folder):
                os.rmdir(folder)

    def exists(self, relative: str) -> bool:
        return self.size(relative) is not None

    def size(self, relative: str) -> int | None:
        """Bytes of a file; None if it does not exist."""
        info = self.filesystem.get_file_info(self.path(relative))
        return info.size if info.type == pafs.FileType.File else None

    def folders(self) -> list[str]:
        """Names of the folders directly below this root, sorted; none if the root is a file."""
        if self.local is not None and not self.local.is_dir():
            return []
        selector = pafs.FileSelector(self.path(), allow_not_found=True)
        infos = self.filesystem.get_file_info(selector)
        return sorted(info.base_name for info in infos if info.type == pafs.FileType.Directory)

    def list_files(self, relative: str, *, recursive: bool = True) -> list[tuple[str, int]]:
        """(path relative to this root, bytes) of every file below `relative`, or directly in it, sorted by path."""
        if self.local is not None:
            return sorted(local_files(self.local / relative, f"{relative}/" if relative else "", recursive=recursive))
        selector = pafs.FileSelector(self.path(relative), allow_not_found=True, recursive=recursive)
        prefix = len(self.path()) + 1
        infos = self.filesystem.get_file_info(selector)
        return sorted((info.path[prefix:], info.size) for info in infos if info.type == pafs.FileType.File)
