"""Files of web servers, `https://` and `http://`, read by byte ranges.

    open ─▶ GET bytes=0-0 ─▶ size, ETag, Last-Modified       read in order ─▶ one GET from there to the end, kept open
                                                             read anywhere ─▶ a GET of these bytes

A file is asked for by a range from the start, not by HEAD: servers of signed links refuse HEAD, and the answer tells whether
ranges work. Redirects are followed by each request, up to `_MOST_REDIRECTS`; credentials stay with the host that they are given
for. Content encodings are never taken off: a `.gz` arrives as it is stored.

| what happens | what is done |
|---|---|
| 429, 500, 502, 503, 504 | up to 8 attempts, after what Retry-After asks for, or 0.5 s, 1, 2, 4, 8, 8, 8 |
| refused or dropped connection, no byte in 10 s | up to 4 attempts, after 0.5 s, 1, 2; what has arrived is kept |
| 404, 410; 401, 403 | FileNotFoundError; PermissionError |
| no ranges, no size, another answer | OSError: no further attempt helps |
| another ETag, size or time than when the file was opened | OSError; the engine then finds that the file has changed |

What stays after the last attempt is a TimeoutError or ConnectionError, as that of any store: a run waits for it. Retry-After is
kept up to `_MOST_PAUSE_S`, and to `_MOST_PAUSED_S` in all. A server that sends a byte in nine seconds is not detected as
stalled.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http import HTTPStatus
from time import sleep
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import pyarrow as pa

from datapipe.credentials import masked
from datapipe.storage.file_state import FileState

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 10.0
_MOST_PAUSE_S = 60.0
_MOST_PAUSED_S = 150.0
"""Of one read or request. A worker that is silent for longer than `execution.stall_s`, 600 s, would be ended."""

_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
"""Common Crawl asks for at most one attempt a second while its servers answer 503."""

_NETWORK_ATTEMPTS = 4
_MOST_REDIRECTS = 5
_POOL_CONNECTIONS = 32
_PIECE_BYTES = 1 << 20
_LEAST_LEFT_BYTES = 64 << 10
"""Of an answer, below which its rest is read to keep the connection."""
_THROTTLED = frozenset({408, 425, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_GONE, _REFUSED = frozenset({404, 410}), frozenset({401, 403, 407})
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "datapipe"}


def is_http(url: str) -> bool:
    """Whether a URL is that of a file on a web server."""
    return url.lower().startswith(("http://", "https://"))


def state_of(url: str) -> FileState:
    """What a server tells of a file, by one request. Raises OSError as `open_file`."""
    retries = _Retries(url)
    while True:
        try:
            response, state = _ranged(url, 0, 1)
        except OSError as error:
            retries.wait_after(error)
        else:
            _close(response)
            return state


def open_file(url: str) -> HttpFile:
    """A file for random access.

    Raises:
        FileNotFoundError, PermissionError: the server has no such file, or refuses it.
        ConnectionError, TimeoutError: the server does not answer, or asks to wait for longer than all attempts take.
        OSError: the server gives no ranges, or no size.
    """
    return HttpFile(_Reading(url, state_of(url)), mode="r")


class HttpFile(pa.PythonFile):
    """A file of a web server as Arrow reads it."""

    def __init__(self, reading: _Reading, mode: str) -> None:
        self.state = reading.state


class _Reading:
    """The bytes of a file. A read that begins where the one before ended goes on with the answer to it."""

    closed = False

    def __init__(self, url: str, state: FileState) -> None:
        self.state = state
        self._url = url
        self._position = self._end_of_last = 0
        self._response: Any = None
        self._response_position = 0

    def read(self, num_bytes: int = -1) -> bytes:
        """The next bytes: as many as are asked for, fewer only at the end of the file."""
        left = self.state.num_bytes - self._position
        content = self._read(left if num_bytes < 0 else min(num_bytes, left)) if left > 0 else b""
        self._position += len(content)
        self._end_of_last = self._position
        return content

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.state.num_bytes}[whence]
        self._position = origin + position
        return self._position

    def tell(self) -> int:
        return self._position

    def _read(self, num_bytes: int) -> bytes:
        pieces: list[bytes] = []
        num_read, retries = 0, _Retries(self._url)
        is_in_order = self._position == self._end_of_last > 0
        while num_read < num_bytes:
            try:
                start = self._position + num_read
                if self._response is None or self._response_position != start:
                    self._begin_response(start, None if is_in_order else num_bytes - num_read)
                piece = _content(self._url, self._response, min(_PIECE_BYTES, num_bytes - num_read))
            except OSError as error:
                self.close()
                retries.wait_after(error)
            else:
                pieces.append(piece)
                num_read += len(piece)
                self._response_position += len(piece)
        if self._response is not None and self._response.length_remaining == 0:
            self.close()
        return b"".join(pieces)

    def _begin_response(self, start: int, num_bytes: int | None) -> None:
        self.close()
        self._response, state = _ranged(self._url, start, num_bytes)
        self._response_position = start
        if state != self.state:
            self.close()
            message = "the server sent another version of the file than the one that was opened"
            raise OSError(errno.EBADMSG, message, masked(self._url))

    def close(self) -> None:
        """Ends the open answer, if there is one: a later read asks again."""
        if self._response is not None:
            _close(self._response)
            self._response = None


class _Retries:
    """The attempts of one read or request."""

    def __init__(self, url: str) -> None:
        self._url, self._num_failed, self._paused_s = url, 0, 0.0

    def wait_after(self, error: OSError) -> None:
        """Pauses before the next attempt. Raises the error where there is none."""
        self._num_failed += 1
        throttled = error if isinstance(error, _ThrottledError) else None
        most = len(_PAUSES_S) + 1 if throttled else _NETWORK_ATTEMPTS
        is_over = self._num_failed >= most or self._paused_s >= _MOST_PAUSED_S
        if is_over or not isinstance(error, ConnectionError | TimeoutError):
            raise error if throttled is None else ConnectionError(error.errno, error.strerror, error.filename)
        pause_s = _PAUSES_S[self._num_failed - 1]
        if throttled is not None and throttled.retry_after_s is not None:
            pause_s = min(throttled.retry_after_s, _MOST_PAUSE_S, _MOST_PAUSED_S - self._paused_s)
        self._paused_s += pause_s
        sleep(pause_s)


class _ThrottledError(ConnectionError):
    """The server asks to come later, or fails.

    Attributes:
        retry_after_s: seconds until it wants to be asked again; None where it does not tell.
    """

    def __init__(self, message: str, url: str, retry_after_s: float | None) -> None:
        super().__init__(errno.EAGAIN, message, masked(url))
        self.retry_after_s = retry_after_s


@contextmanager
def _telling(url: str) -> Iterator[None]:
    """Raises errors of the library as those of the operating system, with the URL; their own text has the host alone."""
    from urllib3.exceptions import HTTPError, NewConnectionError
    from urllib3.exceptions import TimeoutError as Stalled

    try:
        yield
    except HTTPError as error:
        lines = masked(str(getattr(error, "reason", None) or error)).splitlines() or [type(error).__name__]
        if isinstance(error, Stalled) and not isinstance(error, NewConnectionError):
            raise TimeoutError(errno.ETIMEDOUT, lines[0], masked(url)) from error
        raise ConnectionError(errno.ECONNABORTED, lines[0], masked(url)) from error


def _ranged(url: str, start: int, num_bytes: int | None) -> tuple[Any, FileState]:
    """The answer to one request for some bytes, its body not read yet, and what it tells of the file.

    Args:
        num_bytes: None for all to the end.
    """
    response = _got(url, f"bytes={start}-{'' if num_bytes is None else start + num_bytes - 1}")
    try:
        return response, _facts(url, response, start)
    except BaseException:
        _close(response)
        raise


def _facts(url: str, response: Any, start: int) -> FileState:
    """What an answer tells. Raises OSError for one that is not these bytes of a file."""
    status, headers, shown = response.status, response.headers, masked(url)
    message = f"HTTP {status} {response.reason or ''}".strip()
    if status in _THROTTLED:
        raise _ThrottledError(message, url, retry_after_s(headers.get("Retry-After")))
    if status in _GONE:
        raise FileNotFoundError(errno.ENOENT, message, shown)
    if status in _REFUSED:
        raise PermissionError(errno.EACCES, f"{message}: the server refuses this file, or asks for credentials", shown)
    is_empty = status == HTTPStatus.OK and headers.get("Content-Length") == "0"
    sent = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "").strip())
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start == 0 and sent is not None and sent[3] == "0":
        is_empty = True
    if not is_empty and status == HTTPStatus.OK:
        why = "" if headers.get("Content-Length", "").isdigit() else ", and tells no size"
        remedy = "Expected a server that takes the header Range. Download the file, and name the copy"
        raise OSError(errno.EOPNOTSUPP, f"the server gives no byte ranges{why}. {remedy}", shown)
    if not is_empty and status != HTTPStatus.PARTIAL_CONTENT:
        raise OSError(errno.EBADMSG, f"{message}; expected 206 Partial Content", shown)
    if not is_empty and (sent is None or sent[1] is None or int(sent[1]) != start or sent[3] == "*"):
        found = headers.get("Content-Range") or "none"
        raise OSError(errno.EBADMSG, f"the server tells no size: Content-Range {found}. Expected 'bytes {start}-…/SIZE'", shown)
    return FileState(
        num_bytes=0 if is_empty or sent is None else int(sent[3]),
        mtime_ns=_time_ns(headers.get("Last-Modified")),
        etag=headers.get("ETag") or None,
    )


def _got(url: str, byte_range: str) -> Any:
    """The answer of the last server, behind all redirects."""
    asked = url
    for _ in range(_MOST_REDIRECTS + 1):
        has_own_host = _host(asked) == _host(url)
        headers = {**_HEADERS, "Range": byte_range, **(_authorization(url) if has_own_host else {})}
        response = _requested(asked, headers)
        location = response.headers.get("Location")
        if response.status not in _REDIRECTS or not location:
            return response
        _close(response)
        following = urljoin(asked, location)
        is_weaker = asked.lower().startswith("https:") and not following.lower().startswith("https:")
        if not is_http(following) or is_weaker:
            raise OSError(errno.EBADMSG, f"the server redirects to {masked(following)}. Expected https", masked(url))
        asked = following
    raise OSError(errno.ELOOP, f"more than {_MOST_REDIRECTS} redirects, the last to {masked(asked)}", masked(url))


def _host(url: str) -> str:
    """Host and port, without credentials."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _requested(url: str, headers: dict[str, str]) -> Any:
    from urllib3 import Timeout

    parts = urlsplit(url)
    bare = parts._replace(netloc=_host(url), fragment="").geturl()
    pool = _pool(os.getpid(), parts.scheme, parts.hostname or "")
    timeout = Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S)
    options: dict[str, Any] = {"preload_content": False, "decode_content": False, "redirect": False, "retries": False}
    with _telling(url):
        return pool.request("GET", bare, headers=headers, timeout=timeout, **options)


def _content(url: str, response: Any, num_bytes: int) -> bytes:
    """The next bytes of an answer, at least one."""
    with _telling(url):
        content = response.read(num_bytes)
    if not content:
        raise ConnectionResetError(errno.ECONNRESET, "the answer ended early", masked(url))
    return content


@lru_cache(maxsize=64)
def _pool(process: int, scheme: str, host: str) -> Any:
    """The connections of a process to a host, through the proxy of the environment, if there is one."""
    from urllib3 import PoolManager, ProxyManager

    proxy = None if proxy_bypass(host) else getproxies().get(scheme)
    if proxy is None:
        return PoolManager(maxsize=_POOL_CONNECTIONS, retries=False)
    return ProxyManager(proxy, maxsize=_POOL_CONNECTIONS, retries=False)


def _authorization(url: str) -> dict[str, str]:
    from urllib3 import make_headers

    user, at, _ = urlsplit(url).netloc.rpartition("@")
    return make_headers(basic_auth=unquote(user)) if at else {}


def _close(response: Any) -> None:
    """Gives the connection back if little is left to read, else ends it."""
    if response.length_remaining is not None and response.length_remaining <= _LEAST_LEFT_BYTES:
        response.drain_conn()
        response.release_conn()
    else:
        response.close()


def retry_after_s(value: str | None) -> float | None:
    """Seconds until a server wants to be asked again, by its Retry-After of seconds or a date; None for anything else."""
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", (value or "").strip()):
        return float(value or "")
    time_ns = _time_ns(value)
    return None if time_ns is None else max(time_ns / 1e9 - datetime.now(UTC).timestamp(), 0.0)


def _time_ns(value: str | None) -> int | None:
    try:
        return None if value is None else int(parsedate_to_datetime(value).timestamp()) * 1_000_000_000
    except (TypeError, ValueError):
        return None
