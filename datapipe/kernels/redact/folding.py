"""Numbers that are typeset: with dashes, spaces and digits beyond ASCII, read as their ASCII equals.

    ＋８１ ３ １２３４  ->  the bytes around it, folded, and the offset of each  ->  the scan for ASCII  ->  offsets

Folded are the spaces U+00A0, U+2007, U+2009, U+200A, U+202F and U+3000, the dashes U+2010 to U+2015
and U+2212, and the fullwidth parentheses, plus sign, hyphen, full stop, slash and digits. At most
360 bytes around such a character near digits are copied.
"""

from typing import Any

from datapipe.kernels import inline
from datapipe.kernels.redact.ascii import DIGIT, SEPARATOR, is_in

BEFORE_BYTES, AFTER_BYTES = 120, 240
"""Bytes read before and after the start of a number: thrice the bytes that the scan for ASCII reads."""
_MIN_DIGITS, _MAX_PLAIN_DIGITS, _MAX_RUN_BYTES = 7, 12, 60
_SPACE, _DASH, _PLUS, _OPEN = (ord(sign) for sign in " -+(")


@inline
def folded_at(data, j, end) -> Any:
    """The length of a typeset character at `j` and its ASCII equal; 0 and 0 for all other characters."""
    first = data[j]
    if first < 0xC2 or j + 1 >= end:
        return 0, 0
    second = data[j + 1]
    if first == 0xC2:
        return (2, _SPACE) if second == 0xA0 else (0, 0)
    if j + 2 >= end:
        return 0, 0
    third = data[j + 2]
    if first == 0xE2 and second == 0x80:
        if 0x90 <= third <= 0x95:
            return 3, _DASH
        return (3, _SPACE) if third in (0x87, 0x89, 0x8A, 0xAF) else (0, 0)
    if first == 0xE2:
        return (3, _DASH) if second == 0x88 and third == 0x92 else (0, 0)
    if first == 0xE3:
        return (3, _SPACE) if second == 0x80 and third == 0x80 else (0, 0)
    is_wide = first == 0xEF and second == 0xBC and (third in (0x88, 0x89, 0x8B) or 0x8D <= third <= 0x99)
    return (3, third - 0x60) if is_wide else (0, 0)


@inline
def is_wide_digit(data, j, end) -> Any:
    return j + 2 < end and data[j] == 0xEF and data[j + 1] == 0xBC and 0x90 <= data[j + 2] <= 0x99


@inline
def is_typeset(data, floor, first, end) -> Any:
    """Whether seven digits or more follow with a typeset character among them, or `＋` or `（` before them."""
    j, num_digits, limit = first, 0, min(end, first + _MAX_RUN_BYTES)
    while j < limit and is_in(data[j], DIGIT | SEPARATOR):
        j += 1
    if (j == limit or data[j] < 0x80) and (first == floor or data[first - 1] < 0x80):
        return False  # nearly all numbers
    j, has_folded = first, False
    if first - 3 >= floor and data[first - 1] >= 0x80:
        size, byte = folded_at(data, first - 3, end)
        has_folded = size == 3 and (byte == _PLUS or byte == _OPEN)
    while j < limit and (has_folded or num_digits < _MAX_PLAIN_DIGITS):
        if data[j] < 0x80:
            if not is_in(data[j], DIGIT | SEPARATOR):
                break
            num_digits += is_in(data[j], DIGIT)
            j += 1
        else:
            size, byte = folded_at(data, j, end)
            if size == 0:
                break
            has_folded = True
            num_digits += 0x30 <= byte <= 0x39
            j += size
    return has_folded and num_digits >= _MIN_DIGITS


@inline
def fold(data, begin, floor, first, end, folded, places) -> Any:
    """Writes folded bytes and their offsets; returns their number, `first` and the floor."""
    low, high = max(begin, first - BEFORE_BYTES), min(end, first + AFTER_BYTES)
    while low > begin and data[low] & 0xC0 == 0x80:
        low += 1
    j, length, place, edge = low, 0, 0, 0
    while j < high:
        place = length if j == first else place
        edge = length + 1 if j < floor else edge
        size, byte = folded_at(data, j, end)
        folded[length], places[length] = (byte if size > 0 else data[j]), j
        j += max(size, 1)
        length += 1
    places[length] = j
    return length, place, edge
