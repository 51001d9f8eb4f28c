"""Keys, tokens and passwords by regular expressions."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter

from datapipe.kernels.redact.randomness import COMMON_PAIRS
from datapipe.kernels.redact.tokens import KINDS

Span = tuple[int, int, int]
_SETS = {"T": rb"[0-9A-Za-z_\-]", "A": rb"[0-9A-Za-z]", "H": rb"[0-9A-Fa-f]", "L": rb"[0-9a-z]", "U": rb"[0-9A-Z]"}
_SETS |= {"B": rb"[0-9A-Za-z+/]", "D": rb"[0-9]", "W": rb"[0-9A-Za-z_]", "F": rb"[0-9A-Za-z_\-=]", "V": rb"[0-9A-Za-z_\-=.]"}
_SETS |= {"G": rb"[0-9A-Fa-f\-]", "P": rb"[0-9A-Za-z_\-=+/]", "C": rb"[0-9A-Za-z%]", "E": rb"="}
_T = _SETS["T"]

FORMS = """
aws           (AKIA|ASIA|ABIA|ACCA)<U16>
aws           (A3T)<U17>
aws           (ABSK)<B109-269 E0-2>
aws           (bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t)<B0-2000 E0-2>
gcp           (AIza)<T35>
google_oauth  (GOCSPX-)<T28>
google_oauth  (ya29[.])<T20-1000>
github        (gh[pousr]_)<A36-255>
github        (github_pat_)<T60-255>
gitlab        (gl(?:pat|rt)-)<T20-300 [.] L9>
gitlab        (gl(?:pat|dt|ft|soat|ffct|rt|rtr|wt)-)<T20-300>
gitlab        (glcbt-|GR1348941)<T20-300>
gitlab        (glimt-)<T25-26>
gitlab        (glptt-)<T40>
gitlab        (glagent-)<T50-1024>
gitlab        (gloas-)<T64>
gitlab        (_gitlab_session=)<L32>
slack         (xox[abeoprs]-)<D1-14 - T10-255> loose
slack         (xapp-|xoxe[.]xox[bp]-)<D1 - T20-255> loose
slack         (xox[ar]-)<A16-64> mixed
slack         (hooks[.]slack(?:-gov)?[.]com/services/)<W8-14 / W8-14 / W16-32>
slack         (hooks[.]slack(?:-gov)?[.]com/(?:workflows|triggers)/)<B30-90>
stripe        ([rs]k_(?:live|test|prod)_)<A10-255>
stripe        (whsec_)<B24-255 E0-2>
openai        (sk-)<T32-255> mixed
anthropic     (sk-ant-)<T40-255>
hugging_face  (hf_|api_org_)<A34> cased
npm           (npm_)<A36>
npm           (_authToken=)<H8 - H4 - H4 - H4 - H12>
npm           (_auth="?)<B18-400 E0-2>
pypi          (pypi-AgE)<T50-2000>
jwt           (ZXlK)<B60-2000 E0-2> mixed
artifactory   (AKCp)<A69>
artifactory   (cmVmd)<A59>
atlassian     (ATATT3)<F186>
atlassian     (ATCTT3xFfG)<F171-200>
digitalocean  (do[opr]_v1_)<H64>
discord       (discord(?:app)?[.]com/api/(?:v(?:6|7|8|9|10)/)?webhooks/)<D17-20 / T60-80>
facebook      (EAA[MC])<A100-400>
grafana       (eyJrIjoi)<A70-400 E0-3>
grafana       (glc_)<B32-400 E0-3>
grafana       (glsa_)<A32 _ H8>
hashicorp     (hvs[.])<T90-120>
hashicorp     (hv[br][.])<T138-300>
hashicorp     (s[.])<A24> mixed
heroku        (HRKU-AA)<T58>
sendgrid      (SG[.])<T16-24 [.] T36-50>
sentry        (sntrys_eyJpYXQiO)<B40-600 E0-2 _ B43>
sentry        (sntryu_)<H64>
shopify       (shp(?:at|ca|pa|ss)_)<H32>
square        (sq0csp-)<T43>
square        (sq0atp-)<T22-60>
square        (EAAA)<T60> mixed
twilio        (SK|AC)<H32>
other         (sk-or-v1-)<H64>
other         (gsk_)<A52>
other         (xai-)<A80>
other         (tskey-(?:auth|api|client|scim|webhook)-)<A8-24 - A16-64> unnamed
other         (sbp_(?:oauth_)?)<H40>
other         (nfp_)<A36>
other         (r8_)<A37>
other         (dnkey-)<W26 - F52>
other         (NRJS-)<H19>
other         (A3-)<U6 - U11 - U5 - U5 - U5>
other         (A3-)<U6 - U6 - U5 - U5 - U5 - U5>
other         (ops_eyJ)<B250-4000 E0-3>
other         (p8e-)<A32>
other         (AGE-SECRET-KEY-1)<U58>
other         (pat)<A14 [.] H64>
other         (LTAI)<A20> mixed
other         ((?:sc|ext|scauth|authress)_)<L5-30 [.] L4-6 [.] T14-36 [.] P30-120>
other         (4b1d)<A38> mixed
other         (CLOJARS_)<A60>
other         (v1[.]0-)<H24 - H146>
other         (dapi)<H32 -0-1 D0-1>
other         (dp[.](?:pt|ct|sa|scim|audit)[.])<A40-44>
other         (sl[.])<F130-200>
other         (duffel_(?:test|live)_)<F43>
other         (dt0c01[.])<A24 [.] A64>
other         (EZ[AT]K)<A54>
other         (FLWSECK(?:_TEST)?-)<L32 - U1>
other         (FLWSECK_TEST-)<L12>
other         (fo1_)<T43>
other         (fm(?:1a|1r|2)_)<B100-4000 E0-3>
other         (fio-u-)<F64>
other         ([ps]at[.])<T22 [.] A24 [.] A20>
other         (ico-)<A32> mixed
other         (s-s4t2(?:ud|af)-)<H64>
other         (lin_(?:api|oauth)_)<A40-64>
other         (webhook[.]office[.]com/webhookb2/)<G36 @ G36 / A15 / L32 / G36>
other         (NRAK-)<U27>
other         (NRII-)<T32>
other         (ntn_)<D11 A35>
other         (API-)<U26>
other         (sha256~)<T43>
other         (pplx-)<A48>
other         (pscale_(?:tkn|oauth|pw)_)<V32-64>
other         (PMAK-)<H24 - H34>
other         (pnu_)<A36>
other         (pul-)<H40>
other         (rdme_)<L70>
other         (rubygems_)<H48>
other         (tk-us-)<T48>
other         (xkeysib-)<H64 - A16>
other         (sm_[aps]at_)<A16>
other         (shippo_(?:live|test)_)<H40>
other         (sq[apu]_)<A40>
other         (sgp_)<H16 _ H40>
other         (sgp_(?:local_)?)<H40>
other         (tfp_)<V59>
other         (AQVN)<T35-38> mixed
other         (access-(?:sandbox|development|production)-)<G36>
other         (AAAAAAAAAAAAAAAAAAAAAA)<C80-100>
"""
"""The tokens of issuers: kind, (prefix)<runs>, condition. `T20-300` are 20 to 300 of the set T, `[.]` and `-` themselves."""


def _run(written: str) -> bytes:
    """One run as a regular expression that never gives back a character."""
    match = re.fullmatch(r"([A-Z])(\d+)(?:-(\d+))?", written)
    if match:
        return b"%b{%b,%b}+" % (_SETS[match[1]], match[2].encode(), (match[3] or match[2]).encode())
    return b"(?:-)?+" if written == "-0-1" else written.encode()


def _form(row: str) -> tuple[int, str, re.Pattern[bytes]]:
    """Kind, condition and pattern of a row: group 1 is the prefix, group 2 what follows."""
    match = re.fullmatch(r"(\w+) +\((.+)\)<(.+)> ?(\w*)", row)
    assert match is not None, row
    runs = [_run(written) for written in match[3].split()]
    last = re.match(rb"\[.*?\]|.", runs[-1])
    assert last is not None
    pattern = b"(%b)(%b)(?!%b|%b)" % (match[2].encode(), b"".join(runs), _T, last[0])
    return KINDS.index(match[1]), match[4], re.compile(pattern)


PATTERNS = [_form(row) for row in FORMS.strip().splitlines()]
_ANY_PREFIX = re.compile(b"|".join(re.findall(r"\((.+)\)<", row)[0].encode() for row in FORMS.strip().splitlines()))
_PEM = re.compile(
    rb"-----BEGIN(?=[A-Z0-9 ]{1,40}-----) [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    rb"((?:(?!-----)[\s\S]){0,16384})-----END[A-Z0-9 ]{0,40}-----"
)
_JWT = re.compile(rb"eyJ%b{13,}+={0,2}\.ey%b{14,}+(?:={0,2}\.%b*)?" % (_T, _T, _T))
_SHAPES = [
    ("mailchimp", rb"[0-9A-Fa-f]{32}-us[0-9]{1,2}(?!%b)" % _T),
    ("hashicorp", rb"%b{14}\.atlasv1\.%b{60,70}+(?!%b)" % (_T, _T, _T)),
    ("discord", rb"[MNO]%b{23,25}\.%b{6}\.(%b{27,40}+)(?!%b)" % (_T, _T, _T, _T)),
    ("telegram", rb"(?:bot)?[0-9]{5,16}:A%b{34}(?!%b)" % (_T, _T)),
    ("facebook", rb"[0-9]{15,16}\|%b{27}(?!%b)" % (_T, _T)),
]
_ENTRA = re.compile(rb"[0-9A-Za-z_~.]{3}[0-9]Q~([0-9A-Za-z_~.\-]*[0-9A-Za-z_~\-])")
_NAMES = (
    b"password passwd pwd passphrase pass secret token apikey accesskey secretkey privatekey authkey accountkey credential "
    b"credentials creds signingkey sharedkey encryptionkey masterkey licensekey herokukey hubspotkey snykkey cloudkey iamkey "
    b"ibmkey softlayerkey"
)
_PLACEHOLDERS = b"example xxxx your placehol dummy fake sample changeme redacted insert ..."
_PAIRS = {row[:1] + other for row in COMMON_PAIRS.split() for other in row[1:]}


def is_random(text: bytes, millibits: int) -> bool:
    def weight(count: int) -> int:
        return round(1000 * count * math.log2(count))

    text = text[:256]
    if any(word in text.lower() for word in _PLACEHOLDERS.split()):
        return False
    return weight(len(text)) - sum(map(weight, Counter(text).values())) >= millibits * len(text)


def is_name(text: bytes) -> bool:
    """Whether two thirds of the letters are in words and few digits are among them, or the letters are the alphabet."""
    written = text[:256].decode()
    spelt = "abcdefghijklmnopqrstuvwxyz"
    if any(spelt[first : first + 8] in written.lower() for first in range(19)):
        return True
    letters, in_words = len(re.findall("[A-Za-z]", written)), _num_in_words(written)
    for part in re.findall("[0-9A-Za-z]{16,}", written):
        if 2 * _num_in_words(part) < len(re.findall("[A-Za-z]", part)):
            return False
    borders = len(re.findall("(?=[A-Za-z][0-9]|[0-9][A-Za-z])", written))
    return 0 < 2 * letters <= 3 * in_words and 4 * borders <= len(re.findall("[0-9A-Za-z]", written))


def _num_in_words(written: str) -> int:
    """The letters in runs of which two thirds of the pairs are common."""
    count = 0
    for run in re.findall("[A-Z]+[a-z]*|[a-z]+", written):
        pairs = [first + second for first, second in itertools.pairwise(run.lower())]
        if len(run) > 2 and 3 * sum(pair in _PAIRS for pair in pairs) >= 2 * len(pairs):
            count += len(run)
    return count


def is_mixed(text: bytes) -> bool:
    return all(re.search(sort, text) for sort in (rb"[0-9]", rb"[A-Z]", rb"[a-z]"))


def is_cased(text: bytes) -> bool:
    letters = re.findall(rb"[A-Za-z]", text)
    return len(letters) <= 4 * len([letter for letter in letters if letter.isupper()]) <= 3 * len(letters)


def _issued(text: bytes, offset: int) -> Span | None:
    """The token with the longest prefix, and of those with the same prefix the first in the table."""
    spans = []
    for kind, condition, pattern in PATTERNS if _ANY_PREFIX.match(text, offset) else []:
        match = pattern.match(text, offset)
        if not match or (condition == "mixed" and not is_mixed(match[2])) or (condition == "cased" and not is_cased(match[2])):
            continue
        if (len(match[1]) <= 4 or condition == "unnamed") and is_name(match[2]):
            continue
        if is_random(match[2], 2000 if condition == "loose" else 2800):
            start = match.start(2) if match[1].endswith((b"/", b"=", b'"')) else offset
            spans.append((len(match[1]), (start, match.end(), kind)))
    return max(spans, key=lambda span: span[0])[1] if spans else None


def _shaped(text: bytes, floor: int, offset: int) -> Span | None:
    run = re.compile(_T + b"+").match(text, offset)
    assert run is not None
    if text[run.end() : run.end() + 1] == b"~" and run.end() - 5 >= floor and b"-us" not in run[0]:
        start = run.end() - 5
        match = _ENTRA.match(text, start)
        is_first = start == floor or not re.match(rb"[0-9A-Za-z_~.]", text[start - 1 : start])
        is_long = re.compile(rb"[0-9A-Za-z_~.\-]{64}").match(text, run.end() + 1)
        if not match or is_long or not is_first or not 31 <= len(match[1]) <= 34:
            return None
        is_drawn = is_random(match[0], 2800) and not is_name(match[0])
        return (start, match.end(), KINDS.index("azure")) if is_mixed(match[0]) and is_drawn else None
    for kind, pattern in _SHAPES:
        match = re.compile(pattern).match(text, offset)
        if match and is_random(match[0], 2800) and not is_name(match[0]) and (kind == "mailchimp" or is_mixed(match[0])):
            is_bot = kind != "discord" or is_cased(match[1])
            return (offset, match.end(), KINDS.index(kind)) if is_bot else None
    return None


def _token(text: bytes, floor: int, offset: int) -> Span | None:
    if text[offset : offset + 1] == b"-":
        pem = _PEM.match(text, offset)
        is_key = pem is not None and len(re.findall(rb"[0-9A-Za-z+/]", pem[1])) >= 64
        return (offset, pem.end(), KINDS.index("private_key")) if pem is not None and is_key else None
    jwt = _JWT.match(text, offset)
    if jwt and (offset == floor or text[offset - 1 : offset] != b"."):
        return offset, jwt.end(), KINDS.index("jwt")
    return _issued(text, offset) or _shaped(text, floor, offset)


def _is_hex(value: bytes) -> bool:
    is_both = re.search(rb"[0-9]", value) and re.search(rb"[A-Fa-f]", value)
    return bool(is_both and re.fullmatch(rb"[0-9A-Fa-f\-]{32,}", value))


def _is_no_name(value: bytes) -> bool:
    num_digits = len(re.findall(rb"[0-9]", value))
    is_drawn = is_mixed(value) and num_digits > 1 and is_cased(value)
    return is_drawn or 5 * num_digits >= len(value) > num_digits


def _signature(text: bytes, floor: int, offset: int) -> Span | None:
    """The signature of a URL of Azure at its `=`: 32 bytes in base64, also in percent-encoding."""
    if offset - 4 < floor or not re.fullmatch(rb"[?&;]sig=", text[offset - 4 : offset + 1]):
        return None
    match = re.compile(rb"(?=([0-9A-Za-z+/%]{0,81}))\1(?:(?<=%..)(?<=[dD])|=)(?![0-9A-Za-z_\-+/=~%])").match(text, offset + 1)
    if not match or not 44 <= len(match[0]) <= 80 or not is_random(match[0], 2800) or is_name(match[0]):
        return None
    return offset + 1, match.end(), KINDS.index("azure")


def _value(text: bytes, start: int, quote: bytes) -> bytes | None:
    """The value of an assignment that is no token: in quotes, or without."""
    if not quote:
        plain = re.compile(rb"[0-9A-Za-z_\-+/=~]{20,200}+(?=[ \t\r\n'\"`;,)\]}<>&|\\]|\Z)").match(text, start)
        return plain[0] if plain and (_is_hex(plain[0]) or _is_no_name(plain[0])) else None
    value = re.compile(rb"[0-9A-Za-z!#$%%&()*+,\-./:;=?@\[\]^_|~]{8,200}(?=%b)" % re.escape(quote)).match(text, start)
    if not value or not re.search(rb"[0-9]", value[0]) or not re.search(rb"[A-Za-z]", value[0]):
        return None
    return None if re.fullmatch(rb"[$)+,.].*|(?:%b|\.)+\(.*\)" % _T, value[0]) else value[0]


def _assigned(text: bytes, floor: int, offset: int, millibits: int) -> Span | None:
    before = text[max(floor, offset - 40) : offset]
    before = before.rstrip(b":?") if text[offset : offset + 1] == b"=" else before
    if text[offset : offset + 1] == b"," and not before.endswith((b"'", b'"')):
        return _signature(text, floor, offset)
    named = re.search(rb"(%b*)(?:\\?[\"'])?\]?[ \t]*\Z" % _T, before)
    assert named is not None
    name = re.sub(rb"[_\-]", b"", named[1]).lower()[-8:]
    if name != b"authorization"[-8:] and not any(name.endswith(word[-8:]) for word in _NAMES.split()):
        return _signature(text, floor, offset)
    sign = re.compile(rb"(?:=>|:=|[=:,])[ \t]{0,4}(\\?[\"'`]|)").match(text, offset)
    assert sign is not None
    start, quote = sign.end(), sign[1]
    if not quote and text[offset : offset + 1] == b",":
        return None
    if name == b"authorization"[-8:]:
        scheme = re.compile(rb"[A-Za-z\-]{1,12}+ ").match(text, start)
        start, quote = scheme.end() if scheme else start, b""
    if re.compile(_T).match(text, start) and _token(text, floor, start):
        return None
    azure = re.compile(rb"([0-9A-Za-z+/]{86})==").match(text, start)
    if azure:
        return (start, azure.end(), 2) if is_random(azure[1], 2800) else None
    aws = re.compile(rb"[0-9A-Za-z+/]{40}(?![0-9A-Za-z+/=])").match(text, start)
    if aws and is_mixed(aws[0]):
        return (start, aws.end(), 0) if is_random(aws[0], 2800) and not is_name(aws[0]) else None
    value = _value(text, start, quote)
    if value is None:
        return None
    least = min(millibits, 2800) if _is_hex(value) else millibits
    is_drawn = is_random(value, least) and not is_name(value)
    return (start, start + len(value), KINDS.index("assignment")) if is_drawn else None


def find(text: bytes, wanted: int, millibits: int) -> list[Span]:
    """(start, stop, kind) of every secret, as the kernel writes them."""
    spans, offset, floor = [], 0, 0
    token = re.compile(rb"%b+|[=:,]" % _T)
    while match := token.search(text, offset):
        is_sign = match[0] in (b"=", b":", b",")
        span = _assigned(text, floor, match.start(), millibits) if is_sign else _token(text, floor, match.start())
        span = span if span and wanted >> span[2] & 1 else None  # what is not wanted hides nothing inside it
        offset = span[1] if span else match.end()
        floor = span[1] if span else floor
        spans += [span] if span else []
    return spans
