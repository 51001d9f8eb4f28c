"""White space around texts, as `str.strip` of Python has it."""

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s


@inline
def _space_bytes(data, at, stop):
    """The bytes of the white space at `at` as `str.isspace` has it; 0 for another character, and at the end."""
    byte = data[at] if at < stop else np.uint8(0)
    if byte < 128:
        return np.int64(byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31)
    if at + 2 <= stop and byte == 0xC2:
        return np.int64(2 * (data[at + 1] == 0x85 or data[at + 1] == 0xA0))
    if at + 3 > stop or byte < 0xE1 or byte > 0xE3:
        return np.int64(0)
    code = np.int64(byte) << 16 | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2])
    is_space = code == 0xE19A80 or 0xE28080 <= code <= 0xE2808A or code == 0xE280A8 or code == 0xE280A9 or code == 0xE280AF
    return np.int64(3 * (is_space or code == 0xE2819F or code == 0xE38080))


@kernel
def strip_spans(offsets: Int64s, data: UInt8s, starts: Int64sOut, stops: Int64sOut) -> None:
    """The spans of texts without the white space around them, as `str.strip` has them; of white space alone an empty span."""
    for i in range(len(offsets) - 1):
        start, stop = offsets[i], offsets[i + 1]
        size = _space_bytes(data, start, stop)
        while size:
            start += size
            size = _space_bytes(data, start, stop)
        size = np.int64(start < stop)
        while size:
            last = stop - 1
            while last > start and data[last] & 0xC0 == 0x80:
                last -= 1
            size = _space_bytes(data, last, stop)
            stop -= size
        starts[i], stops[i] = start, stop
