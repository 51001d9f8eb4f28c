"""The messages of plain conversations in JSON objects, without a Python object for a message.

    {"messages":[{"role":"user","content":"Hi \\u00e9"},{"from":"gpt","value":"Yes"}]}
       head     ─▶ codes: user, assistant    starts, stops: where the contents are, with escapes ─▶ contents: "Hi é", "Yes"

A conversation is plain if it is a list of objects with a role and a content alone, once each. Other members may be texts or
null; those of `NULL` must be null. All else is not plain, also what needs a closer look: escapes in names, escapes of
surrogates and characters for private use, JSON with an error.
"""

from typing import NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import ONES, eight_bytes, zero_bytes
from datapipe.kernels.text.jsonlines import skip_space, unescape
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, UInt8sOut

ROLE, CONTENT, NULL, FIRST_CODE = range(1, 5)
"""Kinds of names: members with the role and the content, and those that must be null. Roles have kinds from `FIRST_CODE` on."""

_8, _HIGHS, _SPACES = np.uint64(8), np.uint64(0x8080808080808080), np.uint64(0x2020202020202020)
_QUOTES, _BACKSLASHES = np.uint64(0x2222222222222222), np.uint64(0x5C5C5C5C5C5C5C5C)
_PRIVATE = np.uint64(0xEFEFEFEFEFEFEFEF)  # U+E000 to U+FFFF begin with 0xEE or 0xEF


class Names(NamedTuple):
    """Names of members and of roles, as JSON has them between quotes: a column of texts, and the kind of each."""

    offsets: Int64s
    data: UInt8s
    kinds: UInt8s


@inline
def _string_end(data, at, stop):
    """The end of the string at `at`, behind its quote; -1 where none is, or one that needs a closer look."""
    if at >= stop or data[at] != 34:
        return -1
    at += 1
    while at < stop:
        near = min(at + 8, stop)
        if at + 8 <= stop:
            eight = eight_bytes(data, np.uint64(at))
            ends = zero_bytes(eight ^ _QUOTES) | zero_bytes(eight ^ _BACKSLASHES) | zero_bytes((eight | ONES) ^ _PRIVATE)
            if not ends | ((eight - _SPACES) & ~eight & _HIGHS):
                at = near
        while at < near:
            byte = data[at]
            if byte == 34:
                return at + 1
            if byte < 32 or byte == 0xEE or (byte == 0xEF and data[at + 1] < 0xA0):
                return -1
            at += 1
            if byte == 92:
                at = _escape_end(data, at, stop)
                if at < 0:
                    return -1
    return -1


@inline
def _escape_end(data, at, stop):
    """The end of the escape whose backslash is before `at`; -1 where none is, or one from \\ud000 on."""
    byte = data[at] if at < stop else np.uint8(0)
    if byte != 117:
        known = byte == 34 or byte == 92 or byte == 47 or byte == 98 or byte == 102 or byte == 110 or byte == 114 or byte == 116
        return at + 1 if known else -1
    for k in range(at + 1, at + 5):
        digit = data[k] | 32 if k < stop else np.uint8(0)
        if not (48 <= digit <= 57 or 97 <= digit <= (99 if k == at + 1 else 102)):
            return -1
    return at + 5


@inline
def _kind_of(data, start, stop, offsets, texts, kinds):
    """The kind of a name; 0 for none that is known, -1 for one with an escape."""
    for name in range(len(kinds)):
        first = offsets[name]
        if offsets[name + 1] - first == stop - start:
            k = 0
            while k < stop - start and texts[first + k] == data[start + k]:
                k += 1
            if k == stop - start:
                return np.int64(kinds[name])
    for k in range(start, stop):
        if data[k] == 92:
            return -1
    return 0


@inline
def _is_null(data, at, stop):
    return at + 4 <= stop and data[at] == 110 and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108


@inline
def _message(data, at, stop, offsets, texts, kinds):
    """The end of the message at `at`, the kind of its role, and the span of its content; an end of -1 for another value."""
    role, start, end = -1, -1, -1
    more = at < stop and data[at] == 123
    while more:
        key = skip_space(data, at + 1, stop)
        at = _string_end(data, key, stop)
        kind = _kind_of(data, key + 1, at - 1, offsets, texts, kinds) if at >= 0 else -1
        at = skip_space(data, at, stop) if kind >= 0 else stop
        value = skip_space(data, at + 1, stop)
        if at >= stop or data[at] != 58:
            return -1, role, start, end
        if kind != ROLE and kind != CONTENT and _is_null(data, value, stop):
            at = value + 4
        else:
            at = _string_end(data, value, stop)
            is_twice = (kind == ROLE and role >= 0) or (kind == CONTENT and start >= 0)
            if at < 0 or kind == NULL or is_twice:
                return -1, role, start, end
            if kind == ROLE:
                role = _kind_of(data, value + 1, at - 1, offsets, texts, kinds)
            elif kind == CONTENT:
                start, end = value + 1, at - 1
        at = skip_space(data, at, stop)
        more = at < stop and data[at] == 44
    if at >= stop or data[at] != 125 or role < FIRST_CODE or start < 0:
        return -1, role, start, end
    return at + 1, role, start, end


@kernel
def find_messages(
    offsets: Int64s,
    data: UInt8s,
    head: UInt8s,
    names: Names,
    counts: Int64sOut,
    codes: UInt8sOut,
    starts: Int64sOut,
    stops: Int64sOut,
) -> int:
    """The number of messages of each conversation, (num_docs,), 0 for one that is not plain; and of all messages, whose number
    it returns, the code of the role, and the span of the content between its quotes. There are at most as many as "{".
    `head`: how each object begins, up to the list."""
    name_offsets, name_data, kinds = names.offsets, names.data, names.kinds
    count = 0
    for i in range(len(offsets) - 1):
        first, at, stop = count, offsets[i] + len(head), offsets[i + 1]
        is_plain = at <= stop
        for k in range(len(head) if is_plain else 0):
            is_plain &= data[offsets[i] + k] == head[k]
        at = skip_space(data, at, stop) if is_plain else stop
        more = at < stop and data[at] == 91
        is_plain = more
        while more:
            at, role, start, end = _message(data, skip_space(data, at + 1, stop), stop, name_offsets, name_data, kinds)
            is_plain = at >= 0
            if is_plain:
                codes[count], starts[count], stops[count] = role - FIRST_CODE, start, end
                count += 1
                at = skip_space(data, at, stop)
            more = is_plain and at < stop and data[at] == 44
        if is_plain:
            at = skip_space(data, at + 1, stop) if at < stop and data[at] == 93 else stop
        if not is_plain or at + 1 != stop or data[at] != 125:
            count = first
        counts[i] = count - first
    return count


@kernel
def write_contents(data: UInt8s, starts: Int64s, stops: Int64s, out_offsets: Int64sOut, out: UInt8sOut) -> None:
    """Writes contents without escapes, which takes at most as many bytes as they have."""
    end = 0
    out_offsets[0] = 0
    for i in range(len(starts)):
        end = unescape(data, starts[i], stops[i], out, end)
        out_offsets[i + 1] = end


@inline
def _space_bytes(data, at, stop):
    """The bytes of the white space at `at` as `str.isspace` has it; 0 for another character, and at the end."""
    byte = data[at] if at < stop else np.uint8(0)
    if byte < 128:
        return np.int64(byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31)
    if at + 2 <= stop and byte == 0xC2:
        return np.int64(2 * (data[at + 1] == 0x85 or data[at + 1] == 0xA0))
    if at + 3 > stop or byte < 0xE1 or byte > 0xE3:
        return np.int64(0)
    code = np.int64(byte) << 16 | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2])
    is_space = code == 0xE19A80 or 0xE28080 <= code <= 0xE2808A or code == 0xE280A8 or code == 0xE280A9 or code == 0xE280AF
    return np.int64(3 * (is_space or code == 0xE2819F or code == 0xE38080))


@kernel
def strip_spans(offsets: Int64s, data: UInt8s, starts: Int64sOut, stops: Int64sOut) -> None:
    """The spans of texts without the white space around them, as `str.strip` has them; of white space alone an empty span."""
    for i in range(len(offsets) - 1):
        start, stop = offsets[i], offsets[i + 1]
        size = _space_bytes(data, start, stop)
        while size:
            start += size
            size = _space_bytes(data, start, stop)
        size = np.int64(start < stop)
        while size:
            last = stop - 1
            while last > start and data[last] & 0xC0 == 0x80:
                last -= 1
            size = _space_bytes(data, last, stop)
            stop -= size
        starts[i], stops[i] = start, stop
