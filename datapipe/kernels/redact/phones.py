"""Finds candidates for phone numbers around a group of digits by their form alone; `phonenumbers` decides about them.

A candidate has 7 to 15 digits, with at most two of ` -./()` between two digits and an optional extension after them, and

- a `+` before it: an international number (PHONE); or
- a word such as tel, телефон, 電話 or fax before it (ANNOUNCED, `kernels/redact/phone_words.py`); or
- the shape of a phone number: (415) 555-2671, 415-555-2671 and 415.555.2671 in America, and elsewhere a trunk prefix and
  groups: 0171 2345678, (020) 7946 0958, 01 23 45 67 89, or the code of a country: 0044 20 7946 0958 (NATIONAL).

A candidate reads about 70 bytes ahead and 100 back at most.
"""

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.arrays import starts_with
from datapipe.kernels.redact.ascii import (
    DIGIT,
    SEPARATOR,
    group_stop,
    is_clear_after,
    is_clear_before,
    is_in,
)
from datapipe.kernels.redact.phone_words import follows_phone_word
from datapipe.kernels.redact.pii import PHONE

NATIONAL, ANNOUNCED = 9, 10
"""Kinds of candidates without a `+`: known by their shape alone, and behind a keyword. With a `+` they are PHONE."""
AMERICAN_SHAPES, TRUNK_SHAPES = 16, 32  # bits of `wanted` in `find_identifiers`
_SPACE, _DASH, _DOT, _PLUS, _OPEN, _CLOSE, _BRACKET, _ZERO, _ONE, _TWO, _NINE = (ord(sign) for sign in " -.+()]0129")
_E, _X, _T = (ord(sign) for sign in "ext")
_STAND_IN = np.frombuffer(b"1-555-555-01", np.uint8)
"""The stand-in of `kernels/redact/stand_ins.py` behind its `+`, but for two digits."""
_FULL_PHONE_DIGITS = 10
_MAX_PHONE_DIGITS = 15


@inline
def _begins_with_trunk(data, j, end):
    return data[j] == _ZERO and j + 1 < end and is_in(data[j + 1], DIGIT) and data[j + 1] != _ZERO


@inline
def _phone_stop(data, first, end):
    """The stop of up to 15 digits with at most two separators between two digits, never inside a group; `first` below 7 digits.
    After ten digits a parenthesis ends the number; with a trunk prefix so does another group with one."""
    stop, border, num_digits, num_before = first, first, 0, 0
    j, gap = first, 0
    while j < end and num_digits < _MAX_PHONE_DIGITS:
        if is_in(data[j], DIGIT):
            is_another = gap > 0 and data[first] == _ZERO and _begins_with_trunk(data, j, end)
            if is_another and num_digits >= _FULL_PHONE_DIGITS + 2 * (data[first + 1] == _ZERO):
                break
            num_digits += 1
            stop, gap = j + 1, 0
        elif is_in(data[j], SEPARATOR) and gap < 2 and (data[j] != _OPEN or num_digits < _FULL_PHONE_DIGITS):
            if gap == 0:
                border, num_before = stop, num_digits
            gap += 1
        else:
            break
        j += 1
    if stop < end and is_in(data[stop], DIGIT):
        stop, num_digits = border, num_before
    return stop if num_digits >= 7 else first


@inline
def _extension_stop(data, stop, end):
    """The stop of an extension after a number, such as x123 or ` ext. 12`; `stop` where there is none."""
    j = stop + 1 if stop < end and data[stop] == _SPACE else stop
    if j + 2 < end and data[j] == _E and data[j + 1] == _X and data[j + 2] == _T:
        j += 3
        if j < end and data[j] == _DOT:
            j += 1
    elif j < end and data[j] == _X:
        j += 1
    else:
        return stop
    if j < end and data[j] == _SPACE:
        j += 1
    after = group_stop(data, j, end, 6)
    return after if 1 <= after - j <= 6 else stop


@inline
def _american_stop(data, start, end):
    """The stop of (415) 555-2671, 415-555-2671 or 415.555.2671, with an optional 1 before it; `start` where there is none."""
    j = start
    if data[j] == _ONE and j + 1 < end and (data[j + 1] == _DASH or data[j + 1] == _DOT or data[j + 1] == _SPACE):
        j += 2
    is_enclosed = j < end and data[j] == _OPEN
    j += is_enclosed
    area = group_stop(data, j, end, 3)
    if area - j != 3 or data[j] < _TWO or data[j + 1] == _NINE or area == end:
        return start
    sign, local = data[area], area + 1
    if is_enclosed:
        if sign != _CLOSE:
            return start
        local += local < end and data[local] == _SPACE
    elif sign != _DASH and sign != _DOT:
        return start
    middle = group_stop(data, local, end, 3)
    if middle - local != 3 or data[local] < _TWO or middle == end:
        return start
    if is_enclosed and data[middle] not in (_DASH, _DOT, _SPACE):
        return start
    if not is_enclosed and data[middle] != sign:
        return start
    stop = group_stop(data, middle + 1, end, 4)
    return stop if stop - middle == 5 else start


@inline
def _has_exit_shape(data, first, stop):
    """Whether digits are written like a number with 00 and the code of its country: 0044 20 7946 0958, 00 49-171 2345678."""
    code = first + 2 + (data[first + 2] == _SPACE)
    area, num_digits = group_stop(data, first, stop, 6) - first, 0
    if not is_in(data[code], DIGIT) or data[code] == _ZERO or area > 5 or first + area == stop:
        return False
    for j in range(first, stop):
        num_digits += is_in(data[j], DIGIT)
        if not is_in(data[j], DIGIT) and data[j] != _SPACE and data[j] != _DASH:
            return False
    return 11 <= num_digits <= _MAX_PHONE_DIGITS


@inline
def _has_trunk_shape(data, first, stop):
    """Whether digits are written like a number with its trunk prefix: 0171 2345678, 020-7946 0958, or 01 23 45 67 89."""
    if data[first] != _ZERO:
        return False
    if data[first + 1] == _ZERO:
        return _has_exit_shape(data, first, stop)
    area, num_digits, num_pairs = group_stop(data, first, stop, 6) - first, 0, 0
    for j in range(first, stop):
        num_digits += is_in(data[j], DIGIT)
        if (
            not is_in(data[j], DIGIT)
            and data[j] != _SPACE
            and data[j] != _DASH
            and not (data[j] == _CLOSE and j == first + area)
        ):
            return False
        num_pairs += is_in(data[j], DIGIT) == ((j - first) % 3 != 2)
    if area == 2:
        return stop - first == 14 and num_pairs == 14
    return 3 <= area <= 5 and 10 <= num_digits <= 12


@inline
def _national_stop(data, begin, start, first, end, wanted):
    """Stop and kind of a number without `+` that has the shape of one or follows a keyword; stop is `first` for others."""
    stop = _american_stop(data, start, end) if wanted & AMERICAN_SHAPES else start
    is_american = stop > start and is_clear_after(data, _extension_stop(data, stop, end), end)
    stop = stop if is_american else _phone_stop(data, first, end)
    if stop == first:
        return first, NATIONAL
    if follows_phone_word(data, begin, start):
        return stop, ANNOUNCED
    return (stop if is_american or (wanted & TRUNK_SHAPES and _has_trunk_shape(data, first, stop)) else first), NATIONAL


@inline
def find_phone(data, begin, floor, first, end, wanted):
    """Start, stop and kind of the candidate around the first group of digits; start equals stop where there is none."""
    start, before = first, data[first - 1] if first > floor else np.uint8(0)
    if before == _PLUS or before == _OPEN:
        start -= 1
    if not is_clear_before(data, floor, start):
        return first, first, PHONE
    if before == _PLUS:
        kind = PHONE
        after = first + len(_STAND_IN) + 2
        if after <= end and starts_with(data, first, end, _STAND_IN, 0) and group_stop(data, after - 2, end, 3) == after:
            return after, after, PHONE
        is_sum = start > begin and (data[start - 1] == _CLOSE or data[start - 1] == _BRACKET)
        stop = first if is_sum else _phone_stop(data, first, end)
    else:
        stop, kind = _national_stop(data, begin, start, first, end, wanted)
    extended = _extension_stop(data, stop, end)
    if stop > first and is_clear_after(data, extended, end):
        return start, extended, kind
    return first, first, kind
