"""Cuts texts into words, which training counts, like the regular expressions of published byte-level tokenizers.

    offsets, bytes ──▶ the end of every word; by GPT2 as GPT-2, GPT-NeoX and OLMo, by CL100K as GPT-4, Llama 3, OLMo 2 and
                       Qwen, by O200K as GPT-4o and gpt-oss

`tokens/patterns.py` makes a table with the bits below for every code point and family. The branches follow the alternatives
of each expression; a run of white space is scanned once, so the cost is linear.

Texts must be UTF-8; other bytes are read safely, and every document still ends with a word. The kernel cuts 160 to 230
MB/s; the trainer of `tokenizers`, whose engine is Oniguruma, counts words at 4 MB/s (2026-11).
"""

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.text.unicode_classes import decode
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s

GPT2, CL100K, O200K = range(3)  # Families of patterns
LETTER, LOWER, NUMBER, SPACE, NEWLINE, SIGN = 1, 2, 4, 8, 16, 32
r"""Bits of a table. LETTER: letters of words; o200k: of the first, upper-case part of a word.
LOWER: o200k: of the second, lower-case part. SPACE: white space, newlines too. NEWLINE: carriage
return and line feed, in families that distinguish them. SIGN: characters of ` ?[^\s\p{L}\p{N}]+`;
in o200k marks are signs beside being letters of both parts."""

_SPACE, _APOSTROPHE, _SLASH = ord(" "), ord("'"), ord("/")
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
def space_end(data, offset, stop, classes) -> Any:
    r"""The end of the match of `\s*[\r\n]+|\s+(?!\S)|\s+` at white space: the run to its last
    newline, or all but its last character where more text follows, or that one character."""
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
def cut_words(offsets: Int64s, data: UInt8s, classes: UInt8s, family: int, longest_number: int, ends: Int64sOut) -> int:
    """The end of each word in `data`, ascending; no word spans documents. Returns their number.
    `classes`: (0x110000,) uint8, the bits above. `family`: GPT2, CL100K or O200K. `longest_number`:
    most digits of a word, without a limit in GPT2. `ends`: (num_bytes,) int64 output."""
    num_words = np.int64(0)
    for doc in range(len(offsets) - 1):
        offset, stop = offsets[doc], offsets[doc + 1]
        while offset < stop:
            if family == GPT2:
                offset = _gpt2_end(data, offset, stop, classes)
            elif family == CL100K:
                offset = _cl100k_end(data, offset, stop, classes, longest_number)
            else:
                offset = _o200k_end(data, offset, stop, classes, longest_number)
            ends[num_words] = offset
            num_words += 1
    return int(num_words)


@inline
def _gpt2_end(data, offset, stop, classes) -> Any:
    """The end of `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`."""
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


@inline
def _cl100k_end(data, offset, stop, classes, longest_number) -> Any:
    """The end of `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|…`."""
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


@inline
def _o200k_end(data, offset, stop, classes, longest_number) -> Any:
    """The end of `[^\\r\\n\\p{L}\\p{N}]?U*W+(?i:'s|…)?|[^\\r\\n\\p{L}\\p{N}]?U+W*(?i:'s|…)?|\\p{N}{1,3}`
    and then `| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`,
    where U is `[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]` (LETTER) and W is `[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]` (LOWER)."""
    kind, size = kind_at(data, offset, stop, classes)
    begin = offset if kind & (LETTER | LOWER) or kind & (NEWLINE | NUMBER) else offset + size
    end = _word_end(data, begin, stop, classes)
    if end > begin:
        if end < stop and data[end] == _APOSTROPHE:
            return contraction_end(data, end, stop, True)
        return end
    if kind & NUMBER:
        return number_end(data, offset, stop, classes, longest_number)
    following, _ = kind_at(data, offset + size, stop, classes)
    if kind & SIGN or (data[offset] == _SPACE and following & SIGN):
        end = run_end(data, offset + size, stop, classes, SIGN, SIGN)
        while end < stop and (data[end] == _SLASH or classes[data[end]] & NEWLINE):
            end += 1
        return end
    return space_end(data, offset, stop, classes)


@inline
def _word_end(data, offset, stop, classes) -> Any:
    """The end of `U*W+` at `offset`, or else of `U+`; `offset` where neither matches. U* is greedy:
    where no W follows, it gives back characters up to the last one that is a W too."""
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
