"""Finds keys, tokens and passwords in code and configuration in one pass over the bytes.

    bytes  ->  runs of letters, digits, `_` and `-`  ->  a token by its prefix (`tokens.py`) or its form (`shapes.py`)
           ->  each `=`, `:` and `",`                ->  a name that ends like api_key  +  a value that looks random

The cost is linear for any input: a run is read once for each prefix that it begins with, the three runs of a JWT at most three
times. A PEM block is read to the next five dashes. Around `=`, `:` and `",` about 300 bytes are read. Any bytes are safe. Spans
are ASCII except inside a PEM block, which begins and ends with dashes, so a cut never falls inside a character.

A token is free-standing and looks random (`randomness.py`). A value is no name, such as a path or a dotted key. A value in
quotes has letters and digits, and the entropy of the option. A value without quotes also has 20 characters or more that no name
in code has: hexadecimal digits, or capitals and small letters mixed with digits, or a digit among five. White space, a quote or
a closing sign follows it. Hexadecimal values of 32 digits or more need only 2.8 bits a character, since few of them reach 3.5.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.redact.ascii import (
    ASSIGNS,
    BASE64,
    CLOSING,
    DIGIT,
    HEX,
    JOINT,
    LETTER,
    PLAIN,
    QUOTES,
    TOKEN,
    VALUE,
    is_in,
    sets_of,
)
from datapipe.kernels.redact.pii import FoundSpans
from datapipe.kernels.redact.randomness import CAPITALS, DIGITS, SMALL, is_cased, is_name, is_random, sorts_in, suffixes
from datapipe.kernels.redact.shapes import find_shape, jwt_stop, may_be_shape, pem_stop, run_stop, starts_with
from datapipe.kernels.redact.tokens import KINDS, NO_KIND, TOKEN_MILLIBITS, begins_token, find_token
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, UInt8sOut

_AWS, _AZURE, _JWT, _PRIVATE_KEY, ASSIGNMENT = (
    KINDS.index(kind) for kind in ("aws", "azure", "jwt", "private_key", "assignment")
)
_MIN_SPAN_BYTES = 8
_MIN_RUN_BYTES = 10
"""A shorter run begins a token only where a sign joins it to the next: `SG.`, `hooks.slack.com/`."""
_MIN_PLAIN_BYTES, _MIN_HEX_BYTES, _MAX_VALUE_BYTES = 20, 32, 200
_MIN_SIGNATURE_BYTES, _MAX_SIGNATURE_BYTES = 44, 80
"""Of 32 bytes in base64: 43 characters and `=`, of which some are written as `%2B`, `%2F` and `%3D`."""
_SECRET_NAMES = (
    "password passwd pwd passphrase pass secret token apikey accesskey secretkey privatekey authkey accountkey credential "
    "credentials creds signingkey sharedkey encryptionkey masterkey licensekey herokukey hubspotkey snykkey cloudkey iamkey "
    "ibmkey softlayerkey"
)
_HEADER_NAMES = "authorization"
_NAMES, _NAME_MASKS = suffixes(_SECRET_NAMES)
_HEADERS, _HEADER_MASKS = suffixes(_HEADER_NAMES)


def _last_pairs(names: str) -> np.ndarray:
    """Whether a name ends in two letters, at 32 times the last but one and the last: (1024,) uint8. Few names in code do."""
    table = np.zeros(1 << 10, np.uint8)
    table[[(ord(name[-2]) & 0x1F) << 5 | ord(name[-1]) & 0x1F for name in names.split()]] = 1
    return table


_LAST_PAIRS = _last_pairs(f"{_SECRET_NAMES} {_HEADER_NAMES}")
_SECRET_NAME, _HEADER_NAME = 1, 2
_TICK, _EQUALS, _COLON, _GREATER, _SPACE, _TAB, _DOT, _DASH, _UNDERSCORE = (ord(sign) for sign in "`=:> \t.-_")
_DOLLAR, _OPEN, _CLOSE, _PLUS, _COMMA, _BRACKET, _QUESTION, _E, _Y = (ord(sign) for sign in "$()+,]?ey")
_BACKSLASH, _PERCENT, _AND, _SEMICOLON, _D, _G, _H = (ord(sign) for sign in "\\%&;dgh")
_SIGNATURE, _AUTH = np.frombuffer(b"sig", np.uint8), np.frombuffer(b"_auth", np.uint8)


def find(offsets: np.ndarray, data: np.ndarray, wanted: int, min_entropy: float) -> FoundSpans:
    """The secrets in documents from `columns.text_buffers`.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        wanted: the kinds to find, one bit per number in KINDS.
        min_entropy: of the value of an assignment, in bits per character.
    """
    limit = int(offsets[-1] - offsets[0]) // _MIN_SPAN_BYTES + 1
    starts, stops, kinds = np.empty(limit, np.int64), np.empty(limit, np.int64), np.empty(limit, np.uint8)
    counts = np.zeros(128, np.int64)
    num_spans = find_secrets(offsets, data, wanted, round(1000 * min_entropy), counts, starts, stops, kinds)
    return FoundSpans(starts=starts[:num_spans].copy(), stops=stops[:num_spans].copy(), kinds=kinds[:num_spans].copy())


@inline
def _secret_at(data, floor, start, run, end, counts) -> Any:
    """Start, stop and kind of the secret that begins with the run [start, run); start equals stop where there is none."""
    if data[start] == _DASH:
        return start, pem_stop(data, start, run, end), np.int64(_PRIVATE_KEY)
    if data[start] == _E and data[start + 1] == _Y and (start == floor or data[start - 1] != _DOT):
        stop = jwt_stop(data, start, run, end)
        if stop > start:
            return start, stop, np.int64(_JWT)
    if begins_token(data[start], data[start + 1]):
        first, stop, kind = find_token(data, start, end, counts)
        if first < stop:
            return first, stop, kind
    if may_be_shape(data, start, run, end):
        return find_shape(data, floor, start, run, end, counts)
    return start, start, np.int64(NO_KIND)


@inline
def _name_sort(data, floor, sign) -> Any:
    """Whether the name before `=` or `:` ends like password, secret, token or api_key, is Authorization, or neither (0).

    `_` and `-` are ignored, and a quote, also behind a backslash, and a bracket may close the name: os.environ["API_KEY"].
    """
    j, low = sign, max(floor, sign - 40)
    while data[sign] == _EQUALS and j > low and (data[j - 1] == _COLON or data[j - 1] == _QUESTION):
        j -= 1  # ::= and ?=
    while j > low and (data[j - 1] == _SPACE or data[j - 1] == _TAB):
        j -= 1
    if j > low and data[j - 1] == _BRACKET:
        j -= 1
    if j > low and is_in(data[j - 1], QUOTES):
        j -= 1
        j -= j > low and data[j - 1] == _BACKSLASH
    while j > low and (data[j - 1] == _UNDERSCORE or data[j - 1] == _DASH):
        j -= 1
    if j < low + 2 or not is_in(data[j - 1], LETTER) or not is_in(data[j - 2], TOKEN):
        return 0
    if is_in(data[j - 2], LETTER) and not _LAST_PAIRS[np.int64(data[j - 2] & 0x1F) << 5 | np.int64(data[j - 1] & 0x1F)]:
        return 0
    number, shift = np.uint64(0), np.uint64(0)
    while j > low and is_in(data[j - 1], TOKEN) and shift < np.uint64(64):
        if data[j - 1] != _UNDERSCORE and data[j - 1] != _DASH:
            number |= np.uint64(data[j - 1] | 0x20) << shift
            shift += np.uint64(8)
        j -= 1
    is_secret = False
    for k in range(len(_NAMES)):
        is_secret |= number & _NAME_MASKS[k] == _NAMES[k]
    if is_secret:
        return _SECRET_NAME
    return _HEADER_NAME if number & _HEADER_MASKS[0] == _HEADERS[0] else 0


@inline
def _value_start(data, sign, end):
    """The start of the value after `=`, `:`, `:=` or `=>`; `sign` where there is none."""
    j = sign + 1
    if j < end and ((data[sign] == _COLON and data[j] == _EQUALS) or (data[sign] == _EQUALS and data[j] == _GREATER)):
        j += 1
    low = j
    while j < end and j - low < 4 and (data[j] == _SPACE or data[j] == _TAB):
        j += 1
    return j if j < end else sign


@inline
def _is_computed(data, start, stop):
    """Whether a value is $VARIABLE or a.call(...), or code between two strings: ).append(...)."""
    first = data[start]
    if first == _DOLLAR or first == _CLOSE or first == _PLUS or first == _COMMA or first == _DOT:
        return True
    j = start
    while j < stop and (is_in(data[j], TOKEN) or data[j] == _DOT):
        j += 1
    return start < j < stop and data[j] == _OPEN and data[stop - 1] == _CLOSE


@inline
def _after_scheme(data, start, end) -> Any:
    """The start of the value after the scheme of an Authorization header, such as Bearer, Basic or Api-Token."""
    j = start
    while j < end and j - start < 12 and (is_in(data[j], LETTER) or data[j] == _DASH):
        j += 1
    return j + 1 if start < j < end and data[j] == _SPACE else start


@inline
def _is_hex(data, start, stop) -> Any:
    """Whether a span is 32 hexadecimal digits or more, a UUID among them, with letters and decimal digits."""
    if stop - start < _MIN_HEX_BYTES:
        return False
    for j in range(start, stop):
        if not is_in(data[j], HEX) and data[j] != _DASH:
            return False
    return sorts_in(data, start, stop) & DIGITS != 0 and sorts_in(data, start, stop) > DIGITS


@inline
def _is_no_name(data, start, stop) -> Any:
    """Whether no name in code reads like a span: its capitals are many among small letters, or its digits among letters."""
    num_digits = 0
    for j in range(start, stop):
        num_digits += is_in(data[j], DIGIT)
    if sorts_in(data, start, stop) == DIGITS | CAPITALS | SMALL and num_digits > 1 and is_cased(data, start, stop):
        return True
    return 5 * num_digits >= stop - start > num_digits


@inline
def _plain_stop(data, start, end) -> Any:
    """The stop of a value without quotes; `start` where it goes on in a way that values do not, or has another length."""
    stop = run_stop(data, start, min(end, start + _MAX_VALUE_BYTES + 1), PLAIN)
    if not _MIN_PLAIN_BYTES <= stop - start <= _MAX_VALUE_BYTES:
        return start
    return stop if stop == end or is_in(data[stop], CLOSING) else start


@inline
def _signature(data, floor, sign, end, counts) -> Any:
    """Start, stop and kind of the signature in a URL of Azure, behind `?sig=` or `&sig=`; start equals stop for others."""
    low, start = sign - len(_SIGNATURE), sign + 1
    if low - 1 < floor or not starts_with(data, low, sign, _SIGNATURE):
        return sign, sign, np.int64(NO_KIND)
    before, stop = data[low - 1], start
    if before != _QUESTION and before != _AND and before != _SEMICOLON:
        return sign, sign, np.int64(NO_KIND)
    while stop < end and stop - start <= _MAX_SIGNATURE_BYTES and (is_in(data[stop], BASE64) or data[stop] == _PERCENT):
        stop += 1
    is_padded = stop - start > 3 and data[stop - 3] == _PERCENT and data[stop - 1] | 0x20 == _D
    stop += stop < end and data[stop] == _EQUALS and not is_padded
    is_ended = is_padded or data[stop - 1] == _EQUALS
    goes_on = stop < end and (is_in(data[stop], PLAIN) or data[stop] == _PERCENT)
    if not is_ended or goes_on or not _MIN_SIGNATURE_BYTES <= stop - start <= _MAX_SIGNATURE_BYTES:
        return sign, sign, np.int64(NO_KIND)
    is_key = is_random(data, start, stop, TOKEN_MILLIBITS, counts) and not is_name(data, start, stop)
    return start, (stop if is_key else start), np.int64(_AZURE)


@inline
def _named_exactly(data, floor, sign, end, counts) -> Any:
    """Start, stop and kind of the secret behind a short name that counts as a whole: `_auth=` of npm, `?sig=` of Azure."""
    first = sign - len(_AUTH)
    if data[sign - 1] == _G or first < floor:
        return _signature(data, floor, sign, end, counts)
    if starts_with(data, first, sign, _AUTH) and (first == floor or not is_in(data[first - 1], TOKEN)):
        return find_token(data, first, end, counts)
    return sign, sign, np.int64(NO_KIND)


@inline
def _quoted_stop(data, start, end, quote, is_escaped) -> Any:
    """The stop of a value in quotes; `start` where it has another length, lacks letters or digits, or is computed."""
    stop = run_stop(data, start, min(end, start + _MAX_VALUE_BYTES + 1), VALUE)
    close = stop + is_escaped
    if close >= end or data[close] != quote or (is_escaped and data[stop] != _BACKSLASH):
        return start
    is_value = 8 <= stop - start <= _MAX_VALUE_BYTES and sorts_in(data, start, stop) in (3, 5, 7)
    return stop if is_value and not _is_computed(data, start, stop) else start


@inline
def _value_stop(data, start, end, is_quoted, is_escaped) -> Any:
    """The stop of a value that is no token; `start` where there is none."""
    if is_quoted:
        return _quoted_stop(data, start, end, data[start - 1], is_escaped)
    stop = _plain_stop(data, start, end)
    return stop if stop > start and (_is_hex(data, start, stop) or _is_no_name(data, start, stop)) else start


@inline
def _assigned(data, floor, sign, end, millibits, counts) -> Any:
    """Start, stop and kind of the secret assigned at `sign`; start equals stop where there is none."""
    name = _name_sort(data, floor, sign)
    if name == 0 and (data[sign] != _EQUALS or (data[sign - 1] != _G and data[sign - 1] != _H)):
        return sign, sign, np.int64(NO_KIND)
    if name == 0:
        return _named_exactly(data, floor, sign, end, counts)
    start = _value_start(data, sign, end)
    is_escaped = start > sign and data[start] == _BACKSLASH and start + 1 < end
    quote = data[start + is_escaped]
    is_quoted = start > sign and (is_in(quote, QUOTES) or quote == _TICK)
    start += is_quoted * (1 + is_escaped)
    if not is_quoted and data[sign] == _COMMA:
        return sign, sign, np.int64(NO_KIND)
    if name == _HEADER_NAME:
        start, is_quoted = _after_scheme(data, start, end), False
    run = run_stop(data, start, end if end - start < 256 else start + 256, TOKEN)
    if run > start and start + 1 < end:
        first, stop, _ = _secret_at(data, floor, start, run, end, counts)
        if first < stop:  # the scan finds a token at its own run
            return sign, sign, np.int64(NO_KIND)
    key = run_stop(data, start, min(end, start + 90), BASE64)
    if key - start == 86 and key + 1 < end and data[key] == _EQUALS and data[key + 1] == _EQUALS:
        stop = key + 2 if is_random(data, start, key, TOKEN_MILLIBITS, counts) else start
        return start, stop, np.int64(_AZURE)
    if key - start == 40 and (key == end or data[key] != _EQUALS) and sorts_in(data, start, key) == DIGITS | CAPITALS | SMALL:
        is_key = is_random(data, start, key, TOKEN_MILLIBITS, counts) and not is_name(data, start, key)
        return start, (key if is_key else start), np.int64(_AWS)
    stop = _value_stop(data, start, end, is_quoted, is_escaped)
    if stop == start:
        return sign, sign, np.int64(NO_KIND)
    least = min(millibits, TOKEN_MILLIBITS) if _is_hex(data, start, stop) else millibits
    is_value = is_random(data, start, stop, least, counts) and not is_name(data, start, stop)
    return start, (stop if is_value else start), np.int64(ASSIGNMENT)


@kernel
def find_secrets(
    offsets: Int64s,
    data: UInt8s,
    wanted: int,
    millibits: int,
    counts: Int64sOut,
    starts: Int64sOut,
    stops: Int64sOut,
    kinds: UInt8sOut,
) -> int:
    """Finds every secret of the wanted kinds, in text order; spans do not overlap.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        wanted: the kinds to find, one bit per number in KINDS.
        millibits: least entropy of the value of an assignment, in thousandths of a bit per character.
        counts: (128,) int64, scratch.
        starts: at least (num_bytes // 8 + 1,) int64.
        stops: like starts.
        kinds: like starts, uint8, numbers in KINDS.

    Returns:
        The number of spans.
    """
    num_spans = 0
    for document in range(len(offsets) - 1):
        begin, end = offsets[document], offsets[document + 1]
        j, floor = begin, begin  # no span starts before the floor
        while j < end:
            start, stop, kind = j, j, np.int64(NO_KIND)
            if is_in(data[j], TOKEN):
                run, sets = j + 1, TOKEN
                while run < end:
                    sets = sets_of(data[run])
                    if sets & TOKEN == 0:
                        break
                    run += 1
                is_joined = sets & JOINT != 0 and run + 1 < end and is_in(data[run + 1], PLAIN | JOINT)
                if is_joined or run - j >= _MIN_RUN_BYTES:
                    start, stop, kind = _secret_at(data, floor, j, run, end, counts)
                j = run
            elif is_in(data[j], ASSIGNS) and (data[j] != _COMMA or (j > floor and is_in(data[j - 1], QUOTES))):
                start, stop, kind = _assigned(data, floor, j, end, millibits, counts)
                j += 1
            else:
                j += 1
            if start < stop and wanted >> kind & 1:  # an unwanted span does not hide spans inside it
                starts[num_spans], stops[num_spans], kinds[num_spans] = start, stop, kind
                num_spans += 1
                j = floor = stop
    return int(num_spans)
