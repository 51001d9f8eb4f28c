"""Counts the letters of texts, where a character of a script of syllables or ideographs counts as several letters.

Scripts write the same words with more or fewer characters. For each character, the English Declaration of Human Rights has

    Chinese  Korean  Yi   | Amharic, Tigrinya  kana of Japanese | Devanagari, Bengali, Telugu, Thai, Khmer: letters and marks
    3.3      2.6     2.9  | 2.0, 1.7           1.4              | 0.9 to 1.1 (letters alone: 1.2 to 1.9)

letters. So an ideograph and a syllable of Hangul or Yi count as 3, other syllables as 2, and a mark of a script where marks
are vowels as 1. Accents and the vowel points of Arabic and Hebrew count as 0.
"""

from functools import lru_cache

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.text.unicode_classes import LETTER, MARK, class_table, codes_of, decode
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, read_only

_IDEOGRAPHS = "3400-A4CF AC00-D7A3 F900-FAFF 17000-18D7F 20000-323FF"  # Han, Yi, Hangul, Tangut, Khitan
_SYLLABLES = "1200-139F 2D80-2DDF AB01-AB2F 1E7E0-1E7FF 3041-30FF 31F0-31FF FF66-FF9F 1AFF0-1B16F A500-A63F"
"""Ethiopic, kana, Vai."""

_VOWEL_MARKS = "900-1AAF 1B00-1C7F A800-ABFF 11000-11FFF"  # from Devanagari on


@lru_cache(maxsize=1)
def letter_weights() -> np.ndarray:
    """The letters that each code point counts as: (0x110000,) uint8, 0 to 3."""
    classes = class_table()
    weights = (classes == LETTER).astype(np.uint8)
    for listed, kind, weight in ((_IDEOGRAPHS, LETTER, 3), (_SYLLABLES, LETTER, 2), (_VOWEL_MARKS, MARK, 1)):
        codes = codes_of(listed)
        weights[codes[classes[codes] == kind]] = weight
    return read_only(weights)


@kernel
def count_letters(starts: Int64s, stops: Int64s, data: UInt8s, weights: UInt8s, counts: Int64sOut) -> None:
    """Letters of each text [starts, stops) of `data`, (num_docs,) int64, by the weights of `letter_weights()`."""
    for doc in range(len(starts)):
        offset, num_letters = starts[doc], np.int64(0)
        while offset < stops[doc]:
            if data[offset] < 0x80:
                num_letters += 97 <= (data[offset] | 0x20) <= 122
                offset += 1
            else:
                code, size = decode(data, offset, stops[doc])
                num_letters += weights[code]
                offset += size
        counts[doc] = num_letters
