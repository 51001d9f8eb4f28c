"""Secrets that have no prefix but a form: JWT, PEM blocks, and the tokens of five issuers.

JWT         header.payload.signature in base64url, the first two of JSON: eyJ…, ey…, with or without `=` at their ends; the
            signature may be empty or missing
PEM         from -----BEGIN to -----END of a private key with at least 64 letters of base64, at most 16 KiB
Discord     24 to 26 characters, 6, and 27 to 40, joined by dots; the first part is a number in base64: it begins with M, N or O
Telegram    5 to 16 digits, a colon, and 35 characters from A on
Facebook    15 or 16 digits, a stroke, and 27 characters
Terraform   14 characters, .atlasv1. and 60 to 70
Mailchimp   32 hexadecimal digits, -us and the number of a data centre
Azure       40 characters of Entra ID with a digit and Q~ in the fourth to sixth place

A token must look random and not like a name (`kernels/redact/randomness.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.redact.ascii import BASE64, DIGIT, HEX, JOINT, LETTER, TOKEN, UPPER, is_in
from datapipe.kernels.redact.randomness import CAPITALS, DIGITS, SMALL, is_cased, is_name, is_random, sorts_in
from datapipe.kernels.redact.tokens import KINDS, NO_KIND, TOKEN_MILLIBITS

_AZURE, _DISCORD, _FACEBOOK, _HASHICORP, _MAILCHIMP, _TELEGRAM = (
    KINDS.index(kind) for kind in ("azure", "discord", "facebook", "hashicorp", "mailchimp", "telegram")
)
_MAX_PEM_BYTES = 16_384
_MAX_ENTRA_BYTES = 64
"""Characters behind a `~` that are read; a secret has at most 34 of them, and dots of a sentence may follow."""
_SPACE, _DOT, _DASH, _COLON, _STROKE, _TILDE, _UNDERSCORE = (ord(sign) for sign in " .-:|~_")
_A, _M, _O, _Q, _EQUALS = (ord(sign) for sign in "AMOQ=")
_BEGIN, _END, _DASHES = (np.frombuffer(text, np.uint8) for text in (b"-----BEGIN", b"-----END", b"-----"))
_KEY, _BLOCK = np.frombuffer(b"PRIVATE KEY", np.uint8), np.frombuffer(b" BLOCK", np.uint8)
_HEADER, _PAYLOAD = np.frombuffer(b"eyJ", np.uint8), np.frombuffer(b"ey", np.uint8)
_ATLAS, _CENTRE, _BOT = (np.frombuffer(text, np.uint8) for text in (b".atlasv1.", b"-us", b"bot"))


@inline
def starts_with(data, start, end, expected) -> Any:
    """Whether the bytes `expected` are at `start`, before `end`."""
    if start < 0 or start + len(expected) > end:
        return False
    equal = True
    for j in range(len(expected)):
        equal &= data[start + j] == expected[j]
    return equal


@inline
def run_stop(data, start, end, members) -> Any:
    """The stop of the characters of some sets from `start` on."""
    while start < end and is_in(data[start], members):
        start += 1
    return start


@inline
def pem_stop(data, start, run, end) -> Any:
    """The stop of the private key whose first run of dashes and letters is [start, run); `start` where there is none."""
    j = start + len(_BEGIN)
    if run != j or j == end or data[j] != _SPACE or not starts_with(data, start, run, _BEGIN):
        return start
    label = j
    while j < end and j - label < 40 and (is_in(data[j], UPPER) or data[j] == _SPACE):
        j += 1
    last = j - len(_BLOCK) if starts_with(data, j - len(_BLOCK), j, _BLOCK) else j
    if (
        last - len(_KEY) <= label
        or not starts_with(data, last - len(_KEY), last, _KEY)
        or not starts_with(data, j, end, _DASHES)
    ):
        return start
    j += 5
    num_letters, limit = 0, min(end, j + _MAX_PEM_BYTES)
    while j < limit and not (data[j] == _DASH and starts_with(data, j, end, _DASHES)):
        num_letters += is_in(data[j], BASE64)
        j += 1
    if num_letters < 64 or not starts_with(data, j, end, _END):
        return start
    j += len(_END)
    label = j
    while j < end and j - label < 40 and (is_in(data[j], UPPER) or data[j] == _SPACE):
        j += 1
    return j + 5 if starts_with(data, j, end, _DASHES) else start


@inline
def jwt_stop(data, start, run, end) -> Any:
    """The stop of a JWT whose first part is [start, run); `start` where there is none."""
    first = _padding_stop(data, run, end)
    if run - start < 16 or first + 4 > end or data[first] != _DOT or not starts_with(data, start, run, _HEADER):
        return start
    second = run_stop(data, first + 1, end, TOKEN)
    if second - first < 17 or not starts_with(data, first + 1, second, _PAYLOAD):
        return start
    padded = _padding_stop(data, second, end)
    if padded == end or data[padded] != _DOT:
        return second
    return run_stop(data, padded + 1, end, TOKEN)


@inline
def _padding_stop(data, stop, end) -> Any:
    """The stop of the `=` at the end of base64, of which there are two at most."""
    for _ in range(2):
        stop += stop < end and data[stop] == _EQUALS
    return stop


@inline
def _discord_stop(data, start, run, end) -> Any:
    """The stop of a Discord token whose first part is [start, run); `start` where there is none."""
    if data[start] < _M or data[start] > _O:
        return start
    if run + 8 > end or run_stop(data, run + 1, run + 8, TOKEN) != run + 7 or data[run + 7] != _DOT:
        return start
    stop = run_stop(data, run + 8, end, TOKEN)
    return stop if 27 <= stop - run - 8 <= 40 and is_cased(data, run + 8, stop) else start


@inline
def _azure_start(data, floor, tilde) -> Any:
    """The start of a secret of Entra ID with its first `~` behind Q here; `tilde` where there is none."""
    start = tilde - 5
    if start < floor or data[tilde - 1] != _Q or not is_in(data[tilde - 2], DIGIT):
        return tilde
    for j in range(max(floor, start - 1), start + 3):
        is_member = is_in(data[j], DIGIT | LETTER) or data[j] == _UNDERSCORE or data[j] == _TILDE or data[j] == _DOT
        if is_member != (j >= start):
            return tilde
    return start


@inline
def _azure_stop(data, tilde, end) -> Any:
    """The stop of 31 to 34 characters behind the `~` of a secret of Entra ID; `tilde` where there are none."""
    stop, limit = tilde + 1, min(end, tilde + 1 + _MAX_ENTRA_BYTES)
    while stop < limit and (is_in(data[stop], TOKEN) or data[stop] == _TILDE or data[stop] == _DOT):
        stop += 1
    if stop == tilde + 1 + _MAX_ENTRA_BYTES:
        return tilde
    while data[stop - 1] == _DOT:  # of the sentence
        stop -= 1
    return stop if 31 <= stop - tilde - 1 <= 34 else tilde


@inline
def _joined_stop(data, start, run, end) -> Any:
    """Stop and kind of two parts joined by a sign, the first of which is [start, run); start where there are none.

    A Telegram token may stand in the path of a URL, behind `bot`.
    """
    sign, length, digits = data[run], run - start, start
    if sign == _COLON and starts_with(data, start, run, _BOT):
        digits += len(_BOT)
    if (sign == _COLON and data[run + 1] == _A and 5 <= run - digits <= 16) or (sign == _STROKE and 15 <= length <= 16):
        stop = run_stop(data, run + 1, min(end, run + 38), TOKEN)
        is_number = run_stop(data, digits, run, DIGIT) == run
        if is_number and stop - run - 1 == (35 if sign == _COLON else 27):
            return stop, _TELEGRAM if sign == _COLON else _FACEBOOK
    if sign == _DOT and length == 14 and starts_with(data, run, end, _ATLAS):
        stop = run_stop(data, run + len(_ATLAS), end, TOKEN)
        return (stop if 60 <= stop - run - len(_ATLAS) <= 70 else start), _HASHICORP
    if sign == _DOT and 24 <= length <= 26:
        return _discord_stop(data, start, run, end), _DISCORD
    return start, NO_KIND


@inline
def may_be_shape(data, start, run, end) -> Any:
    """Whether a run has the length of a token of no prefix, or is followed by its sign; false for nearly all runs."""
    length = run - start
    if run + 1 >= end or not is_in(data[run], JOINT):
        return 36 <= length <= 37
    sign = data[run]
    if sign == _DOT:
        return length == 14 or 24 <= length <= 26
    if sign == _COLON:
        return data[run + 1] == _A and is_in(data[run - 1], DIGIT)
    return sign == _STROKE or (sign == _TILDE and data[run - 1] == _Q)


@inline
def find_shape(data, floor, start, run, end, counts) -> Any:
    """Start, stop and kind of the token of no prefix whose first run of letters, digits, `_` and `-` is [start, run).

    Start equals stop where there is none. An Entra secret may start before the run. `may_be_shape` is true.
    """
    first, stop, kind = start, start, np.int64(NO_KIND)
    if 36 <= run - start <= 37 and starts_with(data, start + 32, run, _CENTRE):
        is_key = run_stop(data, start, run, HEX) == start + 32 and run_stop(data, start + 35, run, DIGIT) == run
        stop, kind = (run if is_key else start), np.int64(_MAILCHIMP)
    elif run + 1 >= end:
        return start, start, np.int64(NO_KIND)
    elif data[run] == _TILDE:
        first = _azure_start(data, floor, run)
        after = _azure_stop(data, run, end)
        stop, kind = (after if first < run < after else first), np.int64(_AZURE)
    else:
        stop, kind = _joined_stop(data, start, run, end)
    if stop == first or not is_random(data, first, stop, TOKEN_MILLIBITS, counts) or is_name(data, first, stop):
        return start, start, np.int64(NO_KIND)
    is_mixed = kind == _MAILCHIMP or sorts_in(data, first, stop) == DIGITS | CAPITALS | SMALL
    return (first, stop, kind) if is_mixed else (start, start, np.int64(NO_KIND))
