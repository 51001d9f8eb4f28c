"""Texts cut into the pieces within which byte-level BPE merges, exactly as the regular expressions of published tokenizers cut.

    offsets, bytes  --cut_gpt2-------->  the end of every piece: GPT-2, GPT-NeoX, OLMo; with digits taken out first, StarCoder
                    --cut_cl100k------>  GPT-4, Llama 3, OLMo 2, Qwen
                    --cut_o200k------->  GPT-4o, gpt-oss; Mistral's tekken
                    --cut_deepseek---->  DeepSeek V3 and R1, which split three times

What a character is to a family is one byte of a table, the union of the bits below; `datapipe/tokens/character_classes.py`
makes the tables. The order of the alternatives of each expression is the order of the branches here. A backtracking engine
tries `\\s*[\\r\\n]+` and `\\s+(?!\\S)` by giving back white space from the end of a run, so a run is scanned once, and where
its last newline, its last character and its end are tells what they match. What stays of a run is at most scanned twice
more: the cost is linear in the bytes.

Texts must be UTF-8. On other bytes nothing is read or written out of bounds, and every document still ends a piece.

One core of a 2-core AMD EPYC, in CPU time while other work shared it, cuts English (novels, web pages, news) at 280 to 355 MB/s
by GPT-2, 275 to 365 by cl100k, 225 to 315 by o200k and 270 to 360 by DeepSeek; sentences of 75 languages at 240 to 290 MB/s;
HTML and Java at 170 (o200k) to 340 MB/s.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.text.unicode_classes import decode
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s

LETTER, LOWER, NUMBER, SPACE, NEWLINE, SIGN, APART, HAN = 1, 2, 4, 8, 16, 32, 64, 128
"""Bits of a table.

LETTER: what words are made of; o200k: what may stand in their first, upper-case part.
LOWER: o200k: what may stand in the second, lower-case part; unused in other families.
SPACE: white space, the newlines too. NEWLINE: carriage return and line feed, in families that care.
SIGN: what ` ?[^\\s\\p{L}\\p{N}]+` takes; in o200k marks are signs beside being letters of both parts.
APART: digits that an earlier split has taken out, so that the expression sees the end of the text there.
HAN: Chinese characters and kana, which an earlier split of DeepSeek has taken out in runs.
A character without any bit is cut out by no alternative, and stays in what lies between the matches.
"""

_SPACE, _APOSTROPHE, _SLASH = ord(" "), ord("'"), ord("/")
_ONES = np.uint64(0x0101010101010101)
_HIGH_BITS, _SEVEN_BITS, _FOLD = _ONES * np.uint64(0x80), _ONES * np.uint64(0x7F), _ONES * np.uint64(0x20)
_FROM_A, _PAST_Z = _ONES * np.uint64(0x80 - ord("a")), _ONES * np.uint64(0x80 - ord("z") - 1)
"""Added to seven bits of each byte, they set its high bit from "a" on, and past "z"."""

_S, _T, _M, _D, _R, _E, _V, _L = (ord(letter) for letter in "stmdrevl")


@inline
def kind_at(data, at, stop, classes) -> tuple[Any, Any]:
    """The bits of the character at `at` and its bytes; (0, 0) at the end."""
    if at >= stop:
        return np.int64(0), np.int64(0)
    byte = data[at]
    if byte < 0x80:
        return np.int64(classes[byte]), np.int64(1)
    code, size = decode(data, at, stop)
    return np.int64(classes[code]), np.int64(size)


@inline
def run_end(data, at, stop, classes, mask, wanted) -> Any:
    """Where the run of characters from `at` ends whose bits under `mask` are `wanted`."""
    while at < stop:
        byte = data[at]
        if byte < 0x80:
            if classes[byte] & mask != wanted:
                return at
            at += 1
        else:
            code, size = decode(data, at, stop)
            if classes[code] & mask != wanted:
                return at
            at += size
    return at


@inline
def plain_word_end(data, at, stop, fold) -> Any:
    """The end of the ASCII letters from `at` where another ASCII character follows, else `at`.

    With `fold` 0, small letters only. Most pieces of most texts are such words. They are taken eight bytes at a time, without
    a branch for each, and without the call of a function that knows the rest.
    """
    end = at
    while end + 8 < stop:
        count = _leading_letters(data, np.uint64(end), fold)
        end += count
        if count < 8:
            return end if data[end] < 0x80 else at
    return at


@inline
def _leading_letters(data, at, fold) -> Any:
    """How many of the eight bytes from `at` (uint64) are ASCII letters before the first that is none."""
    word = np.uint64(data[at])
    for place in range(1, 8):  # the compiler makes one load of these
        word |= np.uint64(data[at + np.uint64(place)]) << np.uint64(8 * place)
    small = (word | fold) & _SEVEN_BITS
    others = ~((small + _FROM_A) & ~(small + _PAST_Z) & ~word) & _HIGH_BITS
    below = ((others & (~others + np.uint64(1))) >> np.uint64(7)) - np.uint64(1)
    return np.int64(((below & _ONES) * _ONES) >> np.uint64(56))


@inline
def space_end(data, at, stop, classes, whole_tail) -> Any:
    """What `\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+` matches at white space: the run to its last newline, or all but its last character
    where something follows, or that one character.

    Args:
        whole_tail: whether `\\s++$` is tried before them, which takes a run that ends the text.
    """
    end, last, after_newline = at, at, at
    kind, size = kind_at(data, at, stop, classes)
    while kind & SPACE:
        last = end
        end += size
        if kind & NEWLINE:
            after_newline = end
        kind, size = kind_at(data, end, stop, classes)
    is_last = end >= stop or kind & (APART | HAN) != 0
    if after_newline > at and not (whole_tail and is_last):
        return after_newline
    return end if is_last or last == at else last


@inline
def contraction_end(data, at, stop, any_case) -> Any:
    """The end of `'s|'t|'re|'ve|'m|'ll|'d` at an apostrophe, or `at`. Where case is ignored, the long s (U+017F) is an s."""
    if at + 1 >= stop:
        return at
    fold = np.int64(0x20) if any_case else np.int64(0)
    first = np.int64(data[at + 1]) | fold
    if first == _S or first == _T or first == _M or first == _D:
        return at + 2
    if at + 2 >= stop:
        return at
    if any_case and data[at + 1] == 0xC5 and data[at + 2] == 0xBF:
        return at + 3
    second = np.int64(data[at + 2]) | fold
    if (first == _L and second == _L) or (second == _E and (first == _R or first == _V)):
        return at + 3
    return at


@inline
def number_end(data, at, stop, classes, bit, longest) -> Any:
    """The end of at most `longest` characters with `bit`; of all of the run for 0."""
    if longest == 0:
        return run_end(data, at, stop, classes, bit, bit)
    kind, size = kind_at(data, at, stop, classes)
    while longest > 0 and kind & bit:
        at += size
        longest -= 1
        kind, size = kind_at(data, at, stop, classes)
    return at


@kernel
def cut_gpt2(offsets: Int64s, data: UInt8s, classes: UInt8s, longest_number: int, ends: Int64sOut) -> int:
    """Cuts by `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`.

    Returns the number of pieces.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        classes: (0x110000,) uint8, the bits above; without NEWLINE.
        longest_number: digits in a piece of those that are APART; 0 for no limit.
        ends: (num_bytes,) int64, where each piece ends in `data`, ascending; no piece spans documents.
    """
    piece = np.int64(0)
    for doc in range(len(offsets) - 1):
        at, stop = offsets[doc], offsets[doc + 1]
        while at < stop:
            begin = at + 1 if data[at] == _SPACE else at
            end = plain_word_end(data, begin, stop, _FOLD)
            at = end if end > begin else _gpt2_end(data, at, stop, classes, longest_number)
            ends[piece] = at
            piece += 1
    return int(piece)


@inline
def _gpt2_end(data, at, stop, classes, longest_number) -> Any:
    byte = data[at]
    if byte == _APOSTROPHE:
        end = contraction_end(data, at, stop, False)
        if end > at:
            return end
    begin = at + 1 if byte == _SPACE else at
    kind, size = kind_at(data, begin, stop, classes)
    if kind & LETTER:
        return run_end(data, begin + size, stop, classes, LETTER, LETTER)
    if kind & (SIGN | NUMBER):
        return run_end(data, begin + size, stop, classes, kind, kind)
    if kind & APART and begin == at:
        return number_end(data, at, stop, classes, APART, longest_number)
    return space_end(data, at, stop, classes, False)


@kernel
def cut_cl100k(offsets: Int64s, data: UInt8s, classes: UInt8s, longest_number: int, whole_tail: bool, ends: Int64sOut) -> int:
    """Cuts by `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|…`.

    Args:
        longest_number: digits in a piece, APART or not; 0 for no limit.
        whole_tail: see `space_end`.

    The other arguments are those of `cut_gpt2`. Where marks go with letters (Qwen 3.5), the table says LETTER of them.
    """
    piece = np.int64(0)
    for doc in range(len(offsets) - 1):
        at, stop = offsets[doc], offsets[doc + 1]
        while at < stop:
            begin = at + 1 if data[at] == _SPACE else at
            end = plain_word_end(data, begin, stop, _FOLD)
            at = end if end > begin else _cl100k_end(data, at, stop, classes, longest_number, whole_tail)
            ends[piece] = at
            piece += 1
    return int(piece)


@inline
def _cl100k_end(data, at, stop, classes, longest_number, whole_tail) -> Any:
    byte = data[at]
    if byte == _APOSTROPHE:
        end = contraction_end(data, at, stop, True)
        if end > at:
            return end
    kind, size = kind_at(data, at, stop, classes)
    if kind & (NUMBER | APART):
        return number_end(data, at, stop, classes, kind, longest_number)
    following, following_size = kind, np.int64(0)
    if kind & LETTER == 0:
        following, following_size = kind_at(data, at + size, stop, classes)
    if following & LETTER and kind & NEWLINE == 0:
        return run_end(data, at + size + following_size, stop, classes, LETTER, LETTER)
    if kind & SIGN or (byte == _SPACE and following & SIGN):
        end = run_end(data, at + size, stop, classes, SIGN, SIGN)
        return run_end(data, end, stop, classes, NEWLINE, NEWLINE)
    return space_end(data, at, stop, classes, whole_tail)


@kernel
def cut_o200k(offsets: Int64s, data: UInt8s, classes: UInt8s, longest_number: int, contractions: bool, ends: Int64sOut) -> int:
    """Cuts by `[^\\r\\n\\p{L}\\p{N}]?U*W+(?i:'s|…)?|[^\\r\\n\\p{L}\\p{N}]?U+W*(?i:'s|…)?|\\p{N}{1,3}`
    and then `| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`,
    where U is `[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]` (LETTER) and W is `[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]` (LOWER).

    Args:
        longest_number: digits in a piece; 0 for no limit.
        contractions: whether a word takes a contraction that follows it.

    The other arguments are those of `cut_gpt2`.
    """
    piece = np.int64(0)
    for doc in range(len(offsets) - 1):
        at, stop = offsets[doc], offsets[doc + 1]
        while at < stop:
            begin = at + 2 if data[at] == _SPACE else at + 1
            end = plain_word_end(data, begin, stop, np.uint64(0))
            is_word = end > begin and _is_ascii_letter(data, begin - 1, stop) and data[end] != _APOSTROPHE
            at = end if is_word else _o200k_end(data, at, stop, classes, longest_number, contractions)
            ends[piece] = at
            piece += 1
    return int(piece)


@inline
def _o200k_end(data, at, stop, classes, longest_number, contractions) -> Any:
    kind, size = kind_at(data, at, stop, classes)
    begin = at if kind & (LETTER | LOWER) or kind & (NEWLINE | NUMBER) else at + size
    end = _word_end(data, begin, stop, classes)
    if end > begin:
        if contractions and end < stop and data[end] == _APOSTROPHE:
            return contraction_end(data, end, stop, True)
        return end
    if kind & NUMBER:
        return number_end(data, at, stop, classes, NUMBER, longest_number)
    following, _ = kind_at(data, at + size, stop, classes)
    if kind & SIGN or (data[at] == _SPACE and following & SIGN):
        end = run_end(data, at + size, stop, classes, SIGN, SIGN)
        while end < stop and (data[end] == _SLASH or classes[data[end]] & NEWLINE):
            end += 1
        return end
    return space_end(data, at, stop, classes, False)


@inline
def _word_end(data, at, stop, classes) -> Any:
    """The end of `U*W+` at `at`, or else of `U+`; `at` where neither is.

    U* takes all it can. Where no W follows, it gives back as far as its last character that is a W too.
    """
    end, last_both = at, at
    kind, size = kind_at(data, at, stop, classes)
    while kind & LETTER:
        end += size
        if kind & LOWER:
            last_both = end
        kind, size = kind_at(data, end, stop, classes)
    if kind & LOWER:
        return run_end(data, end + size, stop, classes, LOWER, LOWER)
    return last_both if last_both > at else end


@kernel
def cut_deepseek(offsets: Int64s, data: UInt8s, classes: UInt8s, ends: Int64sOut) -> int:
    """Cuts out digits (APART) by threes, then runs of HAN, and what is between and within them by
    `[!-/:-@[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*` and the rest of cl100k.

    The arguments are those of `cut_gpt2`. LETTER is a letter or mark, SIGN is punctuation or a symbol.
    """
    piece = np.int64(0)
    for doc in range(len(offsets) - 1):
        at, stop = offsets[doc], offsets[doc + 1]
        while at < stop:
            begin = at + 1 if data[at] == _SPACE else at
            end = plain_word_end(data, begin, stop, _FOLD)
            at = end if end > begin else _deepseek_end(data, at, stop, classes)
            ends[piece] = at
            piece += 1
    return int(piece)


@inline
def _deepseek_end(data, at, stop, classes) -> Any:
    kind, size = kind_at(data, at, stop, classes)
    part = kind & HAN  # a match stays among HAN or among the rest
    letter, sign = LETTER | part, SIGN | part
    if kind & APART:
        return number_end(data, at, stop, classes, APART, 3)
    following, following_size = kind, np.int64(0)
    if kind & LETTER == 0:
        following, following_size = kind_at(data, at + size, stop, classes)
    if kind & SIGN and data[at] < 0x80 and _is_ascii_letter(data, at + 1, stop):
        end = at + 2
        while _is_ascii_letter(data, end, stop):
            end += 1
        return end
    if following & (LETTER | HAN) == letter and kind & (NEWLINE | SIGN) == 0:
        return run_end(data, at + size + following_size, stop, classes, LETTER | HAN, letter)
    if kind & SIGN or (data[at] == _SPACE and following & (SIGN | HAN) == SIGN):
        end = run_end(data, at + size, stop, classes, SIGN | HAN, sign)
        return end if part else run_end(data, end, stop, classes, NEWLINE, NEWLINE)
    if kind & SPACE:
        return space_end(data, at, stop, classes, False)
    return _gap_end(data, at, stop, classes, part)


@inline
def _is_ascii_letter(data, at, stop) -> Any:
    return at < stop and 0x61 <= data[at] | 0x20 <= 0x7A


@inline
def _gap_end(data, at, stop, classes, part) -> Any:
    """The end of a run of characters that nothing matches; its last is left to the word that it begins."""
    end, last = at, at
    kind, size = kind_at(data, at, stop, classes)
    while size > 0 and kind == part:
        last = end
        end += size
        kind, size = kind_at(data, end, stop, classes)
    return last if last > at and kind & (LETTER | HAN) == LETTER | part else end
