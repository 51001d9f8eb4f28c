"""Counts the letters of texts, where a character of a script of syllables or ideographs counts as several letters.

How much a text says of its language depends on its words, and scripts write the same words with more or fewer characters.
The Declaration of Human Rights has 8,675 letters in English. For each character it has in

    Chinese  Korean  Yi   | Amharic, Tigrinya  kana of Japanese | Devanagari, Bengali, Telugu, Thai, Khmer: letters and marks
    3.3      2.6     2.9  | 2.0, 1.7           1.4              | 0.9 to 1.1 (letters alone: 1.2 to 1.9)

letters. So an ideograph and a syllable of Hangul or Yi count as 3, other syllables as 2, and a mark of a script where marks are
vowels as 1, like a letter. Accents and the vowel points of Arabic and Hebrew count as 0.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.text.unicode_classes import LETTER, MARK, class_table, decode
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s

_IDEOGRAPHS = (
    (0x3400, 0xA4D0),  # Han, Yi
    (0xAC00, 0xD7A4),  # Hangul
    (0xF900, 0xFB00),
    (0x17000, 0x18D80),  # Tangut, Khitan
    (0x20000, 0x32400),
)
_SYLLABLES = (
    (0x1200, 0x13A0),  # Ethiopic
    (0x2D80, 0x2DE0),
    (0x3041, 0x3100),  # kana
    (0x31F0, 0x3200),
    (0xA500, 0xA640),  # Vai
    (0xAB01, 0xAB30),
    (0xFF66, 0xFFA0),
    (0x1AFF0, 0x1B170),
    (0x1E7E0, 0x1E800),
)
_VOWEL_MARKS = (
    (0x0900, 0x1AB0),  # Devanagari to Tai Tham
    (0x1B00, 0x1C80),
    (0xA800, 0xAC00),
    (0x11000, 0x12000),
)


@lru_cache(maxsize=1)
def letter_weights() -> np.ndarray:
    """The letters that each code point counts as: (0x110000,) uint8, 0 to 3."""
    classes = class_table()
    weights = (classes == LETTER).astype(np.uint8)
    for ranges, kind, weight in ((_IDEOGRAPHS, LETTER, 3), (_SYLLABLES, LETTER, 2), (_VOWEL_MARKS, MARK, 1)):
        for start, stop in ranges:
            weights[start:stop][classes[start:stop] == kind] = weight
    weights.flags.writeable = False
    return weights


@kernel
def count_letters(starts: Int64s, stops: Int64s, data: UInt8s, weights: UInt8s, counts: Int64sOut) -> None:
    """Letters of each text.

    Args:
        starts, stops: (num_docs,) int64, in `data`.
        data: uint8, any bytes.
        weights: `letter_weights()`.
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
                num_letters += weights[code]
                offset += size
        counts[doc] = num_letters


@inline
def _is_ascii_letter(byte) -> bool:
    return 97 <= (byte | 0x20) <= 122
