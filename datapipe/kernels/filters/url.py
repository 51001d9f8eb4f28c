"""Columns of URLs: their normal form and their hosts.

    https://www.Example.com/a/?utm_source=x   ->   example.com/a   ->   host example.com

The form is that of C4 (`normalize_url` in TFDS's `c4_utils.py`), in this order:

1. Every `http://` and `https://` is removed, at any offset, with a `www.` after it. 2. Everything from the first `?utm_`,
`?ref` or `?feed` on is removed: `?reference=1` too, but `?a=1&utm_source=x` stays. 3. Slashes at the end are removed.

Beyond C4, the scheme and `www.` are matched in any case, a `www.` at the start is removed without a
scheme too, and the host is lower-cased in ASCII.
"""

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, UInt8sOut

_AT, _BRACKET, _CLOSING, _COLON, _DOT = (np.uint8(ord(sign)) for sign in "@[]:.")
_SLASH, _QUESTION, _HASH, _LOW_LINE, _D, _F = (np.uint8(ord(sign)) for sign in "/?#_df")
_SCHEME = np.frombuffer(b"http", np.uint8)
_AFTER_SCHEME = np.frombuffer(b"://", np.uint8)
_WWW = np.frombuffer(b"www.", np.uint8)
_UTM, _REF, _FEED = (np.frombuffer(prefix, np.uint8) for prefix in (b"?utm_", b"?ref", b"?feed"))
_S = np.uint8(ord("s"))


def normalize_urls(starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """URLs [starts, stops) of `data` in normal form: offsets (num_urls + 1,) int64 from 0, and bytes."""
    offsets, out = np.empty(len(starts) + 1, np.int64), np.empty(int((stops - starts).sum()), np.uint8)
    normalize(starts, stops, data, offsets, out)
    return offsets, out[: offsets[-1]]


@kernel
def normalize(starts: Int64s, stops: Int64s, data: UInt8s, out_offsets: Int64sOut, out: UInt8sOut) -> None:
    """Writes each URL in normal form; see `normalize_urls`. `out`: at least as long as all URLs."""
    num_written = np.int64(0)
    out_offsets[0] = 0
    for url in range(len(starts)):
        first, offset, stop = num_written, starts[url], stops[url]
        offset += _www(data, offset, stop)
        while offset < stop:
            size = _scheme(data, offset, stop)
            if size:
                offset += size
                continue
            byte = data[offset]
            out[num_written] = byte
            num_written, offset = num_written + 1, offset + 1
            if byte == _LOW_LINE or byte == _D or byte == _F:
                size = _tracking(out, first, num_written)
                if size:
                    num_written -= size
                    break
        while num_written > first and out[num_written - 1] == _SLASH:
            num_written -= 1
        host_start, host_stop = _host(out, first, num_written)
        for index in range(host_start, host_stop):
            if 0x41 <= out[index] <= 0x5A:
                out[index] |= 0x20
        out_offsets[url + 1] = num_written


@kernel
def find_hosts(offsets: Int64s, data: UInt8s, starts: Int64sOut, stops: Int64sOut) -> None:
    """Finds the host of each URL, normal, without user, port, `www.` and final dot; or nothing."""
    for url in range(len(offsets) - 1):
        start, stop = _host(data, offsets[url], offsets[url + 1])
        start += _www(data, start, stop)
        if stop > start and data[stop - 1] == _DOT:
            stop -= 1
        starts[url], stops[url] = start, stop


@inline
def _host(data, start, stop) -> tuple[Any, Any]:
    """Start and stop of the host of a URL, with or without a scheme, as `urllib.parse` finds it."""
    end = _authority_end(data, start, stop)
    if end > start and data[end - 1] == _COLON and end + 1 < stop and data[end] == _SLASH and data[end + 1] == _SLASH:
        start = end + 2  # another scheme: ftp://
    elif end == start and end + 1 < stop and data[end] == _SLASH and data[end + 1] == _SLASH:
        start = end + 2
    end = _authority_end(data, start, stop)
    for offset in range(start, end):
        if data[offset] == _AT:
            start = offset + 1
    sign = _COLON
    if start < end and data[start] == _BRACKET:
        start, sign = start + 1, _CLOSING
    for offset in range(start, end):
        if data[offset] == sign:
            return start, offset
    return start, end


@inline
def _authority_end(data, start, stop) -> Any:
    for offset in range(start, stop):
        if data[offset] == _SLASH or data[offset] == _QUESTION or data[offset] == _HASH:
            return offset
    return stop


@inline
def _scheme(data, offset, stop) -> Any:
    """Bytes of the `http://` or `https://` at `offset`, with a `www.` after it; 0 where there is none."""
    if data[offset] | 0x20 != _SCHEME[0] or not _starts_with(data, offset, stop, _SCHEME, True):
        return 0
    end = offset + len(_SCHEME)
    if end < stop and data[end] | 0x20 == _S:
        end += 1
    if not _starts_with(data, end, stop, _AFTER_SCHEME, False):
        return 0
    end += len(_AFTER_SCHEME)
    return end + _www(data, end, stop) - offset


@inline
def _www(data, offset, stop) -> Any:
    return len(_WWW) if _starts_with(data, offset, stop, _WWW, True) else 0


@inline
def _tracking(out, first, stop) -> Any:
    """Bytes of the start of a tracking parameter that ends at `stop`; 0 where none ends there."""
    for prefix in (_UTM, _REF, _FEED):
        if stop - first >= len(prefix) and _starts_with(out, stop - len(prefix), stop, prefix, False):
            return len(prefix)
    return 0


@inline
def _starts_with(data, offset, stop, wanted, any_case) -> Any:
    if offset + len(wanted) > stop:
        return False
    for index in range(len(wanted)):
        byte = data[offset + index]
        if any_case and 0x41 <= byte <= 0x5A:
            byte |= 0x20
        if byte != wanted[index]:
            return False
    return True
