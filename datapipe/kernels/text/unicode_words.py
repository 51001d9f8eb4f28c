"""Words without punctuation, in any script: runs of letters, marks and digits, close to the word boundaries of UAX #29.

    "Don't pay 3.50, 太郎 ไทย!"  ->  Don't  pay  3.50  太  郎  ไ  ท  ย

- Signs join only inside a word: `'`, `’`, `.`, `:` and `·` between two letters, `.`, `,`, `;` and `'` between two digits.
- Scripts without spaces are cut without a dictionary: each Han character, each Hiragana letter and each Thai, Lao, Khmer,
  Myanmar or Tibetan letter is a word of its own, together with its marks. Katakana and Hangul join like other letters.

DCLM's filters count these words (uniseg without punctuation), and repetition filters use them for scripts without spaces. The
cost is linear in the text; any bytes are safe.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import FNV_BASIS, fnv_step, mix64
from datapipe.kernels.text.unicode_classes import LETTER, MARK, NUMBER, class_table, decode
from datapipe.kernels.text.words import SpansOut, Words, first_spans, room_for_spans
from datapipe.kernels.types import Int64s, UInt8s

JOINS, ALONE, BETWEEN_LETTERS, BETWEEN_DIGITS, EXTENDS, IS_DIGIT = (1 << bit for bit in range(6))
"""Roles of a character. JOINS: part of a word. ALONE: a word of its own. EXTENDS: belongs to the character before it."""

_ALONE = (
    (0x0E00, 0x0F00),  # Thai, Lao
    (0x0F00, 0x10A0),  # Tibetan, Myanmar
    (0x1780, 0x1800),  # Khmer
    (0x3005, 0x3008),  # iteration mark, closing mark, zero
    (0x3041, 0x30A0),  # Hiragana
    (0x3400, 0x4DC0),  # Han
    (0x4E00, 0xA000),
    (0xF900, 0xFB00),
    (0x20000, 0x32000),
)


@lru_cache(maxsize=1)
def role_table() -> np.ndarray:
    """The role of every code point: (0x110000,) uint8."""
    classes = class_table()
    table = np.zeros(sys.maxunicode + 1, np.uint8)
    table[(classes & (LETTER | NUMBER)) != 0] = JOINS
    table[(classes & MARK) != 0] = JOINS | EXTENDS
    table[ord("_")] = JOINS
    for start, stop in _ALONE:
        alone = (table[start:stop] & JOINS != 0) & (table[start:stop] & EXTENDS == 0)
        table[start:stop][alone] = JOINS | ALONE
    table[[0x200C, 0x200D]] = EXTENDS  # joiners
    table[ord("0") : ord("9") + 1] = JOINS | IS_DIGIT
    for sign in "'’.:·":
        table[ord(sign)] |= BETWEEN_LETTERS
    for sign in "'.,;":
        table[ord(sign)] |= BETWEEN_DIGITS
    table.flags.writeable = False
    return table


def find_unicode_words(offsets: np.ndarray, data: np.ndarray) -> Words:
    """The words of every document without their punctuation, in any script.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
    """
    out = room_for_spans(len(offsets), most_unicode_words(offsets, data, role_table()))
    return first_spans(Words, split_unicode_words(offsets, data, class_table(), role_table(), out), out)


@kernel
def most_unicode_words(offsets: Int64s, data: UInt8s, roles: UInt8s) -> int:
    """An upper bound on the number of words: characters that are not ASCII, and the starts of runs of ASCII word characters."""
    count = np.int64(0)
    for doc in range(len(offsets) - 1):
        joined = np.int64(0)
        for offset in range(offsets[doc], offsets[doc + 1]):
            byte = data[offset]
            joins = np.int64(byte < 0x80) & np.int64(roles[byte] & JOINS)
            count += np.int64(byte >= 0xC0) | (joins & (joined ^ 1))
            joined = joins
    return int(count)


@kernel
def split_unicode_words(offsets: Int64s, data: UInt8s, classes: UInt8s, roles: UInt8s, out: SpansOut) -> int:
    """Fills `out`, which has room for `most_unicode_words` words, and returns the number of words.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        classes: (0x110000,) uint8, `unicode_classes.class_table`.
        roles: (0x110000,) uint8, `role_table`.
    """
    doc_offsets, starts, lengths, hashes, chars, flags = out
    word = np.int64(0)
    doc_offsets[0] = 0
    for doc in range(len(offsets) - 1):
        offset, stop = offsets[doc], offsets[doc + 1]
        while offset < stop:
            code, size = decode(data, offset, stop)
            if not roles[code] & JOINS:
                offset += size
                continue
            start, hashed, num_chars, union, last = offset, FNV_BASIS, np.int64(0), np.int64(0), np.int64(roles[code])
            is_alone = last & ALONE
            while offset < stop:
                code, size = decode(data, offset, stop)
                role = np.int64(roles[code])
                goes_on = offset == start or role & EXTENDS or (role & JOINS and not is_alone and not role & ALONE)
                if not goes_on and not is_alone and role & (BETWEEN_LETTERS | BETWEEN_DIGITS) and offset + size < stop:
                    goes_on = _joins_both(last, role, np.int64(roles[decode(data, offset + size, stop)[0]]))
                if not goes_on:
                    break
                for index in range(offset, offset + size):
                    hashed = fnv_step(hashed, data[index])
                union |= np.int64(classes[code])
                last = role if role & (JOINS | EXTENDS) != EXTENDS else last
                num_chars += 1
                offset += size
            starts[word], lengths[word], hashes[word] = start, min(offset - start, 0x7FFFFFFF), mix64(hashed)
            chars[word], flags[word] = min(num_chars, 0x7FFFFFFF), union
            word += 1
        doc_offsets[doc + 1] = word
    return int(word)


@inline
def _joins_both(before, sign, after) -> Any:
    """Whether a sign joins two parts of a word, from the roles of the character before it, the sign, and the character after
    it.
    """
    letters = sign & BETWEEN_LETTERS and not before & IS_DIGIT and not after & IS_DIGIT and not after & (ALONE | EXTENDS)
    digits = sign & BETWEEN_DIGITS and before & IS_DIGIT and after & IS_DIGIT
    return (letters or digits) and after & JOINS
