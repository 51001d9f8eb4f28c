"""JSON objects as `json.dumps` of Python writes what `json.loads` reads: its spaces, its escapes, characters in UTF-8.

    {"a":[1,"\\u00e9\\/"]}   ─▶   {"a": [1, "é/"]}

An object that Python may write in another way needs a closer look: with a number in another form than its own, such as 1e5 or
0.10, a key twice, an escape of surrogates or characters for private use, an error, many keys or levels.
"""

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.text.json_strings import write_escape
from datapipe.kernels.text.jsonlines import code_unit, skip_space
from datapipe.kernels.text.unicode_classes import write_character

_MOST_KEYS, _MOST_LEVELS = 64, 32
ROOM = 2 * _MOST_KEYS + _MOST_LEVELS
"""The size of the array `known` of `write_object`."""

_MOST_DIGITS = 15  # of a float that is read and written as the same number: DBL_DIG of C
_INTEGER_DIGITS = 1000  # Python takes 4,300


@inline
def escape_end(data, at, stop):
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
def _write_string(data, at, stop, out, end):
    """Writes the string at `at`; returns its end, or -1, and the new end of `out`."""
    if at >= stop or data[at] != 34:
        return -1, end
    out[end] = 34
    at, end = at + 1, end + 1
    while at < stop and data[at] >= 32:
        byte = data[at]
        if byte != 92:
            out[end] = byte
            at, end = at + 1, end + 1
            if byte == 34:
                return at, end
            continue
        behind = escape_end(data, at + 1, stop)
        if behind < 0:
            return -1, end
        letter = data[at + 1]
        code = code_unit(data, at + 2) if letter == 117 else np.int64(47)
        if letter != 117 and letter != 47:
            out[end], out[end + 1] = 92, letter
            end += 2
        elif code < 32 or code == 34 or code == 92:
            end = write_escape(np.uint8(code), out, end)
        else:
            end = write_character(code, out, end)
        at = behind
    return -1, end


@inline
def _digits_end(data, at, stop):
    while at < stop and 48 <= data[at] <= 57:
        at += 1
    return at


@inline
def _number_end(data, at, stop):
    """The end of the number at `at` if Python writes it as it is; else -1."""
    first = at + np.int64(data[at] == 45)
    point = _digits_end(data, first, stop)
    end, is_zero = point, first < stop and data[first] == 48
    if point < stop and data[point] == 46:
        end = _digits_end(data, point + 1, stop)
        num_zeros = 0
        while point + 1 + num_zeros < end and data[point + 1 + num_zeros] == 48:
            num_zeros += 1
        if end == point + 1 or (data[end - 1] == 48 and end > point + 2) or (is_zero and num_zeros > 3):
            return -1
    elif is_zero and first > at:
        return -1
    has_exponent = end < stop and data[end] | 32 == 101
    is_short = end - first <= (_INTEGER_DIGITS if end == point else _MOST_DIGITS + 1)
    is_plain = point > first and not (is_zero and point > first + 1) and is_short
    return end if is_plain and not has_exponent else -1


@inline
def _write_scalar(data, at, stop, out, end, has_nulls):
    """As `_write_string`, also of a number, true, false and, if it `has_nulls`, null."""
    byte = data[at] if at < stop else np.uint8(0)
    if byte == 34:
        return _write_string(data, at, stop, out, end)
    if byte == 116 or byte == 102 or (byte == 110 and has_nulls):
        word = b"true" if byte == 116 else b"false" if byte == 102 else b"null"
        behind = at + len(word)
        for k in range(len(word)):
            if at + k >= stop or data[at + k] != word[k]:
                return -1, end
    else:
        behind = _number_end(data, at, stop) if byte == 45 or 48 <= byte <= 57 else -1
    for k in range(at, behind):
        out[end] = data[k]
        end += 1
    return behind, end


@inline
def _write_key(data, at, stop, known, first, num_keys, out, end):
    """Writes the key at `at` behind those of its object, from `first` on; returns where its value begins, or -1, and the new
    end of `out`."""
    start = end
    at, end = _write_string(data, at, stop, out, end)
    at = skip_space(data, at, stop) if at >= 0 else stop
    if at >= stop or data[at] != 58 or num_keys == _MOST_KEYS:
        return -1, end
    for number in range(first, num_keys):
        other = known[2 * number]
        if known[2 * number + 1] - other == end - start:
            k = 0
            while k < end - start and out[other + k] == out[start + k]:
                k += 1
            if k == end - start:
                return -1, end
    known[2 * num_keys], known[2 * num_keys + 1] = start, end
    out[end], out[end + 1] = 58, 32
    return at + 1, end + 2


@inline
def write_object(data, at, stop, known, out, end, has_nulls):
    """Writes the object at `at`; returns its end, or -1 for one that needs a closer look, the new end of `out`, and the number
    of its keys, whose spans in `out`, with quotes, begin `known` (`ROOM`,). An object takes at most twice its bytes."""
    num_keys, depth, levels = 0, 0, 2 * _MOST_KEYS
    if at >= stop or data[at] != 123:
        return -1, end, num_keys
    while True:
        byte = data[at] if at < stop else np.uint8(0)
        if byte == 123 or byte == 91:
            if depth == _MOST_LEVELS:
                return -1, end, num_keys
            known[levels + depth] = 2 * num_keys + np.int64(byte == 123)
            out[end] = byte
            at, end, depth = skip_space(data, at + 1, stop), end + 1, depth + 1
            is_next = at < stop and data[at] != byte + 2
        else:
            at, end = _write_scalar(data, at, stop, out, end, has_nulls)
            if at < 0:
                return -1, end, num_keys
            at, is_next = skip_space(data, at, stop), False
        while not is_next:
            is_object = known[levels + depth - 1] & 1
            if at < stop and data[at] == 93 + 32 * is_object:
                out[end] = data[at]
                at, end, depth = at + 1, end + 1, depth - 1
                if depth == 0:
                    return at, end, num_keys
                num_keys, at = known[levels + depth] >> 1, skip_space(data, at, stop)
            elif at < stop and data[at] == 44:
                out[end], out[end + 1] = 44, 32
                at, end, is_next = skip_space(data, at + 1, stop), end + 2, True
            else:
                return -1, end, num_keys
        first = known[levels + depth - 1]
        if first & 1:
            at, end = _write_key(data, at, stop, known, first >> 1, num_keys, out, end)
            if at < 0:
                return -1, end, num_keys
            at, num_keys = skip_space(data, at, stop), num_keys + 1
