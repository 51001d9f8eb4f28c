"""Telling lines apart in a block of JSON lines before a parser sees them.

    starts, stops ─▶ kind: BLANK (white space only), FRAMED ("{" … "}"), OTHER

A parser that ignores newlines still takes each line for at least one object when every line is framed: after a line's "}" the
next line's "{" can only open another top-level object, and no string crosses a newline. So as many rows as framed lines
means one object per line.
"""

from __future__ import annotations

import numpy as np

from datapipe.kernels import kernel

BLANK, FRAMED, OTHER = 0, 1, 2


@kernel("void(Array(uint8, 1, 'C', readonly=True), int64[::1], int64[::1], uint8[::1])")
def classify_lines(data, starts, stops, out):
    """The kind of each line: (num_lines,) uint8. Lines are data[starts[i]:stops[i]], without their newline."""
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
    """Starts, stops (num_lines,) int64 and kinds (num_lines,) uint8 of a block's lines; a last line needs no newline."""
    stops = np.flatnonzero(data == 10)
    if len(data) and data[-1] != 10:
        stops = np.append(stops, len(data))
    starts = np.empty_like(stops)
    starts[:1] = 0
    starts[1:] = stops[:-1] + 1
    kinds = np.empty(len(stops), np.uint8)
    classify_lines(data, starts, stops, kinds)
    return starts, stops, kinds
