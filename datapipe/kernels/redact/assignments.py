"""Values behind names of secrets: `DB_PASSWORD=…`, `"api_key": "…"`, `<token>…</token>`, `Authorization: Bearer …`.

    hits of names  ->  the sign behind the name  ->  a value (`values.py`)  ->  drawn by chance (`randomness.py`)

About 300 bytes are read around a name, and at most 4,096 of a value, so the cost is linear. A name may end in digits, a
quote and a bracket. A type (`: str`), `value` in a list of pairs (`"name": "TOKEN", "value": "…"`) and the scheme of a
header may stand before the value. A value has the entropy of the option and the evidence of the rule.
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import starts_with
from datapipe.kernels.redact.ascii import DIGIT, LETTER, QUOTES, TOKEN, is_in
from datapipe.kernels.redact.keywords import Hits
from datapipe.kernels.redact.randomness import BITS, has_digits, is_hexadecimal
from datapipe.kernels.redact.spans import SpansOut
from datapipe.kernels.redact.values import (
    after_blanks,
    element_stop,
    line_stop,
    num_base64,
    opening,
    quoted_stop,
    seems_secret,
    word_stop,
)
from datapipe.kernels.types import Int32s, Int64Matrix, Int64s, Int64sOut, UInt8s, UInt64s, input_record

_MAX_NAME, _MAX_TYPE, _MAX_LINK, _MAX_SCHEME = 64, 24, 40, 12
_UUID_BYTES, _KEY_BYTES, _LONG_KEY_BYTES = 36, 40, 86
_EQUALS, _COLON, _GREATER, _SPACE, _DOT, _DOLLAR, _OPEN, _CLOSE, _COMMA, _BRACKET, _SQUARE, _AND = (
    ord(sign) for sign in "=:> .$(),][&"
)
_BACKSLASH, _SEMICOLON, _HASH, _SLASH, _STAR, _TILDE, _NEWLINE, _QUESTION, _STROKE, _DASH, _UNDERSCORE = (
    ord(sign) for sign in "\\;#/*~\n?|-_"
)
_NO_BREAK = 0x7F
_VALUE, _LOGIN = (np.frombuffer(word, np.uint8) for word in (b"value", b"login"))
_IS = np.frombuffer(b"is ", np.uint8)
_LEADING = (_DASH, _HASH, _SEMICOLON, _SLASH, _STAR, _DOLLAR, _COLON, _GREATER)
"""Signs before a name that begins a line: of a list, a comment, a prompt, `$env:`."""
_NONE, _ANY, _QUOTED, _ELEMENT, _BARE, _CELL = range(6)
"""What value may follow a name: none, any, one in quotes, the text of an element, any but with more evidence, a cell."""
_BARE_BITS = 10


class Names(NamedTuple):
    # of_keyword, lengths: (num_keywords,), the rule of a keyword, or -1, and its bytes
    of_keyword: Int32s
    lengths: Int32s
    # (num_rules, 9): kind; least evidence in quotes and without (64ths of a bit); least length;
    # whether the name is a whole word; whether it is a header, before any scheme; whether it is
    # weak: no UUID, and alone no hash is its value; where its words in `unless` start and stop
    facts: Int64Matrix
    key_kinds: Int64s  # (2,), the kinds of values of 40 letters of base64, and of 86 with `==`
    # unless, unless_masks: words before a name that make it none, as `suffixes` packs them
    unless: UInt64s
    unless_masks: UInt64s
    # placeholders, masks, schemes, scheme_masks: the words of `is_placeholder`, and words before a value
    placeholders: UInt64s
    masks: UInt64s
    schemes: UInt64s
    scheme_masks: UInt64s


_KIND, _IN_QUOTES, _PLAINLY, _LENGTH, _IS_WORD, _IS_HEADER, _IS_WEAK, _FROM, _TO = range(9)


def compiled_names(
    of_keyword: np.ndarray, lengths: np.ndarray, facts: np.ndarray, key_kinds: np.ndarray, *words: tuple[np.ndarray, np.ndarray]
) -> Names:
    """The table of names; `words` are those of `unless`, the placeholders and the schemes."""
    return input_record(Names, (of_keyword, lengths, facts, key_kinds, *(array for pair in words for array in pair)))


@inline
def _ends_in(data, low, stop, words, masks, first, last) -> Any:
    """Whether the letters and digits before `stop` end in a word of a range, `_`, `-`, `.` and spaces ignored."""
    number, shift, j = np.uint64(0), np.uint64(0), stop
    while j > low and shift < np.uint64(64) and (is_in(data[j - 1], TOKEN) or data[j - 1] == _DOT or data[j - 1] == _SPACE):
        if is_in(data[j - 1], LETTER | DIGIT):
            number |= np.uint64(data[j - 1] | 0x20) << shift
            shift += np.uint64(8)
        j -= 1
    for k in range(first, last):
        if number & masks[k] == words[k]:
            return True
    return False


@inline
def _name_stop(data, begin, start, stop, end, is_word) -> Any:
    """The stop of the name whose keyword is [start, stop), digits included; -1 where it goes on or is part of another word."""
    j = stop + (stop + 1 < end and data[stop] == _UNDERSCORE and is_in(data[stop + 1], DIGIT))
    while j < end and is_in(data[j], DIGIT):
        j += 1
    if j < end and (is_in(data[j], TOKEN) or data[j] > _NO_BREAK):
        return np.int64(-1)
    if is_word and start > begin:
        before = data[start - 1]
        is_hump = is_in(before, LETTER | DIGIT) and before > 0x60 and data[start] < 0x60
        if (is_in(before, LETTER | DIGIT) and not is_hump) or before > _NO_BREAK:
            return np.int64(-1)
    return np.int64(j)


@inline
def _is_other(data, begin, start, stop, end, rule, names) -> Any:
    """Whether words before a name make it another thing: `next_token`, `public_key`, or a type in quotes, "AWS::ApiKey"."""
    if _ends_in(data, max(begin, start - 20), start, names.unless, names.unless_masks, rule[_FROM], rule[_TO]):
        return True
    if stop < end and is_in(data[stop], QUOTES):
        j, low = start, max(begin + 1, start - _MAX_NAME)
        while j > low and is_in(data[j - 1], TOKEN):
            j -= 1
        return j > low and data[j - 1] == _COLON and data[j - 2] == _COLON
    return False


@inline
def _after_link(data, start, end) -> Any:
    """Behind `", "value": ` or `value=`, which joins a name and its value in a list of pairs; -1 where it is not there."""
    j, limit = start, min(end, start + _MAX_LINK)
    while j < limit and (data[j] <= _SPACE or data[j] == _COMMA or is_in(data[j], QUOTES)):
        j += 1
    if j == start or not starts_with(data, j, end - 1, _VALUE, 0x20):
        return np.int64(-1)
    j += len(_VALUE)
    j += is_in(data[j], QUOTES)
    j = after_blanks(data, j, end)
    return np.int64(j + 1) if j < end and (data[j] == _COLON or data[j] == _EQUALS) else np.int64(-1)


@inline
def _after_type(data, start, end) -> Any:
    """Behind a type and `=`, as in `: str = `; -1 where they are not there."""
    j = after_blanks(data, start, end)
    limit, low = min(end, j + _MAX_TYPE), j
    while j < limit and (
        is_in(data[j], TOKEN) or data[j] == _SQUARE or data[j] == _BRACKET or data[j] == _DOT or data[j] == _AND
    ):
        j += 1
    if j == low:
        return np.int64(-1)
    j = after_blanks(data, j, end)
    is_sign = j + 1 < end and data[j] == _EQUALS and data[j + 1] != _EQUALS and data[j - 1] <= _SPACE
    return np.int64(j + 1) if is_sign else np.int64(-1)


@inline
def _after_equals(data, j, end) -> Any:
    """Behind `=` or `=>`; -1 for a comparison."""
    following = data[j + 1] if j + 1 < end else np.uint8(_SPACE)
    if following == _EQUALS or following == _TILDE:
        return np.int64(-1)
    return np.int64(j + 1 + (following == _GREATER))


@inline
def _after_stars(data, start, end) -> Any:
    """Behind two stars, which end bold letters in Markdown, or `start`."""
    return start + 2 if start + 2 < end and data[start] == _STAR and data[start + 1] == _STAR else start


@inline
def _is_option(data, start) -> Any:
    j, low = start, max(1, start - _MAX_NAME)
    while j > low and is_in(data[j - 1], TOKEN):
        j -= 1
    return data[j] == _DASH


@inline
def _follows_login(data, start) -> Any:
    """Whether `login NAME` is before a name, as in a netrc file: on its line, or on the line before."""
    j, low = start - 1, max(len(_LOGIN), start - _MAX_NAME)
    while j >= low and data[j] <= _SPACE:
        j -= 1
    if j == start - 1:
        return False
    while j >= low and data[j] > _SPACE:
        j -= 1
    last = j
    while j >= low and data[j] <= _SPACE:
        j -= 1
    return j >= low and j != last and starts_with(data, j + 1 - len(_LOGIN), j + 1, _LOGIN, 0)


@inline
def _after_sign(data, name_start, stop, end, is_header) -> Any:
    """Behind the sign that follows a name, and what value may stand there."""
    j = stop + (stop + 1 < end and data[stop] == _BACKSLASH)
    is_quoted = j < end and is_in(data[j], QUOTES)
    j += is_quoted
    j += j < end and (data[j] == _BRACKET or (is_quoted and data[j] == _CLOSE))
    j = np.int64(_after_stars(data, j, end))
    first = j
    j = after_blanks(data, j, end)
    if j + 1 >= end:
        return j, _NONE
    sign, following = data[j], data[j + 1]
    if sign == _EQUALS:
        after = _after_equals(data, j, end)
        return after, (_ANY if after > 0 else _NONE)
    if sign == _COLON:
        if following == _EQUALS or (following == _COLON and j + 2 < end and data[j + 2] == _EQUALS):
            return j + 2 + (following == _COLON), _ANY
        after = _after_type(data, j + 1, end)
        return (after if after > 0 else np.int64(j + 1)), (_ANY if following != _COLON else _NONE)
    if (sign == _QUESTION or sign == _STROKE) and (
        following == _EQUALS or (following == sign and data[min(j + 2, end - 1)] == _EQUALS)
    ):
        return j + 2 + (following == sign), _ANY
    if (sign == _STROKE or sign == _QUESTION) and following == sign:
        return np.int64(j + 2), _QUOTED
    if sign == _STROKE:
        return np.int64(j + 1), _CELL
    if sign == _GREATER and j == first:
        return j + 1, _ELEMENT
    after = _after_link(data, first, end)
    if after > 0:
        return after, _ANY
    if (sign == _COMMA and is_quoted) or (sign == _OPEN and j == first):
        return j + 1, _QUOTED
    if j > first and (is_header or _is_option(data, name_start) or _follows_login(data, name_start)):
        return j, _ANY
    if j > first:
        after = _after_type(data, j, end)
        return (after, _ANY) if after > 0 else (np.int64(j), _BARE)
    return j, _NONE


@inline
def _after_scheme(data, start, end, is_header, schemes, masks) -> Any:
    """The start of the value after a scheme such as Bearer or Basic and one space; behind a header any word counts."""
    j, limit = start, min(end, start + _MAX_SCHEME)
    while j < limit and (is_in(data[j], LETTER) or data[j] == _DASH):
        j += 1
    if j == start or j >= end or data[j] != _SPACE:
        return start
    return j + 1 if is_header or _ends_in(data, start, j, schemes, masks, 0, len(schemes)) else start


@inline
def _begins_line(data, begin, start) -> Any:
    """Whether a name begins its line, behind a word such as `export` or signs of a comment at most."""
    j, low = start, max(begin, start - _MAX_NAME)
    while j > low and (is_in(data[j - 1], TOKEN) or data[j - 1] == _DOT):
        j -= 1
    num_blanks = 0
    while (
        j > low and data[j - 1] != _NEWLINE and (data[j - 1] <= _SPACE or is_in(data[j - 1], LETTER) or data[j - 1] in _LEADING)
    ):
        num_blanks += data[j - 1] <= _SPACE and j > low + 1 and data[j - 2] > _SPACE
        j -= 1
    return (j == begin or (j > low and data[j - 1] == _NEWLINE)) and num_blanks < 3


@inline
def _secret_stop(data, start, stop, evidence, rule, millibits, names, counts) -> Any:
    """The stop of the value [start, stop) if it looks like a secret, else its start."""
    is_secret = seems_secret(data, start, stop, rule[_LENGTH], evidence, millibits, names.placeholders, names.masks, counts)
    return stop if is_secret else start


@inline
def _assigned(data, begin, start, stop, end, rule, millibits, names, counts) -> Any:
    """Start and stop of the secret behind the name [start, stop); start equals stop where there is none."""
    is_header, plainly = rule[_IS_HEADER] != 0, rule[_PLAINLY]
    after, wants = _after_sign(data, start, stop, end, is_header)
    if wants == _NONE:
        return start, start
    first = after_blanks(data, _after_stars(data, after, end), end)
    if wants == _ELEMENT:
        return first, _secret_stop(data, first, element_stop(data, first, end), plainly, rule, millibits, names, counts)
    first, quote, is_escaped = opening(data, first, end)
    low = _after_scheme(data, first, end, is_header, names.schemes, names.scheme_masks)
    if quote != 0:
        last = quoted_stop(data, low, end, quote, is_escaped)
        return low, _secret_stop(data, low, last, rule[_IN_QUOTES], rule, millibits, names, counts)
    if wants == _QUOTED or (wants >= _BARE and rule[_IS_WORD] != 0):
        return start, start
    if wants == _CELL:
        last = word_stop(data, low, end)
        j = after_blanks(data, last, end)
        if low >= last or j >= end or (data[j] != _STROKE and data[j] != _NEWLINE):
            return low, low
        return low, _secret_stop(data, low, last, plainly, rule, millibits, names, counts)
    if wants == _BARE:
        has_is = starts_with(data, low, end, _IS, 0)
        low += len(_IS) * has_is
        last = word_stop(data, low, end)
        if not has_digits(data, low, last):
            return low, low
        evidence = plainly + (0 if has_is else _BARE_BITS * BITS)
        return low, _secret_stop(data, low, last, evidence, rule, millibits, names, counts)
    before = data[start - 1] if start > begin else np.uint8(_SPACE)
    if before != _QUESTION and before != _AND and _begins_line(data, begin, start):
        last = _secret_stop(data, low, line_stop(data, low, end), plainly, rule, millibits, names, counts)
        if last > low:
            return low, last
    return low, _secret_stop(data, low, word_stop(data, low, end), plainly, rule, millibits, names, counts)


@kernel
def match_names(
    offsets: Int64s,
    data: UInt8s,
    hits: Hits,
    names: Names,
    wanted: int,  # the kinds to find, a bit each
    millibits: int,  # least entropy, for values of 32 different characters
    counts: Int64sOut,  # (256,), scratch
    out: SpansOut,
) -> int:
    """Finds disjoint values behind hits of names, in text order; returns their number."""
    num_spans, document, floor = 0, 0, offsets[0]
    positions, numbers, key_kinds = hits.positions, hits.numbers, names.key_kinds
    of_keyword, lengths, facts = names.of_keyword, names.lengths, names.facts
    for hit in range(len(positions)):
        position, number = positions[hit], numbers[hit]
        if of_keyword[number] < 0 or position < floor:
            continue
        while position >= offsets[document + 1]:
            document += 1
        begin, end, is_word = offsets[document], offsets[document + 1], facts[of_keyword[number], _IS_WORD] != 0
        stop = _name_stop(data, begin, position, position + lengths[number], end, is_word)
        if stop < 0:
            continue
        rule = facts[of_keyword[number]]
        if _is_other(data, begin, position, stop, end, rule, names):
            continue
        first, last = _assigned(data, begin, position, stop, end, rule, millibits, names, counts)
        if first < last:
            is_uuid = last - first == _UUID_BYTES and data[first + 8] == _DASH
            if rule[_IS_WEAK] != 0 and is_uuid and is_hexadecimal(data, first, last):
                continue
            kind, num_letters = rule[_KIND], num_base64(data, first, last)
            if num_letters == last - first == _KEY_BYTES and not is_hexadecimal(data, first, last):
                kind = key_kinds[0]
            elif num_letters == _LONG_KEY_BYTES and num_letters + 2 == last - first and data[last - 1] == _EQUALS:
                kind = key_kinds[1]
            if wanted >> kind & 1:
                out.starts[num_spans], out.stops[num_spans], out.kinds[num_spans] = first, last, kind
                num_spans += 1
                floor = last
    return int(num_spans)
