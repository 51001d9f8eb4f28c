"""Files by URL, on a local disk or an object store, through the file systems of pyarrow.

    runs/a, /data/a, file:///data/a          local
    s3://bucket/a?endpoint_override=http://127.0.0.1:5000&region=us-east-1      and gs://, as pyarrow takes them

When a store stops answering, a read fails instead of hanging. S3 URLs accept these parameters beside pyarrow's own:

    request_timeout=3      seconds without a byte until a request fails; libcurl takes about 6 more to notice
    connect_timeout=1      seconds until a connection attempt fails
    max_attempts=5         requests of one read, with growing pauses, as long as failures are temporary

If the store stalls at every attempt, a read fails after about max_attempts * (request_timeout + 6) seconds, 47 by default.
pyarrow accepts none of the three in a URL; its own 31 attempts take 288 s at a stall and 6 s at a 503 (pyarrow 26 on Linux,
where request_timeout works, contrary to its documentation). A store that sends a byte a second is not detected as stalled.

A `Root` is one folder by URL. A write appears completely or not at all: locally by a temporary file, fsync and `os.replace`; on
an object store by one upload. An exception inside pyarrow's local output stream leaves a visible partial file, so local outputs
are never opened under their final name.
"""

from __future__ import annotations

import os
import shutil
import uuid
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pyarrow as pa
import pyarrow.fs as pafs

from datapipe.errors import UserError

CONNECT_TIMEOUT_S = 1.0
REQUEST_TIMEOUT_S = 3.0
MAX_ATTEMPTS = 5
_PATIENCE = {"connect_timeout": CONNECT_TIMEOUT_S, "request_timeout": REQUEST_TIMEOUT_S, "max_attempts": MAX_ATTEMPTS}
_ONLY_IN_URLS = frozenset({"smart_defaults", "tls_verify_certificates"})
"""Parameters that pyarrow takes in a URL and not as arguments, so they exclude our own parameters."""


def is_remote(url: str) -> bool:
    """Whether `url` names an object store rather than a local path."""
    return "://" in url and not url.startswith("file://")


@lru_cache(maxsize=64)
def _filesystem(base: str) -> tuple[pafs.FileSystem, str]:
    if not is_remote(base):
        return pafs.LocalFileSystem(), os.path.abspath(base.removeprefix("file://"))
    url, patience = _split_patience(base) if base.startswith("s3://") else (base, None)
    try:
        filesystem, path = pafs.FileSystem.from_uri(url)
    except pa.ArrowInvalid as error:
        raise UserError(f"cannot open {base}: {error}. Expected a local path or a URL such as s3://bucket/folder") from error
    return (_bounded(filesystem, patience), path) if patience is not None else (filesystem, path)


def _split_patience(url: str) -> tuple[str, dict[str, float] | None]:
    """A URL without our own parameters, and their values or defaults; None where they cannot be set."""
    base, query = split_query(url)
    given = parse_qsl(query.removeprefix("?"), keep_blank_values=True)
    own = {name: value for name, value in given if name in _PATIENCE}
    if (clash := _ONLY_IN_URLS & {name for name, _ in given}) and own:
        raise UserError(f"cannot open {url}: {sorted(clash)[0]} excludes {sorted(own)[0]}. Leave out one of them.")
    try:
        patience = _PATIENCE | {name: float(value) for name, value in own.items()}
    except ValueError:
        patience = {}
    if not patience or not all(0 < value < float("inf") for value in patience.values()) or patience["max_attempts"] < 1:
        raise UserError(f"cannot open {url}: expected positive numbers for {', '.join(sorted(own))}.")
    rest = urlencode([(name, value) for name, value in given if name not in _PATIENCE])
    without = (f"{base}?{rest}" if rest else base) if own else url
    return without, None if clash else patience


def _bounded(filesystem: pafs.FileSystem, patience: dict[str, float]) -> pafs.FileSystem:
    """The same S3 file system with these limits, made again from the arguments of its pickle."""
    (options,) = filesystem.__reduce__()[1]
    retry = pafs.AwsStandardS3RetryStrategy(max_attempts=int(patience["max_attempts"]))
    limits = {name: patience[name] for name in ("connect_timeout", "request_timeout")}
    return pafs.S3FileSystem(**(options | limits), retry_strategy=retry)


def split_query(url: str) -> tuple[str, str]:
    """A remote URL and its "?key=value…" tail. A `?` in a local path, or without a following `=`, is part of the path."""
    if is_remote(url) and "?" in url:
        base, _, query = url.rpartition("?")
        if "=" in query and "/" not in query.split("=", 1)[0]:
            return base, "?" + query
    return url, ""


def resolve(url: str) -> tuple[pafs.FileSystem, str]:
    """The pyarrow file system of a URL and the path on it."""
    return _filesystem(url)


def open_input(url: str) -> pa.NativeFile:
    """A random-access file for reading. Raises FileNotFoundError or OSError."""
    filesystem, path = resolve(url)
    if isinstance(filesystem, pafs.LocalFileSystem):
        return pa.memory_map(path) if os.path.getsize(path) else pa.BufferReader(b"")
    return filesystem.open_input_file(path)


@dataclass(frozen=True)
class Root:
    """A folder by URL; every method takes a path relative to it, with forward slashes."""

    url: str

    @cached_property
    def _target(self) -> tuple[pafs.FileSystem, str]:
        base, query = split_query(self.url)
        filesystem, path = _filesystem(base.rstrip("/") + query) if query else _filesystem(base)
        return filesystem, path.rstrip("/")

    @property
    def filesystem(self) -> pafs.FileSystem:
        return self._target[0]

    @property
    def local(self) -> Path | None:
        """The folder on the local disk, or None for an object store."""
        return Path(self._target[1]) if isinstance(self.filesystem, pafs.LocalFileSystem) else None

    def path(self, relative: str = "") -> str:
        """The path on `filesystem`."""
        return f"{self._target[1]}/{relative}" if relative else self._target[1]

    def child_url(self, relative: str) -> str:
        base, query = split_query(self.url)
        return f"{base.rstrip('/')}/{relative}{query}"

    def within(self, folder: str) -> Root:
        """The folder `folder` below this one; this one for an empty name."""
        return Root(self.child_url(folder)) if folder else self

    def trying_once(self) -> Root:
        """The same S3 folder with one attempt for each read, for a caller that retries reads itself."""
        base, query = split_query(self.url)
        given = dict(parse_qsl(query.removeprefix("?"), keep_blank_values=True))
        if not base.startswith("s3://") or not _ONLY_IN_URLS.isdisjoint(given):
            return self
        return Root(f"{base}?{urlencode(given | {'max_attempts': 1})}")

    def open_input(self, relative: str) -> pa.NativeFile:
        """Random access; memory-mapped where local."""
        if self.local is not None:
            path = self.path(relative)
            return pa.memory_map(path) if os.path.getsize(path) else pa.BufferReader(b"")
        return self.filesystem.open_input_file(self.path(relative))

    def open_output(self, relative: str) -> pa.NativeFile:
        """A stream to a new file. Only for paths that no reader uses: attempt paths under work/, or files of an export."""
        if self.local is not None:
            Path(self.path(relative)).parent.mkdir(parents=True, exist_ok=True)
        return self.filesystem.open_output_stream(self.path(relative), compression=None)

    def read_bytes(self, relative: str) -> bytes:
        """The content of a file. Raises FileNotFoundError, also if this root is a file."""
        if self.local is not None:
            try:
                return Path(self.path(relative)).read_bytes()
            except NotADirectoryError as error:
                raise FileNotFoundError(*error.args) from error
        with self.filesystem.open_input_stream(self.path(relative), compression=None) as stream:
            return stream.read()

    def write_atomic(self, relative: str, content: bytes) -> None:
        """Writes `content` under its final name: readers see all of it, or the content before."""
        if self.local is None:
            with self.filesystem.open_output_stream(self.path(relative), compression=None) as stream:
                stream.write(content)
            return
        target = Path(self.path(relative))
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.parent / f".{target.name}.{uuid.uuid4().hex}.tmp"
        with open(temporary, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)

    def publish(self, source: str, target: str, staging: str) -> None:
        """Links or copies the committed file `source` to `target`, which appears completely or not at all.

        Args:
            staging: a unique relative path, outside the target's folder, for the link before it is renamed.
        """
        if self.local is None:
            self.filesystem.copy_file(self.path(source), self.path(target))
            return
        final, link = Path(self.path(target)), Path(self.path(staging))
        final.parent.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        try:
            os.link(self.path(source), link)
        except OSError:  # the file system has no hard links
            shutil.copyfile(self.path(source), link)
        sync_file(link)
        os.replace(link, final)
        link.unlink(missing_ok=True)  # os.replace of two links to one file leaves both in place (POSIX rename)
        sync_folder(final.parent)

    def delete(self, relative: str) -> None:
        """Deletes a file, if it exists."""
        try:
            self.filesystem.delete_file(self.path(relative))
        except FileNotFoundError:
            return

    def delete_folder(self, relative: str) -> None:
        if self.local is not None:
            shutil.rmtree(self.path(relative), ignore_errors=False) if os.path.isdir(self.path(relative)) else None
        else:
            self.filesystem.delete_dir_contents(self.path(relative), missing_dir_ok=True)

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

    def list_files(self, relative: str) -> list[tuple[str, int]]:
        """(path relative to this root, bytes) of every file below `relative`, sorted by path."""
        selector = pafs.FileSelector(self.path(relative), allow_not_found=True, recursive=True)
        prefix = len(self.path()) + 1
        infos = self.filesystem.get_file_info(selector)
        return sorted((info.path[prefix:], info.size) for info in infos if info.type == pafs.FileType.File)


def sync_file(path: Path) -> None:
    """fsync of a file's content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """fsync of a folder, so that a rename in it survives a power cut."""
    sync_file(path)
