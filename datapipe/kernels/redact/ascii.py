"""Sets of ASCII bytes, and words read backwards from a place: what the scans for personal data and secrets share.

One table says for each byte which sets it is in, so that a test of any of them is one look-up. A word is a run of letters; it
is compared by its first eight, case aside, as one number.
"""

from __future__ import annotations

import numpy as np

from datapipe.kernels import inline

_CONTEXT_BYTES = 40
_DOT, _DASH = ord("."), ord("-")
_DIGITS = "0123456789"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

DIGIT, LETTER, HEX, LOCAL, MARK, WALL, USERINFO, FENCE, GLUE, TIGHT, SEPARATOR, TOKEN, BASE64, UPPER, VALUE = (
    1 << bit for bit in range(15)
)
_MEMBERS = {
    DIGIT: _DIGITS,
    LETTER: _LETTERS,
    HEX: _DIGITS + "abcdefABCDEF",
    LOCAL: _DIGITS + _LETTERS + "._%+-'&~",  # of an e-mail address before the @
    MARK: "@.:",  # where an address is looked for
    WALL: "\n()[];",  # ends the search for words before a version
    USERINFO: _DIGITS + _LETTERS + "-._~%!$*+=:@",  # of a URL before the host
    FENCE: "<>" + _DIGITS,  # ends the search for words before a phone number
    GLUE: _DIGITS + _LETTERS + "_@%",  # behind a number, it is part of something longer
    TIGHT: _DIGITS + _LETTERS + "_-/$%+&@",  # before a number, likewise
    SEPARATOR: " -./()",  # inside a phone number
    TOKEN: _DIGITS + _LETTERS + "_-",
    BASE64: _DIGITS + _LETTERS + "+/",
    UPPER: _DIGITS + _LETTERS[26:],
    VALUE: _DIGITS + _LETTERS + "!#$%&()*+,-./:;=?@[]^_|~",  # of a password in quotes
}


def _classes() -> np.ndarray:
    """The sets of each byte: (256,) uint16."""
    table = np.zeros(256, np.uint16)
    for bit, members in _MEMBERS.items():
        for member in members:
            table[ord(member)] |= bit
    table[0xA7] |= FENCE  # the second byte of the section sign
    return table


_CLASSES = _classes()


def packed(words: str) -> np.ndarray:
    """The first eight letters of each word as one number."""
    return np.array([int.from_bytes(word[:8].encode(), "big") for word in words.split()], np.uint64)


FILLERS = packed("number numbers no nr num is was at on me us our my your the or to home office work direct line free toll")
"""Words that may stand between a word and the number it speaks of."""


@inline
def is_in(byte, classes):
    """Whether a byte is in one of the sets."""
    return (_CLASSES[byte] & classes) != 0


@inline
def is_among(data, start, stop, words):
    """Whether the first eight letters of a word are those of one of `words`, case aside."""
    number = np.uint64(0)
    for j in range(start, min(stop, start + 8)):
        number = number << np.uint64(8) | np.uint64(data[j] | 0x20)
    found = False
    for word in words:
        found |= word == number
    return found


@inline
def follows_word(data, begin, start, words, fillers, walls, num_words):
    """Whether one of the last `num_words` words before `start` is among `words`, and all between are among `fillers`.

    The search goes 40 bytes back at most and ends at a byte of the sets `walls`; a section sign counts as a word found.
    """
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
    """Whether a number that starts here, behind what ends at the floor, is no part of a longer token."""
    if start == floor:
        return True
    if data[start - 1] == _DOT:
        return start - 1 > floor and is_in(data[start - 2], LETTER)
    return not is_in(data[start - 1], TIGHT)


@inline
def is_clear_after(data, stop, end):
    """Whether a number that stops here is no part of a longer token."""
    if stop < end and (data[stop] == _DOT or data[stop] == _DASH):
        return stop + 1 == end or not is_in(data[stop + 1], DIGIT)
    return stop == end or not is_in(data[stop], GLUE)


@inline
def group_stop(data, start, end, most):
    """Where the digits from `start` stop, of which `most + 1` are read."""
    stop, limit = start, min(end, start + most + 1)
    while stop < limit and is_in(data[stop], DIGIT):
        stop += 1
    return stop


@inline
def next_group_stop(data, stop, end, sign, most):
    """Where the digits behind one `sign` stop; `stop` where there are none."""
    if stop < end and data[stop] == sign:
        after = group_stop(data, stop + 1, end, most)
        return after if after > stop + 1 else stop
    return stop
