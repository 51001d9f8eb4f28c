"""Texts as JSON strings (RFC 8259): quoted, with the quote, the backslash and the control characters escaped.

    say "hi"   ─▶   "say \\"hi\\""

\\b, \\t, \\n, \\f and \\r have escapes of two bytes, the other control characters of six: \\u0001.
All other characters are written as they are, in UTF-8.
"""

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import copy_into, eight_bytes, zero_bytes
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, UInt8sOut

_8, _HIGHS, _SPACES = np.uint64(8), np.uint64(0x8080808080808080), np.uint64(0x2020202020202020)
_QUOTES, _BACKSLASHES = np.uint64(0x2222222222222222), np.uint64(0x5C5C5C5C5C5C5C5C)


@kernel
def measure_quoted(offsets: Int64s, data: UInt8s, out: Int64sOut) -> None:
    """The offsets of the quoted texts: (num_texts + 1,) int64, from 0."""
    end = np.int64(0)
    out[0] = 0
    for i in range(len(offsets) - 1):
        num_more, k, stop = np.int64(0), offsets[i], offsets[i + 1]
        while k < stop:
            k = _find_escaped(data, k, stop)
            if k < stop:
                byte = data[k]
                is_short = (byte >= 32) | ((byte >= 8) & (byte <= 13) & (byte != 11))
                num_more += 1 if is_short else 5
                k += 1
        end += 2 + stop - offsets[i] + num_more
        out[i + 1] = end


@inline
def write_escape(byte, out, end):
    """Writes the escape of a byte; returns the new end."""
    out[end] = 92
    if byte >= 32:
        out[end + 1] = byte
    elif byte == 8 or byte == 9 or byte == 10 or byte == 12 or byte == 13:
        out[end + 1] = 98 if byte == 8 else 116 if byte == 9 else 110 if byte == 10 else 102 if byte == 12 else 114
    else:
        out[end + 1], out[end + 2], out[end + 3] = 117, 48, 48
        low = byte & 15
        out[end + 4] = 48 + (byte >> 4)
        out[end + 5] = 48 + low if low < 10 else 87 + low
        return end + 6
    return end + 2


@kernel
def write_quoted(offsets: Int64s, data: UInt8s, out: UInt8sOut) -> None:
    """Writes the quoted texts one after the other; `out` has the room that `measure_quoted` returns."""
    end = np.int64(0)
    for i in range(len(offsets) - 1):
        out[end] = 34
        end += 1
        k, stop = offsets[i], offsets[i + 1]
        while k < stop:
            first = k
            k = _find_escaped(data, k, stop)
            copy_into(out[end : end + k - first], data[first:k])
            end += k - first
            if k < stop:
                end = write_escape(data[k], out, end)
                k += 1
        out[end] = 34
        end += 1


@inline
def _find_escaped(data, offset, stop):
    """The offset of the first byte from `offset` on that is written as an escape, or `stop`."""
    position, end = np.uint64(offset), np.uint64(stop)
    while position + _8 <= end:
        eight = eight_bytes(data, position)
        found = zero_bytes(eight ^ _QUOTES) | zero_bytes(eight ^ _BACKSLASHES) | ((eight - _SPACES) & ~eight & _HIGHS)
        if found:
            break
        position += _8
    while position < end and data[position] >= 32 and data[position] != 34 and data[position] != 92:
        position += np.uint64(1)
    return np.int64(position)


def quoted(offsets: np.ndarray, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets (num_texts + 1,) int64 and bytes uint8 of the texts as JSON strings."""
    ends = np.empty(len(offsets), np.int64)
    measure_quoted(offsets, data, ends)
    out = np.empty(int(ends[-1]), np.uint8)
    write_quoted(offsets, data, out)
    return ends, out
