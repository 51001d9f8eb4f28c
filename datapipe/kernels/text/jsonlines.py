"""JSON lines as bytes: which lines are worth parsing, and the values of a few fields of lines that a parser has accepted.

    starts, stops ─▶ kind: BLANK (white space only), FRAMED ("{" … "}"), OTHER
    lines, names  ─▶ spans of the values ─▶ strings unescaped, other values as written, null as null

A parser that ignores newlines reads at least one object per framed line: after the "}" of a line the "{" of the next can
only open another top-level object. As many rows as framed lines therefore means one object per line. Values are copied from
the text, so a column holds `1.0`, `1e3` and 2^64 as written.
"""

from collections.abc import Sequence

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import NO_BITS, copy_into, eight_times, find_any
from datapipe.kernels.text.unicode_classes import write_character
from datapipe.kernels.types import BoolsOut, Int64s, Int64sOut, UInt8s, UInt8sOut

BLANK, FRAMED, OTHER = 0, 1, 2

_ENDS_PLAIN, _ESCAPES = eight_times(b'"\\'), eight_times(b"\\")
_LONGEST_ESCAPE = 6
"""Bytes of \\u0041. A name of n bytes is written in at most six times as many."""


@kernel
def classify_lines(data: UInt8s, starts: Int64s, stops: Int64s, out: UInt8sOut) -> None:
    """The kind of each line: (num_lines,) uint8. Line i is data[starts[i]:stops[i]], without its newline."""
    for i in range(len(starts)):
        a, b = starts[i], stops[i]
        while a < b and (data[a] == 32 or data[a] == 9 or data[a] == 13):
            a += 1
        while b > a and (data[b - 1] == 32 or data[b - 1] == 9 or data[b - 1] == 13):
            b -= 1
        if a == b:
            out[i] = 0
        elif data[a] == 123 and data[b - 1] == 125:
            out[i] = 1
        else:
            out[i] = 2


def split_lines(data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts, stops int64 and kinds uint8, (num_lines,); the last line may lack its newline."""
    stops = np.flatnonzero(data == 10)
    if len(data) and data[-1] != 10:
        stops = np.append(stops, len(data))
    starts = np.empty_like(stops)
    starts[:1] = 0
    starts[1:] = stops[:-1] + 1
    kinds = np.empty(len(stops), np.uint8)
    classify_lines(data, starts, stops, kinds)
    return starts, stops, kinds


@inline
def skip_space(data, offset, stop):
    while offset < stop and (data[offset] == 32 or data[offset] == 9 or data[offset] == 13 or data[offset] == 10):
        offset += 1
    return offset


@inline
def _skip_string(data, offset, stop):
    """The end of the string that begins at `offset`. Escapes may be close together, so the bytes after one are looked at one by
    one before eight at a time."""
    offset = find_any(data, offset + 1, stop, _ENDS_PLAIN, NO_BITS)
    while offset < stop and data[offset] != 34:
        offset += 2
        near = min(offset + 8, stop)
        while offset < near and data[offset] != 34 and data[offset] != 92:
            offset += 1
        if offset == near:
            offset = find_any(data, offset, stop, _ENDS_PLAIN, NO_BITS)
    return min(offset + 1, stop)


@inline
def _skip_value(data, offset, stop):
    if offset < stop and data[offset] == 34:
        return _skip_string(data, offset, stop)
    depth = 0
    while offset < stop:
        byte = data[offset]
        if byte == 34:
            offset = _skip_string(data, offset, stop)
            continue
        if byte == 123 or byte == 91:
            depth += 1
        elif byte == 125 or byte == 93:
            if depth <= 1:
                return offset + depth
            depth -= 1
        elif depth == 0 and (byte == 44 or byte == 32 or byte == 9 or byte == 13 or byte == 10):
            return offset
        offset += 1
    return offset


@inline
def code_unit(data, offset):
    unit = 0
    for k in range(offset, offset + 4):
        byte = np.int64(data[k])
        unit = unit * 16 + (byte - 48 if byte < 58 else (byte | 32) - 87)
    return unit


@inline
def unescape(data, offset, stop, out, end):
    """Writes the characters of data[offset:stop], the inside of a string, to out[end:]; returns the new end."""
    while offset < stop:
        near = min(offset + 8, stop)
        while offset < near and data[offset] != 92:
            out[end] = data[offset]
            offset, end = offset + 1, end + 1
        if offset == near and offset < stop:
            far = find_any(data, offset, stop, _ESCAPES, NO_BITS)
            copy_into(out[end : end + far - offset], data[offset:far])
            offset, end = far, end + far - offset
        if offset + 1 >= stop:
            return end
        byte = data[offset + 1]
        if byte != 117 or offset + 6 > stop:
            letter = 8 if byte == 98 else 12 if byte == 102 else 10 if byte == 110 else 13 if byte == 114 else byte
            out[end] = 9 if byte == 116 else letter
            offset, end = offset + 2, end + 1
            continue
        code = code_unit(data, offset + 2)
        offset += 6
        if 0xD800 <= code < 0xDC00 and offset + 6 <= stop and data[offset] == 92 and data[offset + 1] == 117:
            code = 0x10000 + ((code - 0xD800) << 10) + ((code_unit(data, offset + 2) - 0xDC00) & 0x3FF)
            offset += 6
        end = write_character(code, out, end)
    return end


@inline
def _is_name(data, offset, stop, names, first, last, scratch):
    """Whether the key data[offset:stop], without its quotes, is names[first:last]."""
    escaped = False
    for k in range(offset, min(stop, offset + len(scratch))):
        escaped |= data[k] == 92
    if escaped and stop - offset <= len(scratch):
        stop = unescape(data, offset, stop, scratch, 0)
        if stop != last - first:
            return False
        for k in range(stop):
            if scratch[k] != names[first + k]:
                return False
        return True
    if stop - offset != last - first:
        return False
    for k in range(stop - offset):
        if data[offset + k] != names[first + k]:
            return False
    return True


@inline
def _find_member(data, offset, stop, names, first, last, scratch, known_start, known_stop):
    """Start and stop of the value of the first key names[first:last] at `offset`; or -1, -1."""
    offset = skip_space(data, offset, stop)
    if offset >= stop or data[offset] != 123:
        return -1, -1
    offset = skip_space(data, offset + 1, stop)
    while offset < stop and data[offset] == 34:
        key = offset + 1
        offset = _skip_string(data, offset, stop)
        is_wanted = _is_name(data, key, offset - 1, names, first, last, scratch)
        value = skip_space(data, skip_space(data, offset, stop) + 1, stop)
        offset = known_stop if value == known_start else _skip_value(data, value, stop)
        if is_wanted:
            return value, offset
        offset = skip_space(data, skip_space(data, offset, stop) + 1, stop)
    return -1, -1


@kernel
def find_values(
    data: UInt8s,
    starts: Int64s,
    stops: Int64s,
    names: UInt8s,
    parts: Int64s,
    scratch: UInt8sOut,
    value_starts: Int64sOut,
    value_stops: Int64sOut,
) -> None:
    """The span of the value at a path in each line, an object that a parser has accepted; -1 where
    it is absent. Name p of the path, outermost first, is names[parts[p]:parts[p + 1]]; of two equal
    keys the first counts. Before, `value_starts` and `value_stops` have the span of any one value of
    the line, which is not read again; -1 for none."""
    for i in range(len(starts)):
        a, b, known_start, known_stop = starts[i], stops[i], value_starts[i], value_stops[i]
        for p in range(len(parts) - 1):
            a, b = _find_member(data, a, b, names, parts[p], parts[p + 1], scratch, known_start, known_stop)
            if a < 0:
                break
        value_starts[i], value_stops[i] = a, b


@kernel
def copy_values(data: UInt8s, starts: Int64s, stops: Int64s, valid: BoolsOut, offsets: Int64sOut, out: UInt8sOut) -> None:
    """Copies values as texts: strings unescaped, others as written; null or absent: not valid."""
    end = 0
    offsets[0] = 0
    for i in range(len(starts)):
        a, b = starts[i], stops[i]
        valid[i] = a >= 0 and data[a] != 110
        if valid[i] and data[a] == 34:
            end = unescape(data, a + 1, b - 1, out, end)
        elif valid[i]:
            for k in range(a, b):
                out[end] = data[k]
                end += 1
        offsets[i + 1] = end


class FieldPath:
    """A field of JSON objects, by its names, outermost first: ("meta", "url")."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [name.encode() for name in names]
        self.names = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)
        self.parts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        self.scratch = np.empty(_LONGEST_ESCAPE * max(map(len, encoded)), np.uint8)

    def values(
        self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray, known: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of the field's values in accepted lines: valid (num_lines,) bool, offsets (num_lines + 1,) int64, their bytes, and
        the first byte of each as written, (num_lines,) uint8, 0 for null. `known`: (2, num_lines) int64, the starts and stops
        of the longest value of each line that was found before, -1 for none; it becomes the longer one."""
        value_starts, value_stops = np.full((2, len(starts)), -1, np.int64) if known is None else known.copy()
        find_values(data, starts, stops, self.names, self.parts, self.scratch, value_starts, value_stops)
        if known is not None:
            is_longer = value_stops - value_starts > known[1] - known[0]
            known[:, is_longer] = value_starts[is_longer], value_stops[is_longer]
        valid, offsets = np.empty(len(starts), np.bool_), np.empty(len(starts) + 1, np.int64)
        out = np.empty(int((value_stops - value_starts).sum()), np.uint8)
        copy_values(data, value_starts, value_stops, valid, offsets, out)
        firsts = np.zeros(len(starts), np.uint8)
        firsts[valid] = data[value_starts[valid]]
        return valid, offsets, out[: offsets[-1]], firsts
