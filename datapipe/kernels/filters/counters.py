"""Finds lines of web pages that are counters: a number and its noun, as in "1,234 likes" or "(3.5k views)". ASCII case."""

from typing import Any

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.text.marks import ALNUM, mark_at, white_stop

COUNTED = (
    "likes",
    "shares",
    "comments",
    "retweets",
    "reposts",
    "quotes",
    "bookmarks",
    "upvotes",
    "downvotes",
    "downloads",
    "views",
    "followers",
)
"""Nouns of counters: "1,234 likes"."""

_UNDERSCORE, _COMMA, _DOT = (ord(sign) for sign in "_,.")
_COUNTED_BYTES = np.frombuffer("".join(f"{word}\0" for word in COUNTED).encode(), np.uint8)


@inline
def is_counter(data, offset, stop, marks) -> Any:
    """Whether a line is a number, with an optional k, m or b, and one of COUNTED: "1,234 likes", "(3.5k views)"."""
    first = offset = _after_signs(data, offset, stop, marks)
    while offset < stop and (
        0x30 <= data[offset] <= 0x39 or (offset > first and (data[offset] == _COMMA or data[offset] == _DOT))
    ):
        offset += 1
    if (
        offset < stop
        and offset > first
        and (data[offset] | 0x20 == 0x6B or data[offset] | 0x20 == 0x6D or data[offset] | 0x20 == 0x62)
    ):
        offset += 1
    word = white_stop(data, offset, stop, marks)
    if offset == first or word == offset:
        return False
    end = word
    while end < stop and 0x61 <= data[end] | 0x20 <= 0x7A:
        end += 1
    return _is_counted(data, word, end) and _after_signs(data, end, stop, marks) == stop


@inline
def _after_signs(data, offset, stop, marks) -> Any:
    while offset < stop:
        mark, size = mark_at(data, offset, stop, marks)
        if mark & ALNUM or data[offset] == _UNDERSCORE:
            break
        offset += size
    return offset


@inline
def _is_counted(data, start, stop) -> Any:
    offset, same = start, True
    for number in range(len(_COUNTED_BYTES)):
        byte = _COUNTED_BYTES[number]
        if byte == 0:
            if same and offset == stop:
                return True
            offset, same = start, True
        else:
            same = same and offset < stop and data[offset] | 0x20 == byte
            offset += 1
    return False
