"""Where a value ends, by what stands around it, and whether it was drawn by chance.

    in quotes   any characters of ASCII but white space; `\\"` may be inside
    line        all to the end of the line
    element     all up to `</`
    word        letters, digits and the signs of keys; a closing sign or white space follows

Code is no secret: variables, calls, templates, patterns, and what lies between two strings. Slugs,
names of short parts, need more evidence than other values.
"""

from typing import Any

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.redact.ascii import BASE64, CLOSING, DIGIT, HEX, LETTER, PARTING, PLAIN, QUOTES, TOKEN, is_in
from datapipe.kernels.redact.randomness import BITS, best_evidence, has_digits, has_entropy, has_letters, is_placeholder

MAX_VALUE_BYTES, MAX_BLANKS = 4_096, 16
_MAX_PARAMETER, _MIN_PART, _SLUG_BITS = 24, 8, 14
_TICK, _EQUALS, _COLON, _GREATER, _LESS, _SPACE, _TAB, _DOT, _DOLLAR, _OPEN, _CLOSE, _PLUS = (
    ord(sign) for sign in "`=:>< \t.$()+"
)
_COMMA, _BRACKET, _SQUARE, _AND, _BACKSLASH, _SEMICOLON, _HASH, _BRACE, _END_BRACE, _SLASH, _STAR, _NEWLINE = (
    ord(sign) for sign in ",][&\\;#{}/*\n"
)
_RETURN, _PERCENT, _AT, _BANG, _CARET, _QUESTION, _ZERO, _X = (ord(sign) for sign in "\r%@!^?0x")
_MAX_NUMBER, _MAX_SUFFIX, _MAX_EXTENSION = 42, 3, 4
_NO_BREAK = 0x7F


@inline
def after_blanks(data, start, end) -> Any:
    """The first byte from `start` on that is no space or tab; 16 are read."""
    limit = min(end, start + MAX_BLANKS)
    while start < limit and (data[start] == _SPACE or data[start] == _TAB):
        start += 1
    return start


@inline
def opening(data, start, end) -> Any:
    """Behind the quote that opens a value, the quote, and whether a backslash is before it; no
    quote: 0. A letter may be before the quote, as in b"…" and @"…", and three quotes are one."""
    j = start
    if j + 1 < end and is_in(data[j + 1], QUOTES) and (is_in(data[j], LETTER) or data[j] == _AT):
        j += 1
    is_escaped = j + 1 < end and data[j] == _BACKSLASH
    j += is_escaped
    if j >= end or not (is_in(data[j], QUOTES) or data[j] == _TICK):
        return start, np.uint8(0), False
    quote = data[j]
    if j + 2 < end and data[j + 1] == quote and data[j + 2] == quote:
        j += 2
    return j + 1, quote, is_escaped


@inline
def quoted_stop(data, start, end, quote, is_escaped) -> Any:
    """The stop of a value in quotes; `start` where the quote is not closed, or white space is before it."""
    j, limit = start, min(end, start + MAX_VALUE_BYTES + 1)
    while j < limit and _SPACE < data[j] < _NO_BREAK and data[j] != quote:
        if data[j] == _BACKSLASH:
            if is_escaped and j + 1 < limit and data[j + 1] == quote:
                return j
            j += 1
            if j < limit and not _SPACE < data[j] < _NO_BREAK:
                return start
        j += 1
    return j if j < limit and data[j] == quote and not is_escaped else start


@inline
def element_stop(data, start, end) -> Any:
    """The stop of the text of an element of XML; `start` where it holds white space or more than text."""
    j, limit = start, min(end, start + MAX_VALUE_BYTES + 1)
    while j < limit and _SPACE < data[j] < _NO_BREAK and data[j] != _LESS:
        j += 1
    return j if j + 1 < limit and data[j] == _LESS and data[j + 1] == _SLASH else start


@inline
def line_stop(data, start, end) -> Any:
    """The stop of a value that ends its line, a comment or a sign that ends a statement aside; `start` where more follows."""
    j, limit = start, min(end, start + MAX_VALUE_BYTES + 1)
    while j < limit and _SPACE < data[j] < _NO_BREAK:
        j += 1
    after = after_blanks(data, j, end)
    if j == limit < end or (after < end and data[after] != _NEWLINE and data[after] != _RETURN and data[after] != _HASH):
        return start
    if j > start and (data[j - 1] == _SEMICOLON or data[j - 1] == _COMMA):
        j -= 1
    return j


@inline
def _is_plain(byte) -> Any:
    """Whether a byte may be in a value that ends with a word."""
    return is_in(byte, PLAIN) or byte in (_DOT, _BANG, _AT, _HASH, _PERCENT, _CARET, _STAR, _DOLLAR, _QUESTION)


@inline
def _separates(data, position, end) -> Any:
    """Whether a sign ends a value: one before white space or another sign, a bracket before no letter or digit, and `&`, `,`
    and `;` before a name, as in `&name=`; `&` also in an entity, `&amp;`, and before the last word."""
    sign, j, limit = data[position], position + 1, min(end, position + _MAX_PARAMETER)
    if sign == _CLOSE or sign == _BRACKET or sign == _END_BRACE:
        return j == end or not is_in(data[j], LETTER | DIGIT)
    while j < limit and (is_in(data[j], TOKEN) or data[j] == _DOT):
        j += 1
    if j == end or data[j] == _EQUALS:
        return True
    if sign == _AND:
        return data[j] == _SEMICOLON or data[j] <= _SPACE or is_in(data[j], QUOTES) or j == limit
    return data[j] == _COLON or (j == position + 1 and is_in(data[j], CLOSING))


@inline
def word_stop(data, start, end) -> Any:
    """The stop of a value of letters, digits and signs of keys; `start` where it goes on with other signs."""
    j, limit = start, min(end, start + MAX_VALUE_BYTES + 1)
    while j < limit and (_is_plain(data[j]) or (is_in(data[j], PARTING) and not _separates(data, j, end))):
        j += 1
    if j == limit < end or (j < end and not is_in(data[j], CLOSING)):
        return start
    while j > start and (data[j - 1] == _DOT or data[j - 1] == _BANG or data[j - 1] == _QUESTION):
        j -= 1
    return j


@inline
def _is_template(data, start, stop) -> Any:
    """Whether a value has a field to fill in: `${…}`, `{{…}}`, `#{…}`, `%{…}`, `<%…`."""
    is_open = False
    for j in range(start + 1, stop):
        before = data[j - 1]
        if data[j] == _BRACE and (before == _DOLLAR or before == _BRACE or before == _HASH or before == _PERCENT):
            is_open = True
        if (is_open and data[j] == _END_BRACE) or (before == _LESS and data[j] == _PERCENT):
            return True
    return False


@inline
def _is_code(data, start, stop) -> Any:
    """Whether a value is a variable, a template, a call, or code between two strings."""
    first, last = data[start], data[stop - 1]
    if _is_template(data, start, stop) or _is_number(data, start, stop) or _is_file(data, start, stop):
        return True
    if first == _DOLLAR and (is_in(data[start + 1], TOKEN) or data[start + 1] == _BRACE or data[start + 1] == _OPEN):
        return stop - start < 20 or not has_digits(data, start, stop) or data[start + 1] == _BRACE or data[start + 1] == _OPEN
    if (
        (first == _LESS and last == _GREATER)
        or (first == _BRACE and last == _END_BRACE)
        or (first == _SQUARE and last == _BRACKET)
    ):
        return True
    if (first == _CLOSE or first == _PLUS or first == _COMMA or first == _DOT) and (
        last == _OPEN or last == _PLUS or last == _COMMA or last == _DOT
    ):
        return True
    j = start
    while j < stop and (is_in(data[j], TOKEN) or data[j] == _DOT or data[j] == _COLON or data[j] == _AND or data[j] == _STAR):
        j += 1
    is_call = start < j < stop and (data[j] == _OPEN or data[j] == _SQUARE)
    return is_call and (last in (_CLOSE, _BRACKET, _SEMICOLON, _COLON, _COMMA, _BRACE, _OPEN) or data[stop - 2] == _CLOSE)


@inline
def _is_number(data, start, stop) -> Any:
    """Whether a value is a constant such as 0x9E3779B97F4A7C15ULL, or an address of 40 digits: 64 digits are a key."""
    if data[start] != _ZERO or data[start + 1] | 0x20 != _X:
        return False
    j = start + 2
    while j < stop and is_in(data[j], HEX):
        j += 1
    return j - start <= _MAX_NUMBER and stop - j <= _MAX_SUFFIX


@inline
def _is_file(data, start, stop) -> Any:
    """Whether a value is a path with the extension of a file: backups/2024/db.tar.gz."""
    j = stop - 1
    while j > start and stop - j <= _MAX_EXTENSION and is_in(data[j], LETTER):
        j -= 1
    if not stop - 1 - j >= 2 or data[j] != _DOT:
        return False
    while j > start and (is_in(data[j], TOKEN) or data[j] == _DOT):
        j -= 1
    return data[j] == _SLASH


@inline
def _reserve(data, start, stop) -> Any:
    """Evidence that a value needs beyond its rule's, in 64ths of a bit: parts of at most seven letters and digits, in one
    case, joined by `-`, `_`, `.`, `/` and `=`, and joined letters without a digit are no secrets."""
    num_parts, longest, part, has_other = 1, 0, start, False
    has_small, has_capital, has_digit = False, False, False
    for j in range(start, stop):
        is_letter = is_in(data[j], LETTER)
        has_small |= is_letter and data[j] > 0x60
        has_capital |= is_letter and data[j] < 0x60
        has_digit |= is_in(data[j], DIGIT)
        if not is_letter and not is_in(data[j], DIGIT):
            joins = data[j] == _EQUALS and j + 1 < stop and is_in(data[j + 1], LETTER)
            has_other |= not (joins or is_in(data[j], TOKEN) or data[j] == _DOT or data[j] == _SLASH)
            longest, part = max(longest, j - part), j + 1
            num_parts += 1
    longest = max(longest, stop - part)
    if num_parts == 1 or has_other:
        return 0
    is_slug = longest < _MIN_PART and not (has_small and has_capital)
    return _SLUG_BITS * BITS if is_slug or not has_digit else 0


@inline
def _has_words(data, start, stop) -> Any:
    """Whether two of five characters are letters and digits or more: patterns and expressions have fewer."""
    number = 0
    for j in range(start, stop):
        number += is_in(data[j], LETTER | DIGIT)
    return 5 * number >= 2 * (stop - start)


@inline
def seems_secret(data, start, stop, length, evidence, millibits, placeholders, masks, counts) -> Any:
    """Whether a value was drawn by chance."""
    if not length <= stop - start <= MAX_VALUE_BYTES or not has_letters(data, start, stop):
        return False
    if not has_entropy(data, start, stop, millibits, counts) or not _has_words(data, start, stop):
        return False
    if best_evidence(data, start, stop) < evidence + _reserve(data, start, stop):
        return False
    return not _is_code(data, start, stop) and not is_placeholder(data, start, stop, placeholders, masks)


@inline
def num_base64(data, start, stop) -> Any:
    j = start
    while j < stop and is_in(data[j], BASE64):
        j += 1
    return j - start
