"""Files in the cache of this machine by the SHA-256 of their content, with the names that they have elsewhere.

    s3://bucket/model.bin ─▶ size, ETag, time ─▶ noted with a digest? ─▶ files/DIGEST/model.bin
                                                   └─ no: download ──────▲

A file appears whole and is never changed. One process of the machine copies it while the others
wait. Files that were not used for two weeks are deleted. Where the cache cannot be written, each
process keeps its files in a folder of temporary files. Memory is bounded by one chunk.
"""

import errno
import hashlib
import json
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from datapipe.credentials import masked, masked_urls
from datapipe.dataclass import asdict, dataclass
from datapipe.errors import CorruptionError
from datapipe.machine.cache import UNUSED_S, cache_home, mark_used, read_checked, remove_older, write_checked
from datapipe.machine.files import locked, replacing
from datapipe.storage.hub import commit_of, is_hub, pinned
from datapipe.storage.local import FileState
from datapipe.storage.root import current_state, open_input, split_query

_CHUNK_BYTES = 8 << 20
_LEFT_OVER_S = 86_400.0  # age of an unfinished file of a killed process; a download may take hours
_NOT_IN_NAMES = re.compile(r"[^\w.+=@-]")
_MOST_NAME_CHARS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedFile:
    path: Path
    digest: str  # 64 hex digits


def digest_of(path: Path) -> str:
    """The SHA-256 of a local file in 64 hex digits, which is computed again when size or times have changed. Raises OSError."""
    return _digest(path, current_state(str(path)))


@lru_cache(maxsize=1024)
def _digest(path: Path, state: FileState) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def copied(source: Any, write: Callable[[bytes], Any]) -> str:
    """Copies a stream in chunks. Returns the SHA-256 of the content in 64 hex digits."""
    hasher = hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        hasher.update(chunk)
        write(chunk)
    return hasher.hexdigest()


def folder() -> Path:
    """The folder of all cached files."""
    return _folder_in(cache_home() / "files")


@lru_cache(maxsize=8)
def _folder_in(wanted: Path) -> Path:
    with suppress(OSError):
        wanted.mkdir(parents=True, exist_ok=True)
        if os.access(wanted, os.W_OK | os.X_OK):
            return wanted
    _temporary.append(tempfile.TemporaryDirectory(prefix="datapipe-files-"))
    return Path(_temporary[-1].name)


_temporary: list[tempfile.TemporaryDirectory[str]] = []  # deleted with this process


def cached_file(digest: str, name: str, num_bytes: int) -> Path | None:
    """The file with this content and name in the cache, marked as used; None where there is none."""
    path = folder() / digest / name
    with suppress(OSError):
        if path.stat().st_size == num_bytes:
            mark_used(path)
            return path
    return None


def cache(digest: str, name: str, num_bytes: int, open_source: Callable[[], Any]) -> Path:
    """Copies a file into the cache, unless it is there. Raises OSError, and CorruptionError for another content."""
    path = folder() / digest / name
    with _alone(path.parent):
        if cached_file(digest, name, num_bytes) is None:
            with open_source() as source, replacing(path) as temporary:
                with temporary.open("wb") as target:
                    found = copied(source, target.write)
                if found != digest:
                    raise CorruptionError(f"found content with the SHA-256 {found[:12]}…, expected {digest[:12]}…")
                temporary.chmod(0o444)
    _remove_unused(folder())
    return path


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Holds the lock of a folder. Without it, on a file system that has no locks, several processes copy a file."""
    path.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(locked(path / ".lock", wait=True))
        yield


def fetched(url: str, on_download: Callable[[int], object] = lambda num_bytes: None) -> CachedFile:
    """The file at a URL as it is now. It is downloaded where it has changed, or where its store gives neither a time nor an
    ETag; then `on_download` gets its size first. Raises OSError or UserError."""
    url = pinned(url) if is_hub(url) else url
    state = current_state(url)
    note = folder() / "urls" / f"{hashlib.sha256(masked_urls(url).encode()).hexdigest()}.bin"
    facts = {**asdict(state), "commit": commit_of(url)}
    is_telling = any(facts[name] is not None for name in ("commit", "etag", "mtime_ns"))
    name = _name_of(url)
    if is_telling and (digest := _noted(note, facts)) is not None:
        path = cached_file(digest, name, state.num_bytes)
        if path is not None and digest_of(path) == digest:
            return CachedFile(path=path, digest=digest)
    on_download(state.num_bytes)
    cached = _downloaded(url, name)
    if current_state(url) != state:
        raise OSError(errno.EAGAIN, "it has changed while it was read", masked(url))
    with suppress(OSError):  # a full disk: it is downloaded again next time
        write_checked(note, json.dumps({"facts": facts, "digest": cached.digest}).encode())
    return cached


def _noted(note: Path, facts: dict[str, Any]) -> str | None:
    """The digest of the file that had these facts when it was downloaded."""
    content = read_checked(note)
    known = {} if content is None else json.loads(content)
    return known.get("digest") if known.get("facts") == facts else None


def _downloaded(url: str, name: str) -> CachedFile:
    temporary = folder() / f".{name}.{uuid.uuid4().hex}.tmp"
    try:
        with open_input(url) as source, temporary.open("wb") as target:
            digest = copied(source, target.write)
        temporary.chmod(0o444)
        path = folder() / digest / name
        with replacing(path, temporary):  # a damaged file of this name is replaced, too
            pass
    finally:
        temporary.unlink(missing_ok=True)
    _remove_unused(folder())
    return CachedFile(path=path, digest=digest)


def _name_of(url: str) -> str:
    """The last part of a URL's path as a file name: stages go by its ending, and name what they read by it."""
    name = unquote(split_query(url)[0].rstrip("/").rpartition("/")[2])
    return _NOT_IN_NAMES.sub("_", name).lstrip(".")[-_MOST_NAME_CHARS:] or "file"


@lru_cache(maxsize=8)  # once a process
def _remove_unused(folder: Path) -> None:
    now = time.time()
    with suppress(OSError):
        for path in [*folder.glob("*.tmp"), *folder.glob("*/*")]:
            remove_older(path, now - (_LEFT_OVER_S if path.suffix == ".tmp" else UNUSED_S))
        for each in folder.iterdir():
            if each.is_dir() and each.name != "urls" and all(path.name == ".lock" for path in each.iterdir()):
                (each / ".lock").unlink(missing_ok=True)
                each.rmdir()
