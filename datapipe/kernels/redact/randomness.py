"""Whether a run of characters was drawn by chance: its entropy, its sorts of characters, no placeholder and no name.

A placeholder contains one of example, xxxx, your, placehol(der), dummy, fake, sample, changeme, redacted, insert and three
dots, in any case.

A name is made of words: a path, an ARN, a dotted key, a constant. Its letters are cut into runs at each change to a capital,
and a run of three letters or more is a word where two thirds of its pairs of letters are common. In a name, words hold two
thirds of the letters, a quarter of the letters and digits or fewer stand at a border between the two, and no part of 16 letters
and digits or more has words in less than half of its letters: that part is a key in a path. Eight letters in the order of the
alphabet are a name as well. Of random strings of 16 letters and digits, 1 % read like a name, and 2 % of hexadecimal ones; of
32 characters, 0.1 %.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.redact.ascii import DIGIT, LETTER, is_in

DIGITS, CAPITALS, SMALL = 1, 2, 4
"""The sorts of characters that `sorts_in` adds up."""
_MAX_BYTES = 256
_MILLIBITS = np.array([0] + [round(1000 * count * math.log2(count)) for count in range(1, _MAX_BYTES + 1)], np.int64)
"""1000 n log2 n, rounded: entropies of whole numbers compare alike on every machine."""
_IN_ORDER = 8
"""Letters in the order of the alphabet that nobody draws by chance: one string in 26**7 begins so."""
_MIN_WORD, _MIN_KEY = 3, 16
COMMON_PAIRS = (
    "abcdfgiklmnprstuvwy baeilorsu cacehiklortu dadeilorsu eacdefgilmnopqrstvwxy faefilortu gaehilnorsu haeiortu "
    "iabcdefglmnoprstvxz keis ladefilostuy mabeimopsu nacdefgiklnostuv oabcdfgiklmnoprstuvw paehiloprstuy qu "
    "racdefgiklmnoprstuvy sacehilmopstuy tacehiloprstuy uabcdegilmnprst vaeio waehinor xcpt yeps ze"
)
"""A letter and those that follow it often. All are 257 pairs, 95 % of those in the words of English novels and in the names of
Python's standard library, each word weighted by the square root of its count."""


def suffixes(words: str) -> tuple[np.ndarray, np.ndarray]:
    """The last eight letters of each word as a number, and a mask of the bits they fill."""
    kept = [word[-8:] for word in words.split()]
    numbers = np.array([int.from_bytes(word.encode(), "big") for word in kept], np.uint64)
    return numbers, np.array([(1 << 8 * len(word)) - 1 for word in kept], np.uint64)


_PLACEHOLDERS, _PLACEHOLDER_MASKS = suffixes("example xxxx your placehol dummy fake sample changeme redacted insert ...")


def _followers() -> np.ndarray:
    """A bit for each letter that follows a letter often: (26,) uint32."""
    table = np.zeros(26, np.uint32)
    for first, *others in COMMON_PAIRS.split():
        table[ord(first) - 0x61] = sum(1 << ord(other) - 0x61 for other in others)
    return table


_FOLLOWERS = _followers()


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
def _is_in_order(data, start, stop) -> Any:
    """Whether eight letters in the order of the alphabet are in a span, in any case."""
    num_in_order = 0
    for j in range(start, stop):
        is_next = j > start and num_in_order > 0 and data[j] | 0x20 == (data[j - 1] | 0x20) + 1
        num_in_order = (num_in_order + 1 if is_next else 1) if is_in(data[j], LETTER) else 0
        if num_in_order == _IN_ORDER:
            return True
    return False


@inline
def _word_stop(data, start, stop) -> Any:
    """The stop of the letters from `start` on, before a capital behind a small letter, and whether they are a word."""
    j, num_common = start + 1, 0
    while j < stop and is_in(data[j], LETTER) and (data[j] > 0x60 or data[j - 1] < 0x60):
        num_common += _FOLLOWERS[(data[j - 1] | 0x20) - 0x61] >> np.uint32((data[j] | 0x20) - 0x61) & np.uint32(1)
        j += 1
    return j, j - start >= _MIN_WORD and 3 * num_common >= 2 * (j - start - 1)


@inline
def is_name(data, start, stop) -> Any:
    """Whether the first 256 ASCII bytes of a span are made of words, or of the alphabet."""
    stop = min(stop, start + _MAX_BYTES)
    num_letters, num_in_words, num_digits, num_borders, has_key = 0, 0, 0, 0, False
    j, part, part_letters, part_words = start, start, 0, 0  # the part between two other signs
    while j < stop:
        if is_in(data[j], LETTER):
            num_borders += j > start and is_in(data[j - 1], DIGIT)
            after, is_word = _word_stop(data, j, stop)
            num_letters += after - j
            num_in_words += (after - j) * is_word
            j = after
        elif is_in(data[j], DIGIT):
            num_borders += j > start and is_in(data[j - 1], LETTER)
            num_digits += 1
            j += 1
        else:
            j += 1
        if j == stop or not is_in(data[j], LETTER | DIGIT):
            has_key |= j - part >= _MIN_KEY and 2 * (num_in_words - part_words) < num_letters - part_letters
            part, part_letters, part_words = j + 1, num_letters, num_in_words
    is_worded = 0 < 2 * num_letters <= 3 * num_in_words and 4 * num_borders <= num_letters + num_digits
    return (is_worded and not has_key) or _is_in_order(data, start, stop)


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
