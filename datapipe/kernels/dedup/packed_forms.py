"""The folded form of a character as one number, where the form is short and of one kind.

    bits 0 to 47      its bytes, at most six, the first in the lowest bits
    bits 48 to 50     their number
    bits 51 and 52    what it is to words: OUTSIDE, INSIDE or LONE
    bits 53 and 54    the number of marks with a combining class at its end
    bits 55 to 62     the combining class of its last character
    bit 63            whether it is a mark, or several marks without a combining class

0 is no form: for characters of one and of four bytes, invisible ones, jamo, and where `_packed` finds no room.
"""

from typing import Any

import numpy as np

from datapipe.kernels import inline

CODE_MASK, CLASS_SHIFT, CLASS_MASK = 0x1FFFFF, 21, 0xFF
"""A folded character: its code point in the lower 21 bits, the canonical combining class of its origin above them."""

ALONE_FLAG, EXTENDS_FLAG = 1 << 29, 1 << 30
"""Set where words are kept: a character that is a word, and a mark."""

ORDERED = CLASS_MASK << CLASS_SHIFT
ANY_MARK = ORDERED | EXTENDS_FLAG
IOTA_CLASS = 240
"""The class of the iota below (U+0345), the only mark whose folded character is a letter."""

OUTSIDE, INSIDE, LONE = range(3)  # Between words; in a word; in a word of one character
FIRST_JAMO, LAST_JAMO = 0x1161, 0x11C2  # Those that may join the character before them
_NUM_FORMS, _MOST_PARTS, _MOST_BYTES = 0x10000, 4, 6
_SIZE, _KIND, _MARKS, _CLASS, _MARK = 48, 51, 53, 55, 63
_3, _7 = np.uint64(3), np.uint64(7)


@inline
def form_size(form) -> Any:
    return form >> np.uint64(_SIZE) & _7


@inline
def form_kind(form) -> Any:
    return form >> np.uint64(_KIND) & _3


@inline
def marks_at_end(form) -> tuple[Any, Any]:
    """The number of marks with a combining class at the end of a form, and the class of its last character."""
    return form >> np.uint64(_MARKS) & _3, form >> np.uint64(_CLASS) & np.uint64(CLASS_MASK)


@inline
def is_letter_form(form) -> Any:
    """Whether there is a form, and it begins with no mark."""
    return np.int64(form) > 0


def packed_forms(codes: np.ndarray, expansions: np.ndarray, words: bool) -> np.ndarray:
    """The forms of characters of two and three bytes, by the tables of `case_folding.Folding`: (0x10000,) uint64."""
    codes, forms = codes[:_NUM_FORMS], np.zeros(_NUM_FORMS, np.uint64)
    first = np.maximum(-codes, 0)
    num_parts = np.where(codes < 0, expansions[first], 1)
    for number in range(1, _MOST_PARTS + 1):
        chosen = np.flatnonzero(num_parts == number)
        positions = first[chosen] + np.arange(1, number + 1)[:, None]
        forms[chosen] = _packed(expansions[positions] if number > 1 else codes[None, chosen], words)
    forms[:0x80] = 0
    return forms


def _packed(parts: np.ndarray, words: bool) -> np.ndarray:
    """The forms of characters that fold to as many parts, (num_parts, num_characters) int32."""
    code, own, is_mark = (parts & CODE_MASK).astype(np.uint64), parts >> CLASS_SHIFT & CLASS_MASK, parts & ANY_MARK != 0
    kind = np.full(parts.shape, INSIDE)
    if words:
        kind = np.where(parts == 0, OUTSIDE, np.where(parts & ALONE_FLAG, LONE, INSIDE))
    follows = np.where(is_mark, kind[0] != OUTSIDE, (kind == INSIDE) & (kind[0] == INSIDE))
    fits = np.where(is_mark[0], (is_mark & (own == 0)).all(0) | (len(parts) == 1), follows[1:].all(0))
    fits &= ((code < _NUM_FORMS) & (own != IOTA_CLASS) & ((code < FIRST_JAMO) | (code > LAST_JAMO))).all(0)
    sizes = (1 + (code >= 0x80) + (code >= 0x800)).astype(np.uint64)
    num_bytes, packed = np.zeros(parts.shape[1], np.uint64), np.zeros(parts.shape[1], np.uint64)
    for written, size in zip(_utf8(code, sizes), sizes):
        packed |= written << np.uint64(8) * num_bytes
        num_bytes += size
    num_marks = np.cumprod(own[::-1] > 0, axis=0).sum(0)
    facts = ((num_bytes, _SIZE), (kind[0], _KIND), (is_mark[0], _MARK), (num_marks, _MARKS), (own[-1], _CLASS))
    for fact, shift in facts:
        packed |= fact.astype(np.uint64) << np.uint64(shift)
    return np.where(fits & (num_bytes <= _MOST_BYTES), packed, np.uint64(0))


def _utf8(code: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The bytes of code points up to U+FFFF, the first in the lowest bits."""
    last, middle = code & 0x3F | 0x80, code >> 6 & 0x3F | 0x80
    two, three = code >> 6 | 0xC0 | last << 8, code >> 12 | 0xE0 | middle << 8 | last << 16
    return np.where(sizes == 1, code, np.where(sizes == 2, two, three))
