"""Cuts texts into words, which training counts, like the regular expressions of published byte-level tokenizers.

    offsets, bytes  --cut_gpt2---->  the end of every word: GPT-2, GPT-NeoX, OLMo
                    --cut_cl100k-->  GPT-4, Llama 3, OLMo 2, Qwen
                    --cut_o200k--->  GPT-4o, gpt-oss

Each has a table with the bits below for every code point; `datapipe/tokens/character_classes.py` makes the tables.
The branches follow the order of the alternatives of each expression. A backtracking engine matches `\\s*[\\r\\n]+` and
`\\s+(?!\\S)` by giving back white space from the end of a run. Here a run is scanned once: its last newline, its last character
and its end tell what the alternatives match. The rest of a run is scanned at most twice more: the cost is linear in the bytes.

Texts must be UTF-8. With other bytes nothing is read or written out of bounds, and every document still ends with a word.
Counting by these kernels is 15 times as fast as by the engine of `tokenizers`, which is Oniguruma.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.text.unicode_classes import decode
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s

LETTER, LOWER, NUMBER, SPACE, NEWLINE, SIGN = 1, 2, 4, 8, 16, 32
"""Bits of a table.

LETTER: letters of words; o200k: letters of the first, upper-case part of a word.
LOWER: o200k: letters of the second, lower-case part; unused in other families.
SPACE: white space, including newlines. NEWLINE: carriage return and line feed, in families that distinguish them.
SIGN: characters of ` ?[^\\s\\p{L}\\p{N}]+`; in o200k marks are signs beside being letters of both parts.
"""

_SPACE, _APOSTROPHE, _SLASH = ord(" "), ord("'"), ord("/")
_ONES = np.uint64(0x0101010101010101)
_HIGH_BITS, _SEVEN_BITS, _FOLD = _ONES * np.uint64(0x80), _ONES * np.uint64(0x7F), _ONES * np.uint64(0x20)
_FROM_A, _PAST_Z = _ONES * np.uint64(0x80 - ord("a")), _ONES * np.uint64(0x80 - ord("z") - 1)
"""Added to the seven low bits of each byte, they set its high bit from "a" on, and past "z"."""

_S, _T, _M, _D, _R, _E, _V, _L = (ord(letter) for letter in "stmdrevl")


@inline
def kind_at(data, offset, stop, classes) -> tuple[Any, Any]:
    """The bits of the character at `offset` and its size in bytes; (0, 0) at the end."""
    if offset >= stop:
        return np.int64(0), np.int64(0)
    byte = data[offset]
    if byte < 0x80:
        return np.int64(classes[byte]), np.int64(1)
    code, size = decode(data, offset, stop)
    return np.int64(classes[code]), np.int64(size)


@inline
def run_end(data, offset, stop, classes, mask, wanted) -> Any:
    """The end of the run of characters from `offset` on whose bits under `mask` equal `wanted`."""
    while offset < stop:
        byte = data[offset]
        if byte < 0x80:
            if classes[byte] & mask != wanted:
                return offset
            offset += 1
        else:
            code, size = decode(data, offset, stop)
            if classes[code] & mask != wanted:
                return offset
            offset += size
    return offset


@inline
def plain_word_end(data, offset, stop, fold) -> Any:
    """The end of the ASCII letters from `offset` where another ASCII character follows, else `offset`.

    With `fold` 0, small letters only. Most pretokens of most texts are such words. The loop takes eight bytes at a time,
    without a branch for each byte and without a call of the function for the other rules.
    """
    end = offset
    while end + 8 < stop:
        count = _leading_letters(data, np.uint64(end), fold)
        end += count
        if count < 8:
            return end if data[end] < 0x80 else offset
    return offset


@inline
def _leading_letters(data, offset, fold) -> Any:
    """Number of ASCII letters before the first other byte, of the eight bytes from `offset` (uint64)."""
    word = np.uint64(data[offset])
    for index in range(1, 8):  # the compiler makes one load of these
        word |= np.uint64(data[offset + np.uint64(index)]) << np.uint64(8 * index)
    small = (word | fold) & _SEVEN_BITS
    others = ~((small + _FROM_A) & ~(small + _PAST_Z) & ~word) & _HIGH_BITS
    below = ((others & (~others + np.uint64(1))) >> np.uint64(7)) - np.uint64(1)
    return np.int64(((below & _ONES) * _ONES) >> np.uint64(56))


@inline
def space_end(data, offset, stop, classes) -> Any:
    """The end of the match of `\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+` at white space.

    The match is the run to its last newline, or all but its last character where more text follows, or that one character.
    """
    end, last, after_newline = offset, offset, offset
    kind, size = kind_at(data, offset, stop, classes)
    while kind & SPACE:
        last = end
        end += size
        if kind & NEWLINE:
            after_newline = end
        kind, size = kind_at(data, end, stop, classes)
    if after_newline > offset:
        return after_newline
    return end if end >= stop or last == offset else last


@inline
def contraction_end(data, offset, stop, any_case) -> Any:
    """The end of `'s|'t|'re|'ve|'m|'ll|'d` at an apostrophe, or `offset`. Without case the long s (U+017F) is an s."""
    if offset + 1 >= stop:
        return offset
    fold = np.int64(0x20) if any_case else np.int64(0)
    first = np.int64(data[offset + 1]) | fold
    if first == _S or first == _T or first == _M or first == _D:
        return offset + 2
    if offset + 2 >= stop:
        return offset
    if any_case and data[offset + 1] == 0xC5 and data[offset + 2] == 0xBF:
        return offset + 3
    second = np.int64(data[offset + 2]) | fold
    if (first == _L and second == _L) or (second == _E and (first == _R or first == _V)):
        return offset + 3
    return offset


@inline
def number_end(data, offset, stop, classes, longest) -> Any:
    """The end of at most `longest` digits."""
    kind, size = kind_at(data, offset, stop, classes)
    while longest > 0 and kind & NUMBER:
        offset += size
        longest -= 1
        kind, size = kind_at(data, offset, stop, classes)
    return offset


@kernel
def cut_gpt2(offsets: Int64s, data: UInt8s, classes: UInt8s, ends: Int64sOut) -> int:
    """Cuts by `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`.

    Returns the number of pretokens.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        classes: (0x110000,) uint8, the bits above; without NEWLINE.
        ends: (num_bytes,) int64, the end of each pretoken in `data`, ascending; no pretoken spans documents.
    """
    pretoken = np.int64(0)
    for doc in range(len(offsets) - 1):
        offset, stop = offsets[doc], offsets[doc + 1]
        while offset < stop:
            begin = offset + 1 if data[offset] == _SPACE else offset
            end = plain_word_end(data, begin, stop, _FOLD)
            offset = end if end > begin else _gpt2_end(data, offset, stop, classes)
            ends[pretoken] = offset
            pretoken += 1
    return int(pretoken)


@inline
def _gpt2_end(data, offset, stop, classes) -> Any:
    byte = data[offset]
    if byte == _APOSTROPHE:
        end = contraction_end(data, offset, stop, False)
        if end > offset:
            return end
    begin = offset + 1 if byte == _SPACE else offset
    kind, size = kind_at(data, begin, stop, classes)
    if kind & LETTER:
        return run_end(data, begin + size, stop, classes, LETTER, LETTER)
    if kind & (SIGN | NUMBER):
        return run_end(data, begin + size, stop, classes, kind, kind)
    return space_end(data, offset, stop, classes)


@kernel
def cut_cl100k(offsets: Int64s, data: UInt8s, classes: UInt8s, longest_number: int, ends: Int64sOut) -> int:
    """Cuts by `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|…`.

    Args:
        longest_number: most digits of a word.

    The other arguments are those of `cut_gpt2`.
    """
    pretoken = np.int64(0)
    for doc in range(len(offsets) - 1):
        offset, stop = offsets[doc], offsets[doc + 1]
        while offset < stop:
            begin = offset + 1 if data[offset] == _SPACE else offset
            end = plain_word_end(data, begin, stop, _FOLD)
            offset = end if end > begin else _cl100k_end(data, offset, stop, classes, longest_number)
            ends[pretoken] = offset
            pretoken += 1
    return int(pretoken)


@inline
def _cl100k_end(data, offset, stop, classes, longest_number) -> Any:
    byte = data[offset]
    if byte == _APOSTROPHE:
        end = contraction_end(data, offset, stop, True)
        if end > offset:
            return end
    kind, size = kind_at(data, offset, stop, classes)
    if kind & NUMBER:
        return number_end(data, offset, stop, classes, longest_number)
    following, following_size = kind, np.int64(0)
    if kind & LETTER == 0:
        following, following_size = kind_at(data, offset + size, stop, classes)
    if following & LETTER and kind & NEWLINE == 0:
        return run_end(data, offset + size + following_size, stop, classes, LETTER, LETTER)
    if kind & SIGN or (byte == _SPACE and following & SIGN):
        end = run_end(data, offset + size, stop, classes, SIGN, SIGN)
        return run_end(data, end, stop, classes, NEWLINE, NEWLINE)
    return space_end(data, offset, stop, classes)


@kernel
def cut_o200k(offsets: Int64s, data: UInt8s, classes: UInt8s, ends: Int64sOut) -> int:
    """Cuts by `[^\\r\\n\\p{L}\\p{N}]?U*W+(?i:'s|…)?|[^\\r\\n\\p{L}\\p{N}]?U+W*(?i:'s|…)?|\\p{N}{1,3}`
    and then `| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`,
    where U is `[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]` (LETTER) and W is `[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]` (LOWER).

    The arguments are those of `cut_gpt2`.
    """
    pretoken = np.int64(0)
    for doc in range(len(offsets) - 1):
        offset, stop = offsets[doc], offsets[doc + 1]
        while offset < stop:
            begin = offset + 2 if data[offset] == _SPACE else offset + 1
            end = plain_word_end(data, begin, stop, np.uint64(0))
            is_word = end > begin and _is_ascii_letter(data, begin - 1, stop) and data[end] != _APOSTROPHE
            offset = end if is_word else _o200k_end(data, offset, stop, classes)
            ends[pretoken] = offset
            pretoken += 1
    return int(pretoken)


@inline
def _o200k_end(data, offset, stop, classes) -> Any:
    kind, size = kind_at(data, offset, stop, classes)
    begin = offset if kind & (LETTER | LOWER) or kind & (NEWLINE | NUMBER) else offset + size
    end = _word_end(data, begin, stop, classes)
    if end > begin:
        if end < stop and data[end] == _APOSTROPHE:
            return contraction_end(data, end, stop, True)
        return end
    if kind & NUMBER:
        return number_end(data, offset, stop, classes, 3)
    following, _ = kind_at(data, offset + size, stop, classes)
    if kind & SIGN or (data[offset] == _SPACE and following & SIGN):
        end = run_end(data, offset + size, stop, classes, SIGN, SIGN)
        while end < stop and (data[end] == _SLASH or classes[data[end]] & NEWLINE):
            end += 1
        return end
    return space_end(data, offset, stop, classes)


@inline
def _word_end(data, offset, stop, classes) -> Any:
    """The end of `U*W+` at `offset`, or else of `U+`; `offset` where neither matches.

    U* is greedy. Where no W follows, it gives back characters up to the last one that is a W too.
    """
    end, last_both = offset, offset
    kind, size = kind_at(data, offset, stop, classes)
    while kind & LETTER:
        end += size
        if kind & LOWER:
            last_both = end
        kind, size = kind_at(data, end, stop, classes)
    if kind & LOWER:
        return run_end(data, end + size, stop, classes, LOWER, LOWER)
    return last_both if last_both > offset else end


@inline
def _is_ascii_letter(data, offset, stop) -> Any:
    return offset < stop and 0x61 <= data[offset] | 0x20 <= 0x7A
