"""Objects of S3, Google Cloud Storage and Azure, through obstore: the only client of object stores.

    s3://bucket/folder/a%20b?region=eu-1 ─▶ Bucket s3://bucket?region=eu-1, one client for all its keys ─▶ key "folder/a b"

    read     one GET for each read of a file, one GET of 1 MiB for small reads in order; no HEAD where the size is known
    write    one PUT, from 16 MiB on parts of that size, two at a time; the object appears when the stream is closed
    list     page by page

Failures that may pass are tried again (`max_attempts`), then a StoreSilentError; others are a StoreRefusedError or
FileNotFoundError. A store that sends a byte a second never stalls. obstore has no keys with an empty part, "." or "..".
"""

from __future__ import annotations

import errno
import os
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from datapipe.credentials import masked
from datapipe.dataclass import dataclass, replace
from datapipe.errors import UserError
from datapipe.storage.http import Reading, RemoteFile
from datapipe.storage.local import FileState
from datapipe.storage.outages import StoreError, StoreRefusedError, StoreSilentError
from datapipe.storage.store_options import options_of

if TYPE_CHECKING:
    from obstore import SignCapableStore
    from obstore.store import ObjectStore

AHEAD_BYTES = 1 << 20
PART_BYTES, _PARTS_AT_ONCE = 16 << 20, 2  # S3 takes 10,000 parts, so an object has at most 156 GiB
_WRITE_TIMEOUT = "120s"  # of one part: the client counts the time without an answer, not the bytes that it sends
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ANSWER = re.compile(r"status code: (\d+[^:\n]*)")
_CODE = re.compile(r"<Code>(.*?)</Code>(?:.*?<Message>(.*?)</Message>)?", re.DOTALL)
_REQUEST = re.compile(r"Error performing ([A-Z]+) ")
_KIND = re.compile(r"kind: ([A-Z][a-z]+)")
_TEMPORARY_STATUSES = frozenset({"408", "409", "416", "425", "429"})
# of answers with the status 400 or 404; others need a change of the URL or of the credentials
_TEMPORARY_CODES = frozenset({"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "NoSuchUpload"})
_OF_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_OF_NO_OBJECT = (*_OF_NO_BUCKET, "NoSuchUpload")
_METADATA_SERVER = re.compile(r"//(169\.254\.169\.254|metadata\.google\.internal|metadata)\b")

_first_process: list[int] = []


@dataclass(frozen=True)
class Bucket:
    """A bucket by its URL without a path. Methods take keys, which are not percent-encoded."""

    url: str

    def __reduce__(self) -> tuple[type[Bucket], tuple[str]]:
        return type(self), (self.url,)  # its clients stay in this process

    @property
    def name(self) -> str:
        return options_of(self.url).bucket

    @cached_property
    def _reader(self) -> ObjectStore:
        return self.client(timeout="1h", read_timeout=f"{options_of(self.url).limits['request_timeout']}s")

    @cached_property
    def _writer(self) -> ObjectStore:
        return self.client(timeout=_WRITE_TIMEOUT)

    def client(self, retry: Any = None, **limits: str) -> ObjectStore:
        """A client with these limits for each request."""
        from obstore import store  # takes 0.1 s

        options = options_of(self.url)
        attempts, request_s = int(options.limits["max_attempts"]), options.limits["request_timeout"]
        retry = retry or {"max_retries": attempts - 1, "retry_timeout": timedelta(seconds=attempts * (request_s + 6))}
        client = options.of_client() | limits
        make = getattr(store, options.store)
        return make(options.bucket, client_options=client, retry_config=retry, **options.of_store())

    def state(self, key: str) -> FileState:
        if not key:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), masked(self.url))
        with os_errors(self.url, key):
            return _state(self._reader.head(key))

    def is_folder(self, key: str) -> bool:
        with os_errors(self.url, key):
            return self._again(lambda: any(self._reader.list(key or None, chunk_size=1)))

    def open(self, key: str, num_bytes: int | None = None) -> RemoteFile:
        """A file for random access, of a known size without a request."""
        state = self.state(key) if num_bytes is None else FileState(num_bytes=num_bytes)
        return RemoteFile(_Reading(self, key, state), mode="r")

    def read(self, key: str) -> bytes:
        with os_errors(self.url, key):
            return self._reader.get(key).bytes().to_bytes()

    def read_range(self, key: str, start: int, stop: int) -> tuple[memoryview, int]:
        """The bytes of a range, fewer at the end of the object, and the size of the object."""
        try:
            with os_errors(self.url, key):
                answer = self._reader.get(key, options={"range": (start, stop)})
                return memoryview(answer.bytes()), answer.meta["size"]
        except StoreSilentError as error:
            if ": 416 " in (error.strerror or ""):  # the object ends before the range
                return memoryview(b""), start
            raise

    def create(self, key: str) -> StoreUpload:
        return StoreUpload(self.url, key, self._writer)

    def copy(self, source: str, target: str) -> None:
        with os_errors(self.url, source):
            self._writer.copy(source, target)

    def delete(self, key: str) -> None:
        with os_errors(self.url, key):
            self._writer.delete(key)

    def delete_folder(self, key: str) -> None:
        with os_errors(self.url, key):
            for page in self._pages(key):
                keys = [found["path"] for found in page]
                try:
                    self._writer.delete(keys)
                except FileNotFoundError:  # of one that is gone, or of "folder/": Google and Azure stop there
                    for each in keys:
                        with suppress(FileNotFoundError):
                            self._writer.delete(each)

    def entries(self, folder: str, *, recursive: bool) -> Iterator[tuple[str, FileState | None]]:
        """(key, state) of the objects in a folder, or anywhere below it, and (key, None) of folders there."""
        folders = {folder, ""}
        with os_errors(self.url, folder):
            if recursive:
                pages: Any = self._pages(folder)
            else:
                listed = self._again(lambda: self._reader.list_with_delimiter(folder or None))
                yield from ((key, None) for key in listed["common_prefixes"])
                pages = [listed["objects"]]
            for page in pages:
                for found in page:
                    if (key := found["path"]) == folder:  # "folder/"
                        continue
                    if key.rpartition("/")[0] not in folders:
                        above = (key[:at] for at, sign in enumerate(key) if sign == "/" and at > len(folder))
                        new = [each for each in above if each not in folders]
                        folders.update(new)
                        yield from ((each, None) for each in new)
                    if found["size"] or not self._is_marker(key):
                        yield key, _state(found)

    def _pages(self, folder: str) -> Iterator[Any]:
        """The objects below a folder, page by page, from the last one on after an answer that ended early."""
        stream, last = self._reader.list(folder or None, chunk_size=1000), None

        def following() -> Any:
            nonlocal stream
            try:
                return next(stream, None)
            except Exception:
                stream = self._reader.list(folder or None, chunk_size=1000, offset=last)
                raise

        while page := self._again(following):
            yield page
            last = page[-1]["path"]

    def _again(self, listed: Callable[[], Any]) -> Any:
        """Asks again for a list whose answer ended early, which obstore does for objects alone."""
        for left in reversed(range(int(options_of(self.url).limits["max_attempts"]))):
            try:
                return listed()
            except Exception as error:
                if not left or "list response body" not in str(error):
                    raise
        raise AssertionError

    def _is_marker(self, key: str) -> bool:
        """Whether an empty object is "folder/", which consoles create and obstore lists as "folder"."""
        try:
            return self._reader.head(key) is None
        except FileNotFoundError:
            return True

    def create_bucket(self) -> None:
        """Creates the bucket, where its URL allows that. obstore only signs this request."""
        import httpx2 as httpx
        from obstore import sign

        options = options_of(self.url)
        missing = options.no_bucket()
        if not options.is_on("allow_bucket_creation"):
            raise UserError(f"{missing}.")
        region = options.of_store().get("region", "us-east-1")
        place = f"<LocationConstraint>{region}</LocationConstraint>" if region != "us-east-1" else ""
        url = sign(cast("SignCapableStore", self._writer), "PUT", "", timedelta(minutes=5))
        content = f"<CreateBucketConfiguration>{place}</CreateBucketConfiguration>" if place else ""
        ca = options.given.get("tls_ca_file_path")
        verify = options.is_on("tls_verify_certificates", "1") and (ssl.create_default_context(cafile=ca) if ca else True)
        answer = httpx.put(url, content=content, verify=verify)
        if not answer.is_success:
            raise UserError(f"{self.url}: the store refuses to create it, HTTP {answer.status_code}. {missing}.")


class _Reading(Reading):
    """The bytes of an object. A read that begins where the last one ended reads ahead. Each answer gives the size again."""

    def __init__(self, bucket: Bucket, key: str, state: FileState) -> None:
        super().__init__(state)
        self._bucket, self._key = bucket, key
        self._held, self._held_start = memoryview(b""), 0

    def read(self, num_bytes: int = -1) -> pa.Buffer:
        """The next bytes, in memory that Arrow may map numbers to; the client's own may not be aligned."""
        start, size = self._position, self.state.num_bytes
        stop = size if num_bytes < 0 else min(start + num_bytes, size)
        if start >= stop:
            return pa.py_buffer(b"")
        if start < self._held_start or stop > self._held_start + len(self._held):
            ahead = AHEAD_BYTES if start == self._end_of_last > 0 else 0
            self._held, now = self._bucket.read_range(self._key, start, min(max(stop, start + ahead), size))
            self.state, self._held_start = replace(self.state, num_bytes=now), start
        found = pa.py_buffer(self._held[start - self._held_start : stop - self._held_start])
        self._position = self._end_of_last = start + len(found)
        if len(found) == len(self._held):  # all of them: nothing to keep for the next read
            self.close()
        return found if found.address % 16 == 0 else pa.py_buffer(found.to_pybytes())

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        before = self._position
        if super().seek(position, whence) != before:  # a caller that found damage asks the store again
            self.close()
        return self._position

    def close(self) -> None:
        self._held = memoryview(b"")


class StoreUpload:
    """A new object, which appears when it is closed."""

    closed = False

    def __init__(self, url: str, key: str, store: ObjectStore) -> None:
        from obstore import open_writer

        self._url, self._key = url, key
        with os_errors(url, key):
            self._writer = open_writer(store, key, buffer_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def write(self, content: Any) -> None:
        view = memoryview(content).cast("B")
        with os_errors(self._url, self._key):  # obstore keeps what it is given until the part is sent
            self._writer.write(view if view.readonly else bytes(view))

    def flush(self) -> None:
        """Parts are sent when they are full."""

    def abandon(self) -> None:
        """Ends the upload without an object. The store keeps the parts that it has until its own rules delete them."""
        self.closed = True
        del self._writer

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with os_errors(self._url, self._key):
                self._writer.close()


def _state(found: Any) -> FileState:
    age = found["last_modified"] - _EPOCH
    return FileState(num_bytes=found["size"], mtime_ns=age // timedelta(microseconds=1) * 1000, etag=found["e_tag"])


@contextmanager
def os_errors(url: str, key: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raises obstore's errors, but those `passing`, as those of the operating system. Theirs quote URLs with signatures."""
    from obstore import exceptions

    _first_process[:] = _first_process or [os.getpid()]
    if _first_process != [os.getpid()]:
        raise UserError(
            f"{url}: this process was forked after the object store had been used, whose client does not survive a fork. Start "
            f"processes by 'spawn' or 'forkserver', or fork before"
        )
    try:
        yield
    except (*passing, StoreError):
        raise
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise _in_words(error, url, key) from None


def _in_words(error: Exception, url: str, key: str) -> OSError:
    text, where = str(error), masked(f"{url.partition('?')[0]}/{key}")
    answer, code, request, kind = (pattern.search(text) for pattern in (_ANSWER, _CODE, _REQUEST, _KIND))
    if isinstance(error, FileNotFoundError) and not (code and code[1] in _OF_NO_OBJECT):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where)
    if code and code[1] in _OF_NO_BUCKET:
        return options_of(url).no_bucket(key)
    status = answer[1][:3] if answer else ""
    cause = answer[1] if answer else text.partition("\n")[0].rpartition(" - ")[2] + (f" ({kind[1]})" if kind else "")
    parts = (request and request[1], cause, code and code[1], code and code[2])
    message = masked(": ".join(part.strip() for part in parts if part))
    is_temporary = status in _TEMPORARY_STATUSES or (code is not None and code[1] in _TEMPORARY_CODES)
    is_refused = (status.startswith("4") and not is_temporary) or "(code: AccessDenied)" in text  # of one of many deletions
    if status == "400" and not code:
        message = f"{message}. Renew the credentials: a store answers so once they have expired, or for another region"
    if "Received redirect without LOCATION" in text:
        is_refused, message = True, "the bucket is in another region. Name it in the URL, as in ?region=eu-central-1"
    if _METADATA_SERVER.search(text) and not status.startswith("5"):
        is_refused, message = True, "found no credentials in the URL, the environment, the files of AWS or the machine"
    is_silent = is_temporary or (text.startswith("Generic") and not is_refused)
    return (StoreSilentError if is_silent else StoreRefusedError)(errno.EIO, message, where)
