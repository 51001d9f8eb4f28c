"""Finds keys, tokens and passwords in code and configuration in one pass over the bytes.

    bytes  ->  runs of letters, digits, `_` and `-`  ->  prefix, alphabet and length of an issuer's tokens, JWT, PEM
           ->  each `=` and `:`                      ->  a name that ends like api_key  +  a value that looks random

The cost is linear for any input: a run is read once, the three runs of a JWT at most three times. A PEM block is read to the
next five dashes. Around `=` and `:` about 300 bytes are read. Any bytes are safe. Spans are ASCII except inside a PEM block,
which begins and ends with dashes, so a cut never falls inside a character.

A token is free-standing, has at least 2.8 bits of entropy per character, and is not a placeholder: it contains none of example,
xxxx, your, placehol(der), dummy, fake, sample, changeme, redacted or insert, in any case. Lengths and alphabets are those that
the issuers document, or those of their tokens.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.redact.ascii import BASE64, DIGIT, LETTER, TOKEN, UPPER, VALUE, is_in
from datapipe.kernels.redact.pii import FoundSpans
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, UInt8sOut

KINDS = (
    "aws",
    "gcp",
    "azure",
    "github",
    "gitlab",
    "slack",
    "stripe",
    "openai",
    "anthropic",
    "hugging_face",
    "npm",
    "pypi",
    "jwt",
    "google_oauth",
    "private_key",
    "assignment",
)
"""The kinds in the order of their numbers."""
_AWS, _GCP, _AZURE, _GITHUB, _GITLAB, _SLACK, _STRIPE, _OPENAI, _ANTHROPIC, _HUGGING, _NPM, _PYPI, _JWT, _OAUTH = range(14)
_PRIVATE_KEY, ASSIGNMENT = 14, 15
_MIN_SPAN_BYTES = 8


class _Form(NamedTuple):
    """A kind of token: its prefix, and the length and alphabet of the rest."""

    prefix: str
    kind: int
    least: int
    most: int
    members: int


FORMS = (
    *(_Form(prefix, _AWS, 16, 16, UPPER) for prefix in ("AKIA", "ASIA")),
    _Form("AIza", _GCP, 35, 35, TOKEN),
    *(_Form(prefix, _GITHUB, 36, 255, DIGIT | LETTER) for prefix in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")),
    _Form("github_pat_", _GITHUB, 60, 255, TOKEN),
    _Form("glpat-", _GITLAB, 20, 64, TOKEN),
    *(_Form(f"xox{letter}-", _SLACK, 20, 255, TOKEN) for letter in "abeoprs"),
    *(_Form(prefix, _STRIPE, 16, 255, DIGIT | LETTER) for prefix in ("sk_live_", "rk_live_")),
    _Form("sk-ant-", _ANTHROPIC, 40, 255, TOKEN),
    _Form("sk-", _OPENAI, 32, 255, TOKEN),
    _Form("hf_", _HUGGING, 30, 64, DIGIT | LETTER),
    _Form("npm_", _NPM, 36, 36, DIGIT | LETTER),
    _Form("pypi-AgE", _PYPI, 50, 255, TOKEN),
    _Form("GOCSPX-", _OAUTH, 28, 28, TOKEN),
)
_PREFIXES = np.zeros((len(FORMS), 12), np.uint8)
for _number, _form in enumerate(FORMS):
    _PREFIXES[_number, : len(_form.prefix)] = np.frombuffer(_form.prefix.encode(), np.uint8)
_RULES = np.array([(len(form.prefix), *form[1:]) for form in FORMS], np.int64)
_MAX_VALUE_BYTES = 200
_MAX_PEM_BYTES = 16_384
_TOKEN_MILLIBITS = 2_800
_NO_KIND = -1
_MILLIBITS = np.array([0] + [round(1000 * count * math.log2(count)) for count in range(1, 257)], np.int64)
"""1000 n log2 n, rounded: entropies of whole numbers compare alike on every machine."""


def _suffixes(words: str) -> tuple[np.ndarray, np.ndarray]:
    """The last eight letters of each word as a number, and a mask of the bits they fill."""
    kept = [word[-8:] for word in words.split()]
    numbers = np.array([int.from_bytes(word.encode(), "big") for word in kept], np.uint64)
    return numbers, np.array([(1 << 8 * len(word)) - 1 for word in kept], np.uint64)


_NAMES, _NAME_MASKS = _suffixes(
    "password passwd pwd passphrase secret token apikey accesskey secretkey privatekey authkey accountkey credential "
    "credentials"
)
_PLACEHOLDERS, _PLACEHOLDER_MASKS = _suffixes("example xxxx your placehol dummy fake sample changeme redacted insert")
_QUOTE, _QUOTES, _TICK, _EQUALS, _COLON, _GREATER, _SPACE, _TAB, _DOT, _DASH, _UNDERSCORE = (
    ord(sign) for sign in "'\"`=:> \t.-_"
)
_DOLLAR, _OPEN, _CLOSE, _PLUS, _COMMA = (ord(sign) for sign in "$()+,")
_BEGIN, _END = np.frombuffer(b"-----BEGIN", np.uint8), np.frombuffer(b"-----END", np.uint8)
_KEY, _BLOCK = np.frombuffer(b"PRIVATE KEY", np.uint8), np.frombuffer(b" BLOCK", np.uint8)
_OAUTH_PREFIX, _JWT_PREFIX = np.frombuffer(b"ya29", np.uint8), np.frombuffer(b"eyJ", np.uint8)


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
def _starts_with(data, start, end, expected):
    """Whether the bytes `expected` are at `start`, before `end`."""
    if start < 0 or start + len(expected) > end:
        return False
    equal = True
    for j in range(len(expected)):
        equal &= data[start + j] == expected[j]
    return equal


@inline
def _run_stop(data, start, end, members):
    while start < end and is_in(data[start], members):
        start += 1
    return start


@inline
def _is_random(data, start, stop, millibits, counts):
    """Whether at most 256 ASCII bytes have this entropy and contain no word of a placeholder."""
    counts[:] = 0
    number = np.uint64(0)
    for j in range(start, stop):
        counts[data[j]] += 1
        number = number << np.uint64(8) | np.uint64(data[j] | 0x20)
        for k in range(len(_PLACEHOLDERS)):
            if number & _PLACEHOLDER_MASKS[k] == _PLACEHOLDERS[k]:
                return False
    length, total = stop - start, 0
    for count in counts:
        total += _MILLIBITS[count]
    return _MILLIBITS[length] - total >= millibits * length


@inline
def _sorts(data, start, stop):
    """The sum of the kinds of characters in a span: 1 for digits, 2 for capitals, 4 for small letters."""
    sorts = 0
    for j in range(start, stop):
        if is_in(data[j], DIGIT):
            sorts |= 1
        elif is_in(data[j], LETTER):
            sorts |= 2 if data[j] < 0x60 else 4
    return sorts


@inline
def _pem_stop(data, start, end):
    """The stop of the private key whose `-----BEGIN` is at `start`; `start` where there is none."""
    j = start + 10
    if j == end or data[j] != _SPACE:
        return start
    label = j
    while j < end and j - label < 40 and (is_in(data[j], UPPER) or data[j] == _SPACE):
        j += 1
    last = j - len(_BLOCK) if _starts_with(data, j - len(_BLOCK), j, _BLOCK) else j
    if (
        last - len(_KEY) <= label
        or not _starts_with(data, last - len(_KEY), last, _KEY)
        or not _starts_with(data, j, end, _BEGIN[:5])
    ):
        return start
    j += 5
    num_letters, limit = 0, min(end, j + _MAX_PEM_BYTES)
    while j < limit and not (data[j] == _DASH and _starts_with(data, j, end, _BEGIN[:5])):
        num_letters += is_in(data[j], BASE64)
        j += 1
    if num_letters < 64 or not _starts_with(data, j, end, _END):
        return start
    j += len(_END)
    label = j
    while j < end and j - label < 40 and (is_in(data[j], UPPER) or data[j] == _SPACE):
        j += 1
    return j + 5 if _starts_with(data, j, end, _BEGIN[:5]) else start


@inline
def _jwt_stop(data, start, run, end):
    """The stop of a JWT whose first part is [start, run); `start` where there is none."""
    if run - start < 10 or run + 4 > end or data[run] != _DOT or not _starts_with(data, run + 1, end, _JWT_PREFIX):
        return start
    second = _run_stop(data, run + 1, end, TOKEN)
    if second - run < 11 or second == end or data[second] != _DOT:
        return start
    third = _run_stop(data, second + 1, end, TOKEN)
    return third if third - second > 16 else start


@inline
def _token(data, begin, start, run, end, counts):
    """Stop and kind of the token that begins with the run [start, run); stop equals start where there is none."""
    first = data[start]
    if first == _DASH and _starts_with(data, start, run, _BEGIN):
        return (_pem_stop(data, start, end) if run == start + 10 else start), _PRIVATE_KEY
    if first == ord("e") and _starts_with(data, start, run, _JWT_PREFIX) and (start == begin or data[start - 1] != _DOT):
        return _jwt_stop(data, start, run, end), _JWT
    if (
        first == ord("y")
        and run == start + 4
        and run < end
        and data[run] == _DOT
        and _starts_with(data, start, run, _OAUTH_PREFIX)
    ):
        stop = _run_stop(data, run + 1, end, TOKEN)
        is_token = 20 <= stop - run - 1 <= 255 and _is_random(data, run + 1, stop, _TOKEN_MILLIBITS, counts)
        return (stop if is_token else start), _OAUTH
    for number in range(len(_RULES)):
        length, kind, least, most, members = _RULES[number]
        rest = start + length
        if first != _PREFIXES[number, 0] or not least <= run - rest <= most:
            continue
        if not _starts_with(data, start, run, _PREFIXES[number, :length]):
            continue
        if _run_stop(data, rest, run, members) < run or (kind == _OPENAI and _sorts(data, rest, run) < 7):
            return start, kind
        return (run if _is_random(data, rest, run, _TOKEN_MILLIBITS, counts) else start), kind
    return start, _NO_KIND


@inline
def _names_secret(data, begin, sign):
    """Whether the name before `=` or `:` ends like password, secret, token or api_key, ignoring `_` and `-`."""
    j, low = sign, max(begin, sign - 40)
    while j > low and (data[j - 1] == _SPACE or data[j - 1] == _TAB):
        j -= 1
    if j > low and (data[j - 1] == _QUOTE or data[j - 1] == _QUOTES):
        j -= 1
    number, shift = np.uint64(0), np.uint64(0)
    while j > low and is_in(data[j - 1], TOKEN) and shift < np.uint64(64):
        if data[j - 1] != _UNDERSCORE and data[j - 1] != _DASH:
            number |= np.uint64(data[j - 1] | 0x20) << shift
            shift += np.uint64(8)
        j -= 1
    for k in range(len(_NAMES)):
        if number & _NAME_MASKS[k] == _NAMES[k]:
            return True
    return False


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
def _assigned(data, begin, sign, end, millibits, counts):
    """Start, stop and kind of the secret assigned at `sign`; start equals stop where there is none."""
    if not _names_secret(data, begin, sign):
        return sign, sign, _NO_KIND
    start = _value_start(data, sign, end)
    quote = data[start]
    is_quoted = start > sign and (quote == _QUOTE or quote == _QUOTES or quote == _TICK)
    start += is_quoted
    key = _run_stop(data, start, min(end, start + 90), BASE64)
    if key - start == 86 and key + 1 < end and data[key] == _EQUALS and data[key + 1] == _EQUALS:
        return (start, key + 2, _AZURE) if _is_random(data, start, key, _TOKEN_MILLIBITS, counts) else (sign, sign, _NO_KIND)
    if key - start == 40 and (key == end or data[key] != _EQUALS) and _sorts(data, start, key) == 7:
        return (start, key, _AWS) if _is_random(data, start, key, _TOKEN_MILLIBITS, counts) else (sign, sign, _NO_KIND)
    run = _run_stop(data, start, end if end - start < 256 else start + 256, TOKEN)
    stop, kind = _token(data, begin, start, run, end, counts) if run > start else (start, _NO_KIND)
    if not is_quoted or stop > start:  # the scan finds a token at its own run
        return sign, sign, kind
    stop = _run_stop(data, start, min(end, start + _MAX_VALUE_BYTES + 1), VALUE)
    if stop == end or data[stop] != quote or not 8 <= stop - start <= _MAX_VALUE_BYTES:
        return sign, sign, _NO_KIND
    if _sorts(data, start, stop) not in (3, 5, 7) or _is_computed(
        data, start, stop
    ):  # without digits, without letters, or code
        return sign, sign, _NO_KIND
    return (start, stop, ASSIGNMENT) if _is_random(data, start, stop, millibits, counts) else (sign, sign, _NO_KIND)


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
        j = begin
        while j < end:
            start, stop, kind = j, j, _NO_KIND
            if is_in(data[j], TOKEN):
                run = _run_stop(data, j, end, TOKEN)
                if run - j >= 10 or (run - j == 4 and data[j] == _OAUTH_PREFIX[0]):
                    stop, kind = _token(data, begin, j, run, end, counts)
                j = run
            elif data[j] == _EQUALS or data[j] == _COLON:
                start, stop, kind = _assigned(data, begin, j, end, millibits, counts)
                j += 1
            else:
                j += 1
            if start < stop and wanted >> kind & 1:  # an unwanted span does not hide spans inside it
                starts[num_spans], stops[num_spans], kinds[num_spans] = start, stop, kind
                num_spans += 1
                j = stop
    return int(num_spans)
