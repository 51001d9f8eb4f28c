"""The kind of content of a text: nothing to read, digits alone, or letters.

Letters and digits are those of any script (`word_characters.py`). A scan stops at the first letter, so prose costs
next to nothing.
"""

from __future__ import annotations

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.dedup.word_characters import LETTER, NUMBER, word_table
from datapipe.kernels.text.unicode_classes import decode
from datapipe.kernels.types import Int64s, UInt8s, UInt8sOut

BLANK, DIGITS, LETTERS = 0, 1, 2
"""No letter and no digit; digits and no letter; a letter."""


def contents_of(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """`BLANK`, `DIGITS` or `LETTERS` of each text, (num_docs,) uint8; parameters as for `find_contents`."""
    contents = np.empty(len(offsets) - 1, np.uint8)
    find_contents(offsets, data, word_table(), contents)
    return contents


@kernel
def find_contents(offsets: Int64s, data: UInt8s, table: UInt8s, contents: UInt8sOut) -> None:
    """Writes the greatest class, of `BLANK`, `DIGITS` and `LETTERS`, of the characters of each text.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        table: (0x110000,) uint8, `word_characters.word_table`.
        contents: (num_docs,) uint8.
    """
    for document in range(len(offsets) - 1):
        greatest, position, stop = BLANK, offsets[document], offsets[document + 1]
        while position < stop and greatest != LETTERS:
            code, size = decode(data, position, stop)
            if table[code] & LETTER:
                greatest = LETTERS
            elif table[code] & NUMBER:
                greatest = DIGITS
            position += size
        contents[document] = greatest
