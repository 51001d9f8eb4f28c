"""Eight bytes of UTF-8 at once: ASCII in lower case, and the character that they begin with."""

from typing import Any

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.arrays import eight_bytes

HIGHS = np.uint64(0x8080808080808080)
_0, _1, _2, _3, _6, _7, _8, _11, _12, _16 = (np.uint64(number) for number in (0, 1, 2, 3, 6, 7, 8, 11, 12, 16))
_BYTE, _LOW_6 = np.uint64(0xFF), np.uint64(0x3F)
_ONES = np.uint64(0x0101010101010101)
_CASE, _FROM_A, _BEHIND_Z, _FROM_0, _BEHIND_9 = (_ONES * np.uint64(byte) for byte in (0x20, 0x1F, 0x05, 0x50, 0x46))
"""The bit of small letters; numbers that carry the bytes from `a`, behind `z`, from `0` and behind `9` into the high bit."""


@inline
def ascii_stop(data, start, stop) -> Any:
    """Where a run of ASCII ends, in whole steps of eight bytes from `start` on."""
    position = start
    while position + _8 <= stop and eight_bytes(data, position) & HIGHS == _0:
        position += _8
    return position


@inline
def fold_ascii(source, target, words) -> None:
    """Writes ASCII bytes in lower case; with `words`, 0 where a byte is no letter and no digit. LLVM vectorises the loop."""
    for i in range(len(source)):
        byte = source[i]
        lowered = np.uint8(byte | np.uint8(0x20))
        is_letter = (lowered >= np.uint8(97)) & (lowered <= np.uint8(122))
        is_digit = (byte >= np.uint8(48)) & (byte <= np.uint8(57))
        other = byte if is_digit or not words else np.uint8(0)
        target[i] = lowered if is_letter else other


@inline
def folded_eight(eight, words) -> Any:
    """The same of eight bytes of ASCII."""
    lowered = eight | _CASE
    letters = ((lowered + _FROM_A & ~(lowered + _BEHIND_Z) & HIGHS) >> _7) * _BYTE
    digits = ((eight + _FROM_0 & ~(eight + _BEHIND_9) & HIGHS) >> _7) * _BYTE
    return lowered & letters | eight & (digits if words else ~letters)


@inline
def eight_until(data, position, end) -> Any:
    """The eight bytes at `position`, 0 for those from `end` on."""
    if position + _8 <= end:
        return eight_bytes(data, position)
    eight, shift = _0, _0
    while position < end:
        eight |= np.uint64(data[position]) << shift
        position, shift = position + _1, shift + _8
    return eight


@inline
def write_eight(out, written, eight) -> None:
    for byte in range(8):
        out[written + np.uint64(byte)] = np.uint8(eight >> np.uint64(8 * byte) & _BYTE)


@inline
def short_character(eight) -> tuple[Any, Any]:
    """The character of two or three bytes that eight bytes begin with, and its size; (0, 0) for none."""
    lead = eight & _BYTE
    if lead < np.uint64(0xE0):
        if lead >= np.uint64(0xC2) and eight & np.uint64(0xC000) == np.uint64(0x8000):
            return (lead & np.uint64(0x1F)) << _6 | eight >> _8 & _LOW_6, _2
    elif lead < np.uint64(0xF0) and eight & np.uint64(0xC0C000) == np.uint64(0x808000):
        code = (lead & np.uint64(0x0F)) << _12 | (eight >> _8 & _LOW_6) << _6 | eight >> _16 & _LOW_6
        if code >= np.uint64(0x800) and code >> _11 != np.uint64(0x1B):
            return code, _3
    return _0, _0
