"""Failures of disks, stores and hubs: which of them may pass, and the words for them.

exception ─▶ outage_of ─▶ Outage    full disk, or a disk, store or hub that does not answer: it may pass
          └▶ refusal_of ─▶ text     access denied, read-only, no such URL: it stays until somebody changes something
"""

import errno
import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Self

from datapipe.credentials import masked
from datapipe.dataclass import dataclass
from datapipe.errors import DatapipeError, UserError
from datapipe.quantities import size

_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
_SILENT = frozenset(  # of disks and network file systems
    {
        *(errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED),
    }
)
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG})
_HTTP_PACKAGES = frozenset({"aiohttp", "httpcore", "httpx", "httpx2", "huggingface_hub", "requests", "urllib3"})
_MALFORMED = frozenset({"InvalidURL", "UnsupportedProtocol"})  # about a URL; those of huggingface_hub are ValueErrors


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """A disk that is full, or a disk, store or hub without an answer. `where` is masked; `free_bytes` is None for a store."""

    where: str
    cause: str
    free_bytes: int | None = None

    def __str__(self) -> str:
        free = "" if self.free_bytes is None else f", {size(self.free_bytes)} free"
        return ": ".join(part for part in (self.where, f"{self.cause}{free}") if part)

    @property
    def short(self) -> str:
        """Where, and what in a few words: "s3://bucket/a.jsonl: no answer"."""
        return ": ".join(part for part in (self.where, self.cause.partition(":")[0]) if part)


class StoreError(OSError):
    """An object store fails after all attempts: (EIO, what happened, masked URL)."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class StoreSilentError(StoreError):
    """It does not answer, or fails. It may pass."""


class StoreRefusedError(StoreError):
    """It refuses the request."""


class NoBucketError(StoreRefusedError):
    """It has no such bucket. The message says what to do."""


class OutageError(DatapipeError):
    """A task or a run could not read or write, but a later attempt may."""

    def __init__(self, outage: Outage) -> None:
        super().__init__(str(outage))
        self.outage = outage

    def __reduce__(self) -> tuple[type[Self], tuple[Outage]]:
        return type(self), (self.outage,)


def outage_of(error: BaseException, url: str) -> Outage | None:
    """The outage that an exception reports, or None. `url`: the folder in use, for an error that names no file."""
    if isinstance(error, OutageError):
        return error.outage
    if refusal_of(error) is not None or type(error) is BrokenPipeError:  # that of a program which read what we print
        return None
    number = error.errno if isinstance(error, OSError) else None
    if number in _FULL:
        path = min(_paths(error, url), key=lambda path: free_bytes(path) or 0, default=os.sep)  # the first one on a disk
        return Outage(where=path, cause=_FULL[number], free_bytes=free_bytes(path))
    if _is_of_store(error) or number in _SILENT or isinstance(error, ConnectionError | TimeoutError):
        cause = error.strerror if isinstance(error, StoreError) else error_line(error)
        return Outage(where=masked(_named(error) or url), cause=masked(f"no answer: {cause}"))
    return None


def refusal_of(error: BaseException, url: str = "") -> str | None:
    """Why an exception stays until somebody changes something, and what to do; None for any other. `url`: the folder in use."""
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return masked(f"{error_line(error)}. Raise the limit of open files, now {limit} (`ulimit -n`), or run fewer --workers")
    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = f"{url}: " if url and not _named(error) and url not in str(error) else ""
        return masked(f"{where}{os.strerror(error.errno or 0)}: {error_line(error)}. Give this user access")
    if _is_malformed(error):
        return masked(f"{error_line(error)}. Expected a URL such as {right_url('hf')}")
    status = getattr(getattr(error, "response", None), "status_code", None)  # of an error of an HTTP library
    if not isinstance(error, StoreRefusedError) and not (_is_of_store(error) and status in (401, 403, 404)):
        return None
    if isinstance(error, NoBucketError):
        return masked(str(error))
    public = " (s3://anonymous@BUCKET/… reads a public bucket)" if "s3://" in str(error) else ""
    return masked(f"{error_line(error)}. Give this user access{public}")


def right_url(url: str) -> str:
    """A URL as it may look on the store of `url`, for messages."""
    folder = "hf://datasets/OWNER/NAME" if url.startswith("hf") else "gs://bucket" if url.startswith("gs") else "s3://bucket"
    return f"{folder}/folder/*.parquet"


def input_error(error: OSError, where: str, action: str, url: str) -> DatapipeError:
    """The error of a file or folder that planning cannot read: OutageError if it may be read later. `action`: "cannot list"."""
    outage = outage_of(error, url)
    if outage is not None:
        return OutageError(outage)
    return UserError(f"{where}: {action} {url}: {error.strerror or error}")


def free_bytes(path: str) -> int | None:
    """Bytes that this user can still write to the disk of a path; None where unknown."""
    while True:
        try:
            status = os.statvfs(path)
        except FileNotFoundError:
            path = os.path.dirname(os.path.abspath(path))
        except OSError:
            return None
        else:
            return status.f_bavail * status.f_frsize if status.f_favail or not status.f_files else 0


def may_write(path: str) -> bool:
    """Whether this user may write into a folder, or into the nearest one above it that exists, and its disk has room."""
    while not os.path.exists(path):
        path = os.path.dirname(os.path.abspath(path))
    return os.access(path, os.W_OK | os.X_OK) and free_bytes(path) != 0


def _paths(error: BaseException, url: str) -> Iterator[str]:
    """The folder of the named file, or else `url`, if local, and the folder of temporary files."""
    if isinstance(error, OSError) and isinstance(error.filename, str):
        yield os.path.dirname(os.path.abspath(error.filename))
        return
    if "://" not in url or url.startswith("file://"):
        yield os.path.abspath(url.removeprefix("file://"))
    with suppress(OSError):  # there is no such folder
        yield tempfile.gettempdir()


def _is_of_store(error: BaseException) -> bool:
    return isinstance(error, StoreSilentError) or (_is_of_http(error) and not _is_malformed(error))


def _is_of_http(error: BaseException) -> bool:
    return any(base.__module__.partition(".")[0] in _HTTP_PACKAGES for base in type(error).__mro__)


def _is_malformed(error: BaseException) -> bool:
    """Whether a URL is malformed. An OSError, as of requests, may be an answer that is not JSON."""
    is_value = isinstance(error, ValueError) and not isinstance(error, OSError)
    return _is_of_http(error) and (is_value or type(error).__name__ in _MALFORMED)


def _named(error: BaseException) -> str:
    name = error.filename if isinstance(error, OSError) else None
    with suppress(RuntimeError):  # httpx: the error has no request
        name = name or getattr(getattr(error, "request", None), "url", None)
    return "" if name is None else str(name)


def error_line(error: BaseException) -> str:
    """The kind of an error and its first line: "OSError: no answer"."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
