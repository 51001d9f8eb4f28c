"""Texts as JSON strings (RFC 8259): quoted, with the quote, the backslash and the control characters escaped.

    say "hi"   ─▶   "say \\"hi\\""

\\b, \\t, \\n, \\f and \\r have escapes of two bytes, the other control characters of six: \\u0001.
All other characters are written as they are, in UTF-8.
"""

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, UInt8sOut


@kernel
def measure_quoted(offsets: Int64s, data: UInt8s, out: Int64sOut) -> None:
    """The offsets of the quoted texts: (num_texts + 1,) int64, from 0."""
    end = np.int64(0)
    out[0] = 0
    for i in range(len(offsets) - 1):
        end += 2 + offsets[i + 1] - offsets[i]
        for k in range(offsets[i], offsets[i + 1]):
            byte = data[k]
            if byte < 32:
                end += 1 if byte == 8 or byte == 9 or byte == 10 or byte == 12 or byte == 13 else 5
            elif byte == 34 or byte == 92:
                end += 1
        out[i + 1] = end


@kernel
def write_quoted(offsets: Int64s, data: UInt8s, out: UInt8sOut) -> None:
    """Writes the quoted texts one after the other; `out` has the room that `measure_quoted` returns."""
    end = np.int64(0)
    for i in range(len(offsets) - 1):
        out[end] = 34
        end += 1
        for k in range(offsets[i], offsets[i + 1]):
            byte = data[k]
            if byte >= 32 and byte != 34 and byte != 92:
                out[end] = byte
                end += 1
                continue
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
                end += 4
            end += 2
        out[end] = 34
        end += 1


def quoted(offsets: np.ndarray, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets (num_texts + 1,) int64 and bytes uint8 of the texts as JSON strings."""
    ends = np.empty(len(offsets), np.int64)
    measure_quoted(offsets, data, ends)
    out = np.empty(int(ends[-1]), np.uint8)
    write_quoted(offsets, data, out)
    return ends, out
