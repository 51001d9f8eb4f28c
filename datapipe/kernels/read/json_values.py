"""JSON over several lines, or elements of an array, as JSON lines of the same number of bytes.

    [{"a":1},{"a":2}]   ─▶   ␣{"a":1}↵{"a":2}↵          an array: a comma between elements, and its end, become new lines
    {↵ "a": 1↵}↵        ─▶   {␣ "a": 1␣}↵               a value over several lines: new lines in it become spaces

A new line within a string, which JSON does not have, becomes a control character, so that a parser refuses it.
"""

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.types import Int64sOut, UInt8s, UInt8sOut

DEPTH, IN_STRING, IN_ARRAY = range(3)
"""Entries of `carry`: how many objects and arrays are open; 0 outside of strings, 1 in one, 2
behind a backslash in one; and whether the outermost value is an array."""

_CONTROL = 1


@kernel
def flatten_values(data: UInt8s, carry: Int64sOut, out: UInt8sOut) -> None:
    """Lines of a chunk, which may begin and end in a value. `carry`: (3,) state between chunks."""
    depth, in_string, in_array = carry[0], carry[1], carry[2]
    for i in range(len(data)):
        byte = data[i]
        out[i] = byte
        if in_string:
            if byte == 10:
                out[i] = _CONTROL
            in_string = 1 if in_string == 2 else 2 if byte == 92 else 0 if byte == 34 else 1
        elif byte == 34:
            in_string = 1
        elif byte == 91 or byte == 123:
            if depth == 0 and byte == 91:
                in_array, out[i] = 1, 32
            depth += 1
        elif byte == 93 or byte == 125:
            depth = max(depth - 1, 0)
            if depth == 0 and in_array:
                in_array, out[i] = 0, 10
        elif byte == 44 and depth == 1 and in_array:
            out[i] = 10
        elif byte == 10 and depth:
            out[i] = 32
    carry[0], carry[1], carry[2] = depth, in_string, in_array


class FlatValues:
    """Flattens the chunks of a file, in their order."""

    def __init__(self) -> None:
        self._carry = np.zeros(3, np.int64)

    @property
    def is_open(self) -> bool:
        """Whether the chunks so far end within a value."""
        return bool(self._carry[DEPTH] or self._carry[IN_STRING])

    def lines(self, chunk: bytes) -> bytes:
        data = np.frombuffer(chunk, np.uint8)
        out = np.empty_like(data)
        flatten_values(data, self._carry, out)
        return out.tobytes()
