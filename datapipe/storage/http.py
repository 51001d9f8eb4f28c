"""Files of web servers, `https://` and `http://`, read by byte ranges.

    open ─▶ GET bytes=0-0 ─▶ size, ETag, Last-Modified       read in order ─▶ one GET from there to the end, kept open
                                                             read anywhere ─▶ a GET of these bytes

Opening asks for a range, since servers of signed links refuse HEAD. Credentials stay with their host, also when it redirects.

| 429, 500, 502, 503, 504                        | up to 8 attempts, after what Retry-After asks for, at most a minute         |
| refused or dropped connection, no byte in 10 s | up to 4 attempts; what has arrived is kept                                  |
| no ranges, no size, another answer             | OSError: no further attempt helps                                           |
| another ETag, size or time than when opened    | OSError; the engine then finds that the file has changed                    |

The last attempt raises TimeoutError or ConnectionError, for which a run waits.
"""

from __future__ import annotations

import atexit
import errno
import math
import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from http import HTTPStatus
from time import sleep
from typing import Any

import pyarrow as pa

from datapipe.credentials import masked
from datapipe.machine.retries import RetryPolicy, retry_io
from datapipe.storage.local import FileState

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 10.0
_MOST_PAUSED_S = 150.0  # of one read or request: a worker that is silent for `execution.stall_s`, 600 s, would be ended
_NETWORK = RetryPolicy(first_s=0.5, longest_s=8.0, most_attempts=4)
_BUSY = RetryPolicy(first_s=0.5, longest_s=8.0, most_attempts=8, longest_asked_s=60.0)
_MOST_REDIRECTS = 5
_KEPT_CONNECTIONS = 32
_LEAST_LEFT_BYTES = 64 << 10  # of an answer, below which its rest is read to keep the connection
_BUSY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_GONE, _REFUSED = frozenset({404, 410}), frozenset({401, 403, 407})
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "datapipe"}


def is_http(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def state_of(url: str) -> FileState:
    """The state of a file, by one request. Raises OSError as `open_file`."""
    answer = retry_io(lambda: _Answer(url, 0, 1), _Retries().pause_after, sleep)
    answer.close()
    return answer.state


def open_file(url: str) -> RemoteFile:
    """A file for random access. Raises OSError."""
    return RemoteFile(_Reading(url, state_of(url)), mode="r")


class RemoteFile(pa.PythonFile):
    """A file of a web server or an object store as Arrow reads it."""

    def __init__(self, reading: Reading, mode: str) -> None:
        self.state = reading.state


class Reading:
    """The position in a remote file, and where the last read ended."""

    closed = False

    def __init__(self, state: FileState) -> None:
        self.state = state
        self._position = self._end_of_last = 0

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.state.num_bytes}[whence]
        if origin + position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._position = origin + position
        return self._position

    def tell(self) -> int:
        return self._position


class _Reading(Reading):
    """The bytes of a file. A read that begins where the last one ended continues its answer."""

    def __init__(self, url: str, state: FileState) -> None:
        super().__init__(state)
        self._url = url
        self._answer: _Answer | None = None

    def read(self, num_bytes: int = -1) -> bytes:
        """The next bytes; fewer than `num_bytes` only at the end of the file."""
        left = self.state.num_bytes - self._position
        content = self._read(left if num_bytes < 0 else min(num_bytes, left)) if left > 0 else b""
        self._position += len(content)
        self._end_of_last = self._position
        return content

    def _read(self, num_bytes: int) -> bytes:
        pieces: list[bytes] = []
        num_read, retries = 0, _Retries()
        is_in_order = self._position == self._end_of_last > 0
        while num_read < num_bytes:
            start, wanted = self._position + num_read, num_bytes - num_read
            piece = retry_io(partial(self._piece, start, wanted, is_in_order), retries.pause_after, sleep)
            pieces.append(piece)
            num_read += len(piece)
        return b"".join(pieces)

    def _piece(self, start: int, num_bytes: int, is_in_order: bool) -> bytes:
        """Some of the next bytes, at least one, of the open answer or of a new one."""
        try:
            if self._answer is None or self._answer.position != start:
                self.close()
                self._answer = _Answer(self._url, start, None if is_in_order else num_bytes)
                if self._answer.state != self.state:
                    message = "the server sent another version of the file than the one that was opened"
                    raise OSError(errno.EBADMSG, message, masked(self._url))
            piece = self._answer.read(num_bytes)
        except OSError:
            self.close()
            raise
        if self._answer.num_left == 0:
            self.close()
        return piece

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None


class _Retries:
    def __init__(self) -> None:
        self._num_failed, self._paused_s = 0, 0.0

    def pause_after(self, error: OSError, number: int) -> float:
        """Seconds until the next attempt. Raises the error of the last one."""
        self._num_failed += 1
        is_busy = isinstance(error, _BusyError)
        policy = _BUSY if is_busy else _NETWORK
        is_over = self._num_failed >= policy.most_attempts or self._paused_s >= _MOST_PAUSED_S
        if is_over or not isinstance(error, ConnectionError | TimeoutError):
            raise ConnectionError(error.errno, error.strerror, error.filename) if is_busy else error
        pause_s = policy.pause_s(self._num_failed, error.retry_after_s if is_busy else None)
        pause_s = min(pause_s, _MOST_PAUSED_S - self._paused_s)
        self._paused_s += pause_s
        return pause_s


class _BusyError(ConnectionError):
    """The server fails, or asks to come later, after `retry_after_s` if it is not None."""

    def __init__(self, message: str, url: str, retry_after_s: float | None) -> None:
        super().__init__(errno.EAGAIN, message, masked(url))
        self.retry_after_s = retry_after_s


class _Answer:
    """The answer to one request for `num_bytes` of a file, None for all, as it arrives. `num_left`: unread bytes of it."""

    def __init__(self, url: str, start: int, num_bytes: int | None) -> None:
        self._url, self.position = url, start
        self._response = _requested(url, f"bytes={start}-{'' if num_bytes is None else start + num_bytes - 1}")
        length = self._response.headers.get("Content-Length", "")
        self.num_left = int(length) if length.isdecimal() else math.inf
        self._chunks: Iterator[bytes] = self._response.iter_raw()
        self._chunk = b""
        try:
            self.state = _facts(url, self._response, start)
        except BaseException:
            self.close()
            raise

    def read(self, num_bytes: int) -> bytes:
        if not self._chunk:
            with _named_errors(self._url):
                self._chunk = next(self._chunks, b"")
        if not self._chunk:
            raise ConnectionResetError(errno.ECONNRESET, "the answer ended early", masked(self._url))
        piece, self._chunk = self._chunk[:num_bytes], self._chunk[num_bytes:]
        self.position += len(piece)
        self.num_left -= len(piece)
        return piece

    def close(self) -> None:
        """Gives the connection back if little is left to read, else ends it."""
        with closing(self._response), suppress(OSError):  # after a connection that broke the next request makes another one
            if self.num_left <= _LEAST_LEFT_BYTES:
                with _named_errors(""):
                    deque(self._chunks, maxlen=0)


@contextmanager
def _named_errors(url: str) -> Iterator[None]:
    """Raises errors of the library as those of the operating system, with the URL."""
    import httpx2 as httpx

    try:
        yield
    except httpx.TransportError as error:
        line = (masked(str(error)).splitlines() or [type(error).__name__])[0]
        if isinstance(error, httpx.TimeoutException):
            raise TimeoutError(errno.ETIMEDOUT, line, masked(url)) from error
        raise ConnectionError(errno.ECONNABORTED, line, masked(url)) from error
    except httpx.InvalidURL as error:
        raise OSError(errno.EINVAL, masked(str(error)), masked(url)) from error


def _facts(url: str, response: Any, start: int) -> FileState:
    """The state of the file. Raises OSError for an answer that is not these bytes of a file."""
    status, headers, shown = response.status_code, response.headers, masked(url)
    message = f"HTTP {status} {response.reason_phrase}".strip()
    if status in _BUSY_STATUSES:
        raise _BusyError(message, url, retry_after_s(headers.get("Retry-After")))
    if status in _GONE:
        raise FileNotFoundError(errno.ENOENT, message, shown)
    if status in _REFUSED:
        raise PermissionError(errno.EACCES, f"{message}: the server refuses this file, or asks for credentials", shown)
    is_empty = status == HTTPStatus.OK and headers.get("Content-Length") == "0"
    sent = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "").strip())
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start == 0 and sent is not None and sent[3] == "0":
        is_empty = True
    if not is_empty and status == HTTPStatus.OK:
        why = "" if headers.get("Content-Length", "").isdigit() else ", and sends no size"
        remedy = "Expected a server that takes the header Range. Download the file, and name the copy"
        raise OSError(errno.EOPNOTSUPP, f"the server gives no byte ranges{why}. {remedy}", shown)
    if not is_empty and status != HTTPStatus.PARTIAL_CONTENT:
        raise OSError(errno.EBADMSG, f"{message}; expected 206 Partial Content", shown)
    if not is_empty and (sent is None or sent[1] is None or int(sent[1]) != start or sent[3] == "*"):
        found = headers.get("Content-Range") or "none"
        raise OSError(errno.EBADMSG, f"the server sends no size: Content-Range {found}. Expected 'bytes {start}-…/SIZE'", shown)
    return FileState(
        num_bytes=0 if is_empty or sent is None else int(sent[3]),
        mtime_ns=_time_ns(headers.get("Last-Modified")),
        etag=headers.get("ETag") or None,
    )


def _requested(url: str, byte_range: str) -> Any:
    """The answer of the last server after redirects, its body not read yet."""
    import httpx2 as httpx

    timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=None)
    client = _client(os.getpid())
    with _named_errors(url):
        request = client.build_request("GET", url, headers={"Range": byte_range}, timeout=timeout)
        for _ in range(_MOST_REDIRECTS + 1):
            response = client.send(request, stream=True)
            following = response.next_request
            if following is None:
                return response
            response.read()
            is_weaker = request.url.scheme == "https" and following.url.scheme != "https"
            if following.url.scheme not in ("http", "https") or is_weaker:
                target = masked(str(following.url))
                raise OSError(errno.EBADMSG, f"the server redirects to {target}. Expected https", masked(url))
            request = following
    raise OSError(errno.ELOOP, f"more than {_MOST_REDIRECTS} redirects, the last to {masked(str(request.url))}", masked(url))


@lru_cache(maxsize=1)
def _client(process: int) -> Any:
    import httpx2 as httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=_KEPT_CONNECTIONS)
    client = httpx.Client(headers=_HEADERS, limits=limits, follow_redirects=False)
    atexit.register(client.close)
    return client


def retry_after_s(value: str | None) -> float | None:
    """Seconds of a Retry-After header, a number or a date; None for anything else."""
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", (value or "").strip()):
        return float(value or "")
    time_ns = _time_ns(value)
    return None if time_ns is None else max(time_ns / 1e9 - datetime.now(UTC).timestamp(), 0.0)


def _time_ns(value: str | None) -> int | None:
    try:
        return None if value is None else int(parsedate_to_datetime(value).timestamp()) * 1_000_000_000
    except (TypeError, ValueError):
        return None
