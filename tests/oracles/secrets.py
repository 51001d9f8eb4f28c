"""Keys, tokens and passwords by regular expressions."""

from __future__ import annotations

import math
import re
from collections import Counter

Span = tuple[int, int, int]
_T = rb"[0-9A-Za-z_\-]"
_FORMS = [
    (rb"(?:AKIA|ASIA)([0-9A-Z]{16})", 0),
    (rb"AIza(%b{35})" % _T, 1),
    (rb"gh[pousr]_([0-9A-Za-z]{36,255})", 3),
    (rb"github_pat_(%b{60,255})" % _T, 3),
    (rb"glpat-(%b{20,64})" % _T, 4),
    (rb"xox[abeoprs]-(%b{20,255})" % _T, 5),
    (rb"[sr]k_live_([0-9A-Za-z]{16,255})", 6),
    (rb"sk-ant-(%b{40,255})" % _T, 8),
    (rb"sk-(%b{32,255})" % _T, 7),
    (rb"hf_([0-9A-Za-z]{30,64})", 9),
    (rb"npm_([0-9A-Za-z]{36})", 10),
    (rb"pypi-AgE(%b{50,255})" % _T, 11),
    (rb"ya29\.(%b{20,255})" % _T, 13),
    (rb"GOCSPX-(%b{28})" % _T, 13),
]
_PEM = re.compile(
    rb"-----BEGIN(?=[A-Z0-9 ]{1,40}-----) [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    rb"((?:(?!-----)[\s\S]){0,16384})-----END[A-Z0-9 ]{0,40}-----"
)
_JWT = re.compile(rb"(?<!\.)eyJ%b{7,}\.eyJ%b{7,}\.%b{16,}" % (_T, _T, _T))
_NAMES = (
    b"password passwd pwd passphrase secret token apikey accesskey secretkey privatekey authkey accountkey credential "
    b"credentials"
)
_PLACEHOLDERS = b"example xxxx your placehol dummy fake sample changeme redacted insert"


def _is_random(text: bytes, millibits: int) -> bool:
    def weight(count: int) -> int:
        return round(1000 * count * math.log2(count))

    if any(word in text.lower() for word in _PLACEHOLDERS.split()):
        return False
    return weight(len(text)) - sum(map(weight, Counter(text).values())) >= millibits * len(text)


def _token(text: bytes, offset: int) -> Span | None:
    pem = _PEM.match(text, offset)
    if pem:
        return (offset, pem.end(), 14) if len(re.findall(rb"[0-9A-Za-z+/]", pem[1])) >= 64 else None
    jwt = _JWT.match(text, offset)
    if jwt:
        return offset, jwt.end(), 12
    for form, kind in _FORMS:
        match = re.compile(form + rb"(?!%b)" % _T).match(text, offset)
        if match:
            is_mixed = all(re.search(sort, match[1]) for sort in (rb"[0-9]", rb"[A-Z]", rb"[a-z]"))
            return (offset, match.end(), kind) if (kind != 7 or is_mixed) and _is_random(match[1], 2800) else None
    return None


def _assigned(text: bytes, offset: int, millibits: int) -> Span | None:
    named = re.search(rb"(%b*)[\"']?[ \t]*\Z" % _T, text[max(0, offset - 40) : offset])
    assert named is not None
    name = re.sub(rb"[_\-]", b"", named[1]).lower()[-8:]
    if not any(name.endswith(word[-8:]) for word in _NAMES.split()):
        return None
    sign = re.compile(rb"(?:=>|:=|[=:])[ \t]{0,4}([\"'`]?)").match(text, offset)
    assert sign is not None
    start = sign.end()
    azure = re.compile(rb"([0-9A-Za-z+/]{86})==").match(text, start)
    if azure:
        return (start, azure.end(), 2) if _is_random(azure[1], 2800) else None
    aws = re.compile(rb"(?=[+/A-Za-z]*[0-9])(?=[+/0-9a-z]*[A-Z])(?=[+/0-9A-Z]*[a-z])[0-9A-Za-z+/]{40}(?![0-9A-Za-z+/=])")
    match = aws.match(text, start)
    if match:
        return (start, match.end(), 0) if _is_random(match[0], 2800) else None
    value = re.compile(rb"[0-9A-Za-z!#$%%&()*+,\-./:;=?@\[\]^_|~]{8,200}(?=%b)" % (sign[1] or b"(?!)")).match(text, start)
    if _token(text, start) or not value or not re.search(rb"[0-9]", value[0]) or not re.search(rb"[A-Za-z]", value[0]):
        return None
    if re.fullmatch(rb"[$)+,.].*|(?:%b|\.)+\(.*\)" % _T, value[0]):
        return None
    return (start, value.end(), 15) if _is_random(value[0], millibits) else None


def find(text: bytes, wanted: int, millibits: int) -> list[Span]:
    """(start, stop, kind) of every secret, as the kernel writes them."""
    spans, offset = [], 0
    token = re.compile(rb"%b+|[=:]" % _T)
    while match := token.search(text, offset):
        is_sign = match[0] in (b"=", b":")
        span = _assigned(text, match.start(), millibits) if is_sign else _token(text, match.start())
        span = span if span and wanted >> span[2] & 1 else None  # what is not wanted hides nothing inside it
        offset = span[1] if span else match.end()
        spans += [span] if span else []
    return spans
