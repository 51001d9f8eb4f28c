"""The number of words of each document, for stages that need no more of them.

A word is that of `words.py`: a maximal run of characters other than Unicode white space.
"""

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.text.unicode_classes import SPACE, class_table, decode
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s


def word_counts(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """(num_docs,) int64. `offsets`: (num_docs + 1,) int64. `data`: (num_bytes,) uint8."""
    out = np.empty(len(offsets) - 1, np.int64)
    count_words(offsets, data, class_table(), out)
    return out


@kernel
def count_words(offsets: Int64s, data: UInt8s, classes: UInt8s, out: Int64sOut) -> None:
    """Fills `out` (num_docs,). `classes`: `unicode_classes.class_table`."""
    for doc in range(len(out)):
        offset, stop, count, is_behind_space = offsets[doc], offsets[doc + 1], np.int64(0), True
        while offset < stop:
            code, size = np.int64(data[offset]), np.int64(1)
            if code >= 0x80:
                code, size = decode(data, offset, stop)
            is_space = classes[code] == SPACE
            count += np.int64(is_behind_space and not is_space)
            is_behind_space = is_space
            offset += size
        out[doc] = count
