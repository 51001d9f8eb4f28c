r"""Measurements of `filter.code_quality`, from the bytes of source files. All are 0 for an empty file.

    bytes  ->  measure_code     lines, their mean and greatest length, shares of letters and digits, characters
           ->  measure_encoded  runs of base64, hexadecimal bytes and `\u` escapes: the longest and all
           ->  first_lines, find_markers     words at the beginning of a file

Lengths of lines are in characters, without the newline. A byte that belongs to no character counts
as one. The runs are those of the regular expressions in the StarCoder2 paper, found in linear time:

    [a-zA-Z0-9+/\n=]{64,}      (?:\b(?:0x|\\x)?[0-9a-fA-F]{2}(?:,|\b\s*)){8,}      (?:\\u[0-9a-fA-F]{4}){8,}

where bytes above 127 are word characters and white space is that of ASCII. In 64 bytes that end
with a blank no run of 64 begins, so the search goes on after the blank.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.text.unicode_classes import LETTER, NUMBER, class_table, decode
from datapipe.kernels.types import Float64MatrixOut, Int64MatrixOut, Int64s, Int64sOut, UInt8s, UInt8sOut

NUM_LINES, MEAN_LENGTH, MAX_LENGTH, ALPHANUMERIC, ALPHABETIC, NUM_CHARS = range(6)
"""Columns of `code_measures`."""

LONGEST, MATCHED = range(2)  # columns of `encoded_runs`, in characters
_BASE64, _BYTES, _ESCAPES = range(3)
_WINDOWS = (64, 23, 48)
"""The shortest run of each kind: 64 characters, 8 bytes such as `12,` (no comma at the end), 8 escapes such as `\\u1234`."""

_WORD_BIT, _HEX_BIT, _SPACE_BIT = 8, 16, 32
_NEWLINE, _COMMA, _BACKSLASH, _ZERO, _X, _U = (ord(sign) for sign in "\n,\\0xu")


def _byte_kinds() -> np.ndarray:
    """(256,) uint8: bits 0 to 2 are whether a byte may be in a run of each kind, the other bits its class."""
    kinds = np.zeros(256, np.uint8)
    digits, hexadecimal = b"0123456789", b"0123456789abcdefABCDEF"
    letters = bytes(range(0x41, 0x5B)) + bytes(range(0x61, 0x7B))
    spaces = b" \t\n\r\x0b\x0c"
    for bit, members in (
        (1 << _BASE64, digits + letters + b"+/\n="),
        (1 << _BYTES, hexadecimal + b"x\\," + spaces),
        (1 << _ESCAPES, hexadecimal + b"u\\"),
        (_WORD_BIT, digits + letters + b"_" + bytes(range(0x80, 0x100))),
        (_HEX_BIT, hexadecimal),
        (_SPACE_BIT, spaces),
    ):
        kinds[list(members)] |= bit
    return kinds


BYTE_KINDS = _byte_kinds()


def code_measures(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """(num_docs, 6) float64: lines, their mean and maximum length, shares of letters and digits and of letters, characters."""
    out = np.empty((len(offsets) - 1, 6))
    measure_code(offsets, data, class_table(), out)
    return out


def encoded_runs(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Characters in the longest run of encoded data of each text, and in all its runs together: (num_docs, 2) int64."""
    out = np.empty((len(offsets) - 1, 2), np.int64)
    measure_encoded(offsets, data, BYTE_KINDS, out)
    return out


def has_marker(offsets: np.ndarray, data: np.ndarray, stops: np.ndarray, markers: Sequence[str]) -> np.ndarray:
    """Whether each text contains a marker, in any ASCII case, before `stops` (num_docs,) int64: (num_docs,) uint8."""
    lower = [marker.encode().lower() for marker in markers]
    ends = np.cumsum([0, *map(len, lower)], dtype=np.int64)
    out = np.empty(len(stops), np.uint8)
    find_markers(offsets, stops, data, ends, np.frombuffer(b"".join(lower), np.uint8), out)
    return out


@kernel
def measure_code(offsets: Int64s, data: UInt8s, classes: UInt8s, out: Float64MatrixOut) -> None:
    """Fills `out` (num_docs, 6); see `code_measures`."""
    for doc in range(len(offsets) - 1):
        start, stop = offsets[doc], offsets[doc + 1]
        num_chars, letters, digits, high = stop - start, np.int64(0), np.int64(0), np.uint8(0)
        for offset in range(start, stop):
            byte = data[offset]
            high |= byte
            letters += np.int64(np.uint8((byte | np.uint8(0x20)) - np.uint8(0x61)) < np.uint8(26))
            digits += np.int64(np.uint8(byte - np.uint8(0x30)) < np.uint8(10))
        if high < 0x80:
            num_lines, longest = _ascii_lines(data, start, stop)
        else:
            num_lines, longest, num_chars, letters, digits = _decoded(data, start, stop, classes)
        newlines = num_lines - np.int64(stop > start and data[stop - 1] != _NEWLINE)
        out[doc, NUM_LINES] = num_lines
        out[doc, MEAN_LENGTH] = (num_chars - newlines) / max(num_lines, 1)
        out[doc, MAX_LENGTH] = longest
        out[doc, ALPHANUMERIC] = (letters + digits) / max(num_chars, 1)
        out[doc, ALPHABETIC] = letters / max(num_chars, 1)
        out[doc, NUM_CHARS] = num_chars


@inline
def _ascii_lines(data, start, stop) -> tuple[Any, Any]:
    """Number of lines, and bytes of the longest line."""
    num_lines, longest, begin = np.int64(0), np.int64(0), start
    for offset in range(start, stop):
        if data[offset] == _NEWLINE:
            num_lines += 1
            longest = max(longest, offset - begin)
            begin = offset + 1
    return num_lines + np.int64(begin < stop), max(longest, stop - begin)


@inline
def _decoded(data, start, stop, classes) -> tuple[Any, Any, Any, Any, Any]:
    """Number of lines, characters of the longest line, characters, letters and numbers."""
    num_lines, longest, length = np.int64(0), np.int64(0), np.int64(0)
    num_chars, letters, numbers, offset = np.int64(0), np.int64(0), np.int64(0), start
    while offset < stop:
        code, size = decode(data, offset, stop)
        offset += size
        num_chars += 1
        length += 1
        kind = classes[code]
        letters += np.int64(kind == LETTER)
        numbers += np.int64(kind == NUMBER)
        if code == _NEWLINE:
            num_lines += 1
            longest = max(longest, length - 1)
            length = np.int64(0)
    return num_lines + np.int64(length > 0), max(longest, length), num_chars, letters, numbers


@kernel
def measure_encoded(offsets: Int64s, data: UInt8s, kinds: UInt8s, out: Int64MatrixOut) -> None:
    """Fills `out` (num_docs, 2); see `encoded_runs`. Runs that overlap count once. `kinds`: `BYTE_KINDS`."""
    starts, stops = np.empty(3, np.int64), np.empty(3, np.int64)
    for doc in range(len(offsets) - 1):
        first, end = offsets[doc], offsets[doc + 1]
        longest, matched, covered = np.int64(0), np.int64(0), first
        for kind in range(3):
            starts[kind], stops[kind] = _next_run(data, first, first, end, kinds, kind)
        while True:
            kind = np.int64(starts[1] < starts[0])
            if starts[2] < starts[kind]:
                kind = np.int64(2)
            start, stop = starts[kind], stops[kind]
            if start == end:
                break
            longest = max(longest, stop - start)
            matched += max(stop - max(start, covered), 0)
            covered = max(covered, stop)
            starts[kind], stops[kind] = _next_run(data, first, stop, end, kinds, kind)
        out[doc, LONGEST], out[doc, MATCHED] = longest, matched


@inline
def _next_run(data, first, offset, end, kinds, kind) -> tuple[Any, Any]:
    """The first run of a kind that begins at `offset` or later; (end, end) where there is none."""
    bit, window, known = np.uint8(1 << kind), np.int64(_WINDOWS[kind]), offset
    while offset + window <= end:  # all bytes before `known` may be in a run
        last = offset + window - 1
        while last >= known and kinds[data[last]] & bit:
            last -= 1
        known, failed = offset + window, last >= known
        if failed:
            offset = last + 1
            continue
        if kind == _BASE64:
            stop = offset + window
            while stop < end and kinds[data[stop]] & bit:
                stop += 1
            return offset, stop
        stop, num_units = _hex_bytes(data, first, offset, end, kinds) if kind == _BYTES else _escapes(data, offset, end, kinds)
        if num_units >= 8:
            return offset, stop
        offset = max(stop, offset + 1)
        known = max(known, offset)
    return end, end


@inline
def _hex_bytes(data, first, offset, end, kinds) -> tuple[Any, Any]:
    """The end of the hexadecimal bytes at `offset`, including their separators, and their number."""
    num_units = np.int64(0)
    while _is_boundary(data, first, offset, end, kinds):
        digits = offset
        if offset + 1 < end and (data[offset] == _ZERO or data[offset] == _BACKSLASH) and data[offset + 1] == _X:
            digits += 2
        if digits + 1 >= end or not (kinds[data[digits]] & kinds[data[digits + 1]] & _HEX_BIT):
            break
        stop = digits + 2
        if stop < end and data[stop] == _COMMA:
            stop += 1
        elif not _is_boundary(data, first, stop, end, kinds):
            break
        else:
            while stop < end and kinds[data[stop]] & _SPACE_BIT:
                stop += 1
        offset = stop
        num_units += 1
    return offset, num_units


@inline
def _is_boundary(data, first, offset, end, kinds) -> Any:
    before = offset > first and kinds[data[offset - 1]] & _WORD_BIT != 0
    after = offset < end and kinds[data[offset]] & _WORD_BIT != 0
    return before != after


@inline
def _escapes(data, offset, end, kinds) -> tuple[Any, Any]:
    """The end of the escapes such as `\\u1234` at `offset`, and their number."""
    num_units = np.int64(0)
    while offset + 6 <= end and data[offset] == _BACKSLASH and data[offset + 1] == _U:
        if not (
            kinds[data[offset + 2]] & kinds[data[offset + 3]] & kinds[data[offset + 4]] & kinds[data[offset + 5]] & _HEX_BIT
        ):
            break
        offset += 6
        num_units += 1
    return offset, num_units


@kernel
def first_lines(offsets: Int64s, data: UInt8s, num_lines: int, stops: Int64sOut) -> None:
    """Finds the end of the first `num_lines` lines of each text: `stops` (num_docs,) int64, in `data`."""
    for doc in range(len(offsets) - 1):
        offset, left = offsets[doc], num_lines
        while offset < offsets[doc + 1] and left > 0:
            left -= np.int64(data[offset] == _NEWLINE)
            offset += 1
        stops[doc] = offset


@kernel
def find_markers(offsets: Int64s, stops: Int64s, data: UInt8s, marker_offsets: Int64s, markers: UInt8s, out: UInt8sOut) -> None:
    """Whether each text contains a marker, in any ASCII case, before `stops`: `out` (num_docs,)
    uint8. `marker_offsets`, `markers`: a column of texts without ASCII capitals; none is empty."""
    begins = np.zeros(256, np.uint8)
    for byte in range(256):
        for marker in range(len(marker_offsets) - 1):
            begins[byte] |= np.uint8(_lower(byte) == markers[marker_offsets[marker]])
    for doc in range(len(offsets) - 1):
        is_marked = False
        for offset in range(offsets[doc], stops[doc]):
            if not begins[data[offset]]:
                continue
            for marker in range(len(marker_offsets) - 1):
                begin, size = marker_offsets[marker], marker_offsets[marker + 1] - marker_offsets[marker]
                num_equal = np.int64(0)
                while (
                    num_equal < size
                    and offset + num_equal < stops[doc]
                    and _lower(data[offset + num_equal]) == markers[begin + num_equal]
                ):
                    num_equal += 1
                is_marked = is_marked or num_equal == size
            if is_marked:
                break
        out[doc] = np.uint8(is_marked)


@inline
def _lower(byte) -> Any:
    return np.uint8(byte | 0x20) if 0x41 <= byte <= 0x5A else np.uint8(byte)
