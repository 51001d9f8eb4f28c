"""Counts the letters of texts."""

from __future__ import annotations

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.text.unicode_classes import LETTER, decode
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s


@kernel
def count_letters(starts: Int64s, stops: Int64s, data: UInt8s, classes: UInt8s, counts: Int64sOut) -> None:
    """Number of characters of each text that are letters in Unicode.

    Args:
        starts, stops: (num_docs,) int64, in `data`.
        data: uint8, any bytes.
        classes: `unicode_classes.class_table()`.
        counts: (num_docs,) int64.
    """
    for doc in range(len(starts)):
        offset, num_letters = starts[doc], np.int64(0)
        while offset < stops[doc]:
            if data[offset] < 0x80:
                num_letters += _is_ascii_letter(data[offset])
                offset += 1
            else:
                code, size = decode(data, offset, stops[doc])
                num_letters += classes[code] == LETTER
                offset += size
        counts[doc] = num_letters


@inline
def _is_ascii_letter(byte) -> bool:
    return 97 <= (byte | 0x20) <= 122
