"""Whether a run of characters was drawn by chance: its entropy, its sorts of characters, and no word of a placeholder.

A placeholder contains one of example, xxxx, your, placehol(der), dummy, fake, sample, changeme, redacted and insert, in any
case.
"""

from __future__ import annotations

import math

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.redact.ascii import DIGIT, LETTER, is_in

DIGITS, CAPITALS, SMALL = 1, 2, 4
"""The sorts of characters that `sorts_in` adds up."""
_MAX_BYTES = 256
_MILLIBITS = np.array([0] + [round(1000 * count * math.log2(count)) for count in range(1, _MAX_BYTES + 1)], np.int64)
"""1000 n log2 n, rounded: entropies of whole numbers compare alike on every machine."""


def suffixes(words: str) -> tuple[np.ndarray, np.ndarray]:
    """The last eight letters of each word as a number, and a mask of the bits they fill."""
    kept = [word[-8:] for word in words.split()]
    numbers = np.array([int.from_bytes(word.encode(), "big") for word in kept], np.uint64)
    return numbers, np.array([(1 << 8 * len(word)) - 1 for word in kept], np.uint64)


_PLACEHOLDERS, _PLACEHOLDER_MASKS = suffixes("example xxxx your placehol dummy fake sample changeme redacted insert")


@inline
def is_random(data, start, stop, millibits, counts):
    """Whether the first 256 ASCII bytes of a span have this entropy and contain no word of a placeholder."""
    stop = min(stop, start + _MAX_BYTES)
    counts[:] = 0
    number = np.uint64(0)
    for j in range(start, stop):
        counts[data[j]] += 1
        number = number << np.uint64(8) | np.uint64(data[j] | 0x20)
        for k in range(len(_PLACEHOLDERS)):
            if number & _PLACEHOLDER_MASKS[k] == _PLACEHOLDERS[k]:
                return False
    length, total = stop - start, 0
    for count in counts:
        total += _MILLIBITS[count]
    return _MILLIBITS[length] - total >= millibits * length


@inline
def sorts_in(data, start, stop):
    """The sum of the sorts of characters in a span: DIGITS, CAPITALS, SMALL."""
    sorts = 0
    for j in range(start, stop):
        if is_in(data[j], DIGIT):
            sorts |= DIGITS
        elif is_in(data[j], LETTER):
            sorts |= CAPITALS if data[j] < 0x60 else SMALL
    return sorts


@inline
def is_cased(data, start, stop):
    """Whether a quarter of the letters in a span or more are capitals, and a quarter or more are small.

    A name of words joined by capitals has fewer: requiredTypesForDisplay has 3 capitals among 23 letters.
    """
    num_letters, num_capitals = 0, 0
    for j in range(start, stop):
        if is_in(data[j], LETTER):
            num_letters += 1
            num_capitals += data[j] < 0x60
    return num_letters <= 4 * num_capitals <= 3 * num_letters
