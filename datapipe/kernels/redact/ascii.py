"""Sets of ASCII bytes, and words read backwards from an offset: shared by the scans for personal data and secrets.

One table holds the sets of each byte, so a test of any of them is one lookup. A word is a run of
letters; its first eight, ignoring case, are compared as one number. Scans pass over 32 bytes at a
time where none of them can be what they look for: LLVM compares them at once, for 0.2 ns a byte.
"""

from typing import Any

import numpy as np

from datapipe.kernels import inline

_CONTEXT_BYTES = 40
_DOT, _DASH = ord("."), ord("-")
_DIGITS = "0123456789"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

DIGIT, LETTER, HEX, LOCAL, MARK, WALL, USERINFO, FENCE, GLUE, TIGHT = (1 << bit for bit in range(10))
SEPARATOR, TOKEN, BASE64, UPPER, PLAIN, CLOSING, QUOTES, NAME, NUMERAL, PARTING = (1 << bit for bit in range(10, 20))
_MEMBERS = {
    DIGIT: _DIGITS,
    LETTER: _LETTERS,
    HEX: _DIGITS + "abcdefABCDEF",
    LOCAL: _DIGITS + _LETTERS + "._%+-'&~",  # e-mail address before the @
    MARK: "@.:%",  # a possible address is around these
    WALL: "\n()[];",  # ends the search for words before a version
    USERINFO: _DIGITS + _LETTERS + "-._~%!$*+=:@",  # URL before the host
    FENCE: "<>" + _DIGITS,  # ends the search for words before a phone number
    GLUE: _DIGITS + _LETTERS + "_@%",  # after a number: the number is part of a longer token
    TIGHT: _DIGITS + _LETTERS + "_-/$%+&@",  # before a number: likewise
    SEPARATOR: " -./()",  # inside a phone number
    TOKEN: _DIGITS + _LETTERS + "_-",
    BASE64: _DIGITS + _LETTERS + "+/",
    UPPER: _DIGITS + _LETTERS[26:],
    PLAIN: _DIGITS + _LETTERS + "_-+/=~",  # secret without quotes
    CLOSING: " \t\r\n'\"`;,)]}<>&|\\",  # after a secret without quotes
    PARTING: "&,;)]}",  # ends a secret without quotes, or is in it
    QUOTES: "'\"",
    NAME: _DIGITS + _LETTERS + "_-.",  # before a version
    NUMERAL: _DIGITS,
}


def _classes() -> np.ndarray:
    """The sets of each byte: (256,) uint32."""
    table = np.zeros(256, np.uint32)
    for bit, members in _MEMBERS.items():
        for member in members:
            table[ord(member)] |= bit
    table[0xA7] |= FENCE  # the second byte of the section sign
    table[0xEF] |= MARK | NUMERAL  # the first byte of the fullwidth at sign and digits
    return table


_CLASSES = _classes()


def packed(words: str) -> np.ndarray:
    """The first eight letters of each word as one number."""
    return np.array([int.from_bytes(word[:8].encode(), "big") for word in words.split()], np.uint64)


FILLERS = packed("number numbers no nr num is was at on me us our my your the or to home office work direct line free toll")
"""Words that may stand between a word and the number that it announces."""


@inline
def is_in(byte, classes):
    return (_CLASSES[byte] & classes) != 0


_PASSED_BYTES, _AHEAD = 32, 3
_9, _10, _5, _CASE = (np.uint8(number) for number in (9, 10, 5, 0x20))
_ZERO, _A, _WIDE, _AT, _PERCENT, _COLON, _SLASH, _POINT = (np.uint8(byte) for byte in b"0a\xef@%:/.")


@inline
def _is_digit(byte) -> Any:
    return np.uint8(byte - _ZERO) <= _9


@inline
def _is_hex_or_colon(byte) -> Any:
    return (np.uint8(byte - _ZERO) <= _10) | (np.uint8((byte | _CASE) - _A) <= _5)


@inline
def next_numeral(data, j, end) -> Any:
    """The first byte of NUMERAL from `j` on; `end` where there is none."""
    while j + _PASSED_BYTES <= end:
        block, any_found = data[j : j + _PASSED_BYTES], np.uint8(0)
        for i in range(_PASSED_BYTES):
            any_found = np.uint8(any_found | np.uint8(_is_digit(block[i]) | (block[i] == _WIDE)))
        if any_found:
            break
        j += _PASSED_BYTES
    while j < end and not is_in(data[j], NUMERAL):
        j += 1
    return j


@inline
def next_mark(data, begin, j, end) -> Any:
    """The first byte of MARK from `j` on, or a later one where those before it are neither a full
    stop between digits nor a colon before a slash or three hexadecimal digits or colons; `end` where there is none."""
    if j == begin and j < end and not is_in(data[j], MARK):
        j += 1  # the loop looks at the byte before
    while begin < j and j + _PASSED_BYTES + _AHEAD <= end:
        block, any_found = data[j - 1 : j + _PASSED_BYTES + _AHEAD], np.uint8(0)
        for i in range(_PASSED_BYTES):
            before, byte, first, second, third = block[i], block[i + 1], block[i + 2], block[i + 3], block[i + 4]
            is_group = _is_hex_or_colon(first) & _is_hex_or_colon(second) & _is_hex_or_colon(third)
            found = (byte == _POINT) & _is_digit(before) & _is_digit(first)
            found |= (byte == _COLON) & ((first == _SLASH) | is_group)
            any_found = np.uint8(any_found | np.uint8(found | (byte == _AT) | (byte == _PERCENT) | (byte == _WIDE)))
        if any_found:
            break
        j += _PASSED_BYTES
    while j < end and not is_in(data[j], MARK):
        j += 1
    return j


@inline
def is_among(data, start, stop, words):
    """Whether the first eight letters of a word, ignoring case, are those of one of `words`."""
    number = np.uint64(0)
    for j in range(start, min(stop, start + 8)):
        number = number << np.uint64(8) | np.uint64(data[j] | 0x20)
    is_listed = False
    for word in words:
        is_listed |= word == number
    return is_listed


@inline
def follows_word(data, begin, start, words, fillers, walls, num_words):
    """Whether one of the last `num_words` words before `start` is among `words`, and all words between are among `fillers`. The
    search goes back 40 bytes and ends at a byte of the sets `walls`. A section sign counts as one of `words`."""
    j, low = start, max(begin, start - _CONTEXT_BYTES)
    for _ in range(num_words):
        while j > low and not is_in(data[j - 1], LETTER):
            if is_in(data[j - 1], walls):
                return False
            if data[j - 1] == 0xA7 and j - 1 > low and data[j - 2] == 0xC2:
                return True
            j -= 1
        stop = j
        while j > low and is_in(data[j - 1], LETTER):
            j -= 1
        if j == stop or is_among(data, j, stop, words):
            return j < stop
        if not is_among(data, j, stop, fillers):
            return False
    return False


@inline
def is_clear_before(data, floor, start):
    """Whether a number that starts at `start` is not part of a longer token. A span ended at `floor`."""
    if start == floor:
        return True
    if data[start - 1] == _DOT:
        return start - 1 > floor and (is_in(data[start - 2], LETTER) or data[start - 2] >= 0x80)
    return not is_in(data[start - 1], TIGHT)


@inline
def is_clear_after(data, stop, end):
    """Whether a number that stops at `stop` is not part of a longer token."""
    if stop < end and (data[stop] == _DOT or data[stop] == _DASH):
        return stop + 1 == end or not is_in(data[stop + 1], DIGIT)
    return stop == end or not is_in(data[stop], GLUE)


@inline
def group_stop(data, start, end, most):
    """The stop of the digits from `start` on; reads at most `most + 1` digits."""
    stop, limit = start, min(end, start + most + 1)
    while stop < limit and is_in(data[stop], DIGIT):
        stop += 1
    return stop


@inline
def next_group_stop(data, stop, end, sign, most):
    """The stop of the digits after one `sign`; `stop` where there are none."""
    if stop < end and data[stop] == sign:
        after = group_stop(data, stop + 1, end, most)
        return after if after > stop + 1 else stop
    return stop
