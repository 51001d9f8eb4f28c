"""How often web pages mention what formulas, licences and directives for robots need: a page without is not searched for them.

A search of the tree of a page for such elements takes a tenth of the time that its text takes, and few pages have any. Words
of scripts and comments are counted as well, letters of any case. A word may hide behind a reference to one of its characters
(`&#109;ath`) or around a NUL, which is left out of a page: pages with one mention everything many times.
"""

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import BLOCK_BYTES, eight_bytes
from datapipe.kernels.html.tags import is_space
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, UInt8sOut

MANY = 1 << 30
"""Mentions of a page that may hide some."""

_CASE = np.uint8(0x20)
_AMPERSAND, _HASH, _GT, _SLASH, _QUOTE, _APOSTROPHE = 0x26, 0x23, 0x3E, 0x2F, 0x22, 0x27


def _word(letters: str) -> np.uint64:
    return np.uint64(int.from_bytes(letters.encode(), "big"))


_MATH, _LATEX, _LICENSE, _COMMONS, _ROBOTS = (_word(word) for word in ("math", "latex", "license", "vecommon", "robots"))
_TAG, _M_TAG, _MML_TAG, _DATA, _WIKIPEDIA = (_word(word) for word in ("<", "<m:", "<mml:", "data-", "mwe-"))
_TEX = _word("math/tex")


@inline
def _flag_beginnings(block, flags):
    """Flags the bytes at which a word may begin, or what could hide one. The last two are flagged: words may go on behind."""
    for i in range(len(block) - 2):
        first, second, third = block[i] | _CASE, block[i + 1] | _CASE, block[i + 2] | _CASE
        formula = ((first == 0x6D) | (first == 0x6C)) & (second == 0x61) & (third == 0x74)  # mat, lat
        license = ((first == 0x6C) & (second == 0x69) | (first == 0x76) & (second == 0x65)) & (third == 0x63)  # lic, vec
        robots = (first == 0x72) & (second == 0x6F) & (third == 0x62)
        flags[i] = formula | license | robots | (block[i] == 0) | ((block[i] == _AMPERSAND) & (block[i + 1] == _HASH))
    for i in range(max(len(block) - 2, 0), len(block)):
        flags[i] = 1


@inline
def _next_flag(flags, i, stop):
    while i < stop and not flags[i]:
        i += 1
        while i + 8 <= stop and eight_bytes(flags, np.uint64(i)) == 0:
            i += 8
    return i


@inline
def _lower(byte):
    return byte | _CASE if 0x41 <= byte <= 0x5A else byte


@inline
def _is_word(data, i, stop, word, size):
    """Whether the bytes at `i` are those of a word of this size, in any case."""
    letters = np.uint64(0)
    for ahead in range(i, min(i + size, stop)):
        letters = (letters << np.uint64(8)) | np.uint64(_lower(data[ahead]))
    return letters == word


@inline
def _is_after(data, start, i, word, size):
    return i - size >= start and _is_word(data, i - size, i, word, size)


@inline
def _is_token(data, start, i, stop, size):
    """Whether the word at `i` may be one of a list of words in an attribute. A, C and D may end a reference to a space."""
    before = _lower(data[i - 1]) if i > start else np.uint8(0)
    after = data[i + size] if i + size < stop else np.uint8(_GT)
    ends = is_space(after) or after == _GT or after == _QUOTE or after == _APOSTROPHE or after == _AMPERSAND
    return ends and (not 0x61 <= before <= 0x7A or before == 0x61 or before == 0x63 or before == 0x64)


@inline
def _is_formula(data, start, i, stop):
    if _is_word(data, i, stop, _LATEX, 5):
        return _is_token(data, start, i, stop, 5)
    if not _is_word(data, i, stop, _MATH, 4):
        return False
    if _is_word(data, i, stop, _TEX, 8) or _is_after(data, start, i, _DATA, 5) or _is_after(data, start, i, _WIKIPEDIA, 4):
        return True
    after = data[i + 4] if i + 4 < stop else np.uint8(0)
    if after == _AMPERSAND:  # `math&sol;tex`
        return True
    ends = is_space(after) or after == _GT or after == _SLASH
    is_tag = _is_after(data, start, i, _TAG, 1) or _is_after(data, start, i, _M_TAG, 3)
    return ends and (is_tag or _is_after(data, start, i, _MML_TAG, 5))


@inline
def _is_license(data, start, i, stop):
    is_word = _is_word(data, i, stop, _LICENSE, 7) and _is_token(data, start, i, stop, 7)
    return is_word or _is_word(data, i, stop, _COMMONS, 8)


@inline
def _may_hide(data, i, stop):
    """Whether a NUL or a reference to a letter of ASCII, `-` or `/` is at `i`."""
    if data[i] == 0:
        return True
    if data[i] != _AMPERSAND or i + 2 >= stop or data[i + 1] != _HASH:
        return False
    i += 2
    base = 16 if _lower(data[i]) == 0x78 else 10
    i, code = i + (base == 16), np.int64(0)
    while i < stop and code < 0x80:
        byte = _lower(data[i])
        digit = np.int64(byte) - (0x57 if byte >= 0x61 else 0x30)
        if byte < 0x30 or 0x39 < byte < 0x61 or digit >= base:
            break
        code, i = code * base + digit, i + 1
    return 0x61 <= code | 0x20 <= 0x7A or code == 0x2D or code == _SLASH


@kernel
def count_mentions(
    offsets: Int64s, data: UInt8s, flags: UInt8sOut, formulas: Int64sOut, licenses: Int64sOut, robots: Int64sOut
) -> None:
    """Counts what every page mentions, (num_docs,) each; `MANY` of all where a mention may hide. `flags`: (BLOCK_BYTES + 8,)
    scratch."""
    for document in range(len(offsets) - 1):
        start, stop, may_hide = offsets[document], offsets[document + 1], False
        formulas[document] = licenses[document] = robots[document] = 0
        for first in range(start, stop, BLOCK_BYTES):
            size = min(BLOCK_BYTES, stop - first)
            _flag_beginnings(data[first : first + size], flags)
            each = _next_flag(flags, 0, size)
            while each < size:
                i = first + each
                formulas[document] += _is_formula(data, start, i, stop)
                licenses[document] += _is_license(data, start, i, stop)
                robots[document] += _is_word(data, i, stop, _ROBOTS, 6)
                may_hide |= _may_hide(data, i, stop)
                each = _next_flag(flags, each + 1, size)
        if may_hide:
            formulas[document] = licenses[document] = robots[document] = MANY
