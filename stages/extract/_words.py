"""How many words a text has, in any script: a threshold in words means the same for Chinese as for English."""

from __future__ import annotations

import numpy as np

_UNSPACED = ((0x0E00, 0x1100, 4), (0x1780, 0x1800, 4), (0x3040, 0xA000, 2), (0xF900, 0xFB00, 2), (0x20000, 0x40000, 2))
"""Scripts without spaces between words: first character, the one behind the last, and characters of a word. Han and kana have
1.5 to 2.5, Thai, Lao, Tibetan, Burmese and Khmer with their vowel signs 4 to 5."""


_AVERAGE = 5
"""The least characters of a word between spaces, on average: a page of digits has fewer words than numbers."""


def num_words(text: str) -> int:
    """The words between spaces, of at least five characters on average, and those of scripts that write none."""
    if text.isascii():
        return min(len(text.split()), len(text) // _AVERAGE)
    characters = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
    unspaced = words = 0
    if characters.max() >= _UNSPACED[0][0]:
        for start, stop, size in _UNSPACED:
            found = int(np.count_nonzero((characters >= start) & (characters < stop)))
            unspaced, words = unspaced + found, words + found // size
    return words + min(len(text.split()), (len(text) - unspaced) // _AVERAGE)
