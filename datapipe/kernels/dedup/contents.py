"""The kind of content of a text: nothing to read, digits alone, or letters.

A letter is an ASCII letter or any byte from 0x80 on, so digits of other scripts count as letters. A scan stops at the first
letter, so prose costs next to nothing.
"""

from __future__ import annotations

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.types import Int64s, UInt8s, UInt8sOut

BLANK, DIGITS, LETTERS = 0, 1, 2
"""No letter and no digit; digits and no letter; a letter."""


def _classes() -> np.ndarray:
    table = np.full(256, BLANK, np.uint8)
    table[ord("0") : ord("9") + 1] = DIGITS
    for first, last in (("A", "Z"), ("a", "z")):
        table[ord(first) : ord(last) + 1] = LETTERS
    table[0x80:] = LETTERS
    return table


_CLASSES = _classes()


@kernel
def find_contents(offsets: Int64s, data: UInt8s, contents: UInt8sOut) -> None:
    """Writes the greatest class, of `BLANK`, `DIGITS` and `LETTERS`, of the bytes of each text.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        contents: (num_docs,) uint8.
    """
    for document in range(len(offsets) - 1):
        greatest = np.uint8(BLANK)
        for position in range(offsets[document], offsets[document + 1]):
            greatest = max(greatest, _CLASSES[data[position]])
            if greatest == LETTERS:
                break
        contents[document] = greatest
