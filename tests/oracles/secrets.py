"""What `datapipe/kernels/redact/{keywords,tokens,assignments,copies}.py` find, by regular expressions, one text at a time.

The rules are read from the table of the stage.
"""

import re
from functools import cache
from typing import Any

from datapipe.kernels.redact.tokens import members_of, parsed_runs
from stages.redact._rules import built_in, spelt_names
from stages.redact.secrets import KINDS
from tests.oracles.randomness import best_evidence, has_entropy, is_placeholder

Span = tuple[int, int, int]
Hit = tuple[int, str]
_T = rb"[0-9A-Za-z_\-]"


def find_keywords(text: bytes, words: list[str]) -> list[Hit]:
    """(position, keyword) in text order, at one position the shortest first."""
    folded, listed = text.lower().decode("latin-1"), set(words)
    lengths = sorted({len(word) for word in words})
    return [
        (start, folded[start : start + length])
        for start in range(len(folded))
        for length in lengths
        if start + length <= len(folded) and folded[start : start + length] in listed
    ]


def _members(name: str) -> bytes:
    alphabet = name if len(name) == 1 else built_in()["alphabets"][name]
    return b"[" + b"".join(re.escape(bytes([byte])) for byte in members_of(alphabet)) + b"]"


def _run(run: tuple[str, int, int]) -> bytes:
    return run[0].encode() if not run[1:] > (0, 0) else b"%b{%d,%d}+" % (_members(run[0]), run[1], run[2])


@cache
def _forms(keyword: str) -> list[tuple[dict[str, Any], str, re.Pattern[bytes] | None]]:
    """The rules of a keyword in small letters: the rule, the keyword as it is written, the pattern of what is behind it."""
    found = []
    for rule in built_in()["issuers"]:
        for written in rule["keywords"]:
            if written.lower() == keyword and rule["form"] == "pem":
                found.append((rule, written, None))
            elif written.lower() == keyword:
                runs = parsed_runs(rule["form"])
                last = [run for run in runs if run[1:] != (0, 0)][-1]
                end = b"" if rule.get("open") else b"(?!%b|(?!\\.(?!%b))%b)" % (_T, _T, _members(last[0]))
                found.append((rule, written, re.compile(b"".join(map(_run, runs)) + end)))
    return found


_PEM = re.compile(
    rb"-----BEGIN(?=[A-Z0-9 ]{1,40}-----) [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    rb"((?:(?!-----)[\s\S]){0,16384})-----END[A-Z0-9 ]{0,40}-----"
)


def _before(text: bytes, floor: int, position: int, written: str) -> int:
    """The start of the runs before a keyword; -1 where they are not there."""
    for name, least, most in parsed_runs(written)[::-1]:
        match = re.search(b"%b{0,%d}\\Z" % (_members(name), most), text[max(floor, position - most) : position])
        assert match is not None
        if len(match[0]) < least:
            return -1
        position -= len(match[0])
    return position


def fits(drawn: bytes, rule: dict[str, Any], least: float) -> bool:
    """Whether the random part of a token is as its rule wants it."""
    if rule.get("mixed") and not all(re.search(members, drawn) for members in (rb"[0-9]", rb"[A-Z]", rb"[a-z]")):
        return False
    is_drawn = has_entropy(drawn, round(1000 * rule.get("entropy", 3.5))) and best_evidence(drawn) >= 64 * least
    return is_drawn and not is_placeholder(drawn)


def _token(text: bytes, floor: int, position: int, rule: dict[str, Any], written: str, pattern: Any) -> tuple[int, int] | None:
    if not text.startswith(written.encode(), position):
        return None
    if pattern is None:
        pem = _PEM.match(text, position)
        is_key = pem is not None and len(re.findall(rb"[0-9A-Za-z+/]", pem[1])) >= 64
        return (position, pem.end()) if pem is not None and is_key else None
    start = _before(text, floor, position, rule.get("before", ""))
    match = pattern.match(text, position + len(written))
    if start < 0 or match is None:
        return None
    if start > floor:
        before = text[start - 1 : start]
        if before == rule.get("unless", "").encode() or (re.match(_T, before) and re.match(_T, text[start : start + 1])):
            return None
    has_group = "(" in rule["form"]
    first, stop = match.span(1) if has_group else (start, match.end())
    drawn = text[first:stop] if has_group else text[start : match.end()] if start < position else match[0]
    least = rule.get("evidence", 10 if len(written) <= 4 else 0)
    millibits = round(1000 * rule.get("entropy", 3.5))
    if millibits and not fits(drawn, rule, least):
        return None
    is_trimmed = stop == match.end() and text[stop - 1 : stop] in (b",", b";")
    return first, stop - is_trimmed


def tokens(text: bytes, hits: list[Hit], wanted: int) -> list[Span]:
    """(start, stop, kind) of every token, as `match_forms` writes them."""
    spans, floor, position = list[Span](), 0, -1
    for position in sorted({hit[0] for hit in hits}):
        if position < floor:
            continue
        best = None
        for keyword in (hit[1] for hit in hits if hit[0] == position):
            for rule, written, pattern in _forms(keyword):
                span, kind = _token(text, floor, position, rule, written, pattern), KINDS.index(rule["kind"])
                if span is not None and wanted >> kind & 1:
                    best = (*span, kind)
                    break
        if best is not None:
            spans.append(best)
            floor = best[1]
    return spans


_OPENING = re.compile(rb"(?:[A-Za-z@](?=['\"]))?(\\(?=.))?(['\"`])(?:\2\2)?")
_SIGN = re.compile(rb"(?:=>|:=|::=|\?=|\|\|=|=(?![=~])|:(?!:))")
_TYPE = re.compile(rb"[ \t]{0,16}(?:[0-9A-Za-z_\-.&]|\[|\]){1,24}(?<![ \t])[ \t]{1,16}=(?!=)(?=[\s\S])")
_LOGIN = re.compile(rb"login[\x00-\x20]+[^\x00-\x20]+[\x00-\x20]+\Z")
_LINK = re.compile(rb"(?=[\s\S])[\x00-\x20,'\"]{1,40}value['\"]?[ \t]{0,16}[=:]", re.IGNORECASE)


def _sign(text: bytes, start: int, stop: int, is_header: bool) -> tuple[int, str]:
    """Where a value may start behind a name, and what may be there: "any", "quoted", "element", ""."""
    closing = re.compile(rb"(\\(?=.))?(['\"])?(?(2)[\])]|\])?(?:\*\*(?=.))?", re.DOTALL).match(text, stop)
    assert closing is not None
    first = closing.end()
    blanks = re.compile(rb"[ \t]{0,16}").match(text, first)
    assert blanks is not None
    j = blanks.end()
    if j + 1 >= len(text):
        return j, ""
    sign = _SIGN.match(text, j)
    if sign is not None and sign[0] == b":":
        typed = _TYPE.match(text, j + 1)
        return (typed.end() if typed else j + 1), "any"
    if sign is not None:
        return sign.end(), "any"
    if text[j : j + 1] in (b"=", b":"):
        return j, ""
    if text[j : j + 2] in (b"||", b"??"):
        return j + 2, "quoted"
    if text[j : j + 1] == b"|":
        return j + 1, "cell"
    if text[j : j + 1] == b">" and j == first:
        return j + 1, "element"
    if link := _LINK.match(text, first):
        return link.end(), "any"
    if (text[j : j + 1] == b"," and closing[2]) or (text[j : j + 1] == b"(" and j == first):
        return j + 1, "quoted"
    if j == first:
        return j, ""
    if (
        is_header
        or _LOGIN.search(text, max(0, start - 69), start)
        or re.search(rb"(?<![0-9A-Za-z_\-])-[0-9A-Za-z_\-]{0,63}\Z", text[:start])
    ):
        return j, "any"
    typed = _TYPE.match(text, j)
    return (typed.end(), "any") if typed else (j, "bare")


def _quoted(text: bytes, start: int, quote: bytes, is_escaped: bool) -> bytes:
    mark = re.escape(quote)
    if is_escaped:
        inside = re.compile(rb"((?:[!-\[\]-~](?<!%b)|\\(?!%b)[!-~])*)\\%b" % (mark, mark, mark))
    else:
        inside = re.compile(rb"((?:[!-\[\]-~](?<!%b)|\\[!-~])*)%b" % (mark, mark))
    match = inside.match(text, start, start + 4097)
    return match[1] if match else b""


def _is_template(value: bytes) -> bool:
    return bool(re.search(rb"[${#%]\{[\s\S]*\}|<%", value))


def _is_code(value: bytes) -> bool:
    if _is_template(value):
        return True
    if re.match(rb"\$[0-9A-Za-z_\-{(]", value):
        return len(value) < 20 or not re.search(rb"[0-9]", value) or value[1:2] in (b"{", b"(")
    if re.match(rb"0[xX][0-9A-Fa-f]{0,40}[\s\S]{0,3}\Z", value) and re.match(rb"(?=(0.[0-9A-Fa-f]*))\1[\s\S]{0,3}\Z", value):
        return True
    if re.search(rb"/[0-9A-Za-z_\-.]*\.[A-Za-z]{2,4}\Z", value):
        return True
    if re.fullmatch(rb"<.*>|\{.*\}|\[.*\]|[)+,.].*[(+,.]", value, re.DOTALL):
        return True
    call = re.match(rb"[0-9A-Za-z_\-.:&*]+[(\[]", value)
    return bool(call and (value[-1:] in b")];:,{(" or value[-2:-1] == b")"))


def _reserve(value: bytes) -> int:
    """Bits that slugs need more than other values."""
    parts = re.split(rb"[^0-9A-Za-z]", value)
    if len(parts) == 1 or re.search(rb"(?!=[A-Za-z])[^0-9A-Za-z_\-./]", value):
        return 0
    is_slug = max(map(len, parts)) < 8 and not (re.search(rb"[a-z]", value) and re.search(rb"[A-Z]", value))
    return 14 if is_slug or not re.search(rb"[0-9]", value) else 0


def _is_secret(value: bytes, rule: dict[str, Any], least: int, millibits: int) -> bool:
    if not rule["length"] <= len(value) <= 4096 or not re.search(rb"[A-Za-z]", value):
        return False
    if not has_entropy(value, millibits) or 5 * len(re.findall(rb"[0-9A-Za-z]", value)) < 2 * len(value):
        return False
    return best_evidence(value) >= 64 * (least + _reserve(value)) and not _is_code(value) and not is_placeholder(value)


def _ends_in(text: bytes, words: list[str]) -> bool:
    tail = re.search(rb"[0-9A-Za-z_\-. ]*\Z", text)
    assert tail is not None
    letters = re.sub(rb"[^0-9A-Za-z]", b"", tail[0]).lower()[-8:]
    return any(letters.endswith(word.encode()[-8:]) for word in words)


def _line(text: bytes, start: int) -> bytes:
    match = re.compile(rb"[!-~]{0,4097}").match(text, start)
    assert match is not None
    rest = re.compile(rb"[ \t]{0,16}(?:[\n\r#]|\Z)").match(text, match.end())
    is_short = len(match[0]) < 4097 or match.end() == len(text)
    return re.sub(rb"[;,]\Z", b"", match[0]) if rest and is_short else b""


def _begins_line(text: bytes, start: int) -> bool:
    low = max(0, start - 64)
    name = re.search(rb"[0-9A-Za-z_\-.]*\Z", text[low:start])
    assert name is not None
    before = re.search(rb"(?:[\x00-\x09\x0b-\x20A-Za-z\-#;/*$:>])*\Z", text[low : low + name.start()])
    assert before is not None
    first = low + before.start()
    blanks = len(re.findall(rb"(?<=[^\x00-\x20])[\x00-\x20]", before[0]))
    return (first == 0 or (first > low and text[first - 1 : first] == b"\n")) and blanks < 3


_PARTED = re.compile(
    rb"[)\]}](?![0-9A-Za-z])"
    rb"|[&,;][0-9A-Za-z_\-.]{0,23}(?:\Z|=)"
    rb"|[,;](?:[0-9A-Za-z_\-.]{0,22}:|[ \t\r\n'\"`;,)\]}<>&|\\])"
    rb"|&[0-9A-Za-z_\-.]{0,22}[;\x00-\x20'\"]|&[0-9A-Za-z_\-.]{23}"
)


def _word(text: bytes, start: int) -> bytes:
    stop = start
    while stop < min(len(text), start + 4097) and (
        re.match(rb"[0-9A-Za-z_\-+/=~.!@#%^*$?]", text[stop : stop + 1])
        or (re.match(rb"[&,;)\]}]", text[stop : stop + 1]) and not _PARTED.match(text, stop))
    ):
        stop += 1
    if stop == start + 4097 < len(text):
        return b""
    follows = re.compile(rb"[ \t\r\n'\"`;,)\]}<>&|\\]|\Z").match(text, stop)
    return re.sub(rb"[.!?]+\Z", b"", text[start:stop]) if follows else b""


def _values(text: bytes, start: int, stop: int, rule: dict[str, Any]) -> list[tuple[int, bytes, int]]:
    """(start, value, least evidence) of what may be the value of a name, in the order in which they are tried."""
    is_header = rule.get("header", False)
    after, wants = _sign(text, start, stop, is_header)
    blanks = re.compile(rb"(?:\*\*(?=.))?[ \t]{0,16}", re.DOTALL).match(text, after)
    assert blanks is not None
    first = blanks.end()
    if not wants:
        return []
    if wants == "element":
        match = re.compile(rb"([!-;=-~]*)</").match(text, first, first + 4097)
        return [(first, match[1] if match else b"", rule["plain"])]
    opening = _OPENING.match(text, first)
    first = opening.end() if opening else first
    scheme = re.compile(rb"[A-Za-z\-]{1,12} ").match(text, first)
    if scheme and (is_header or _ends_in(scheme[0][:-1], built_in()["schemes"])):
        first = scheme.end()
    if opening:
        return [(first, _quoted(text, first, opening[2], opening[1] is not None), rule["quoted"])]
    if wants == "quoted" or (wants in ("bare", "cell") and rule.get("word")):
        return []
    if wants == "cell":
        value = _word(text, first)
        is_cell = re.compile(rb"[ \t]{0,16}[|\n]").match(text, first + len(value))
        return [(first, value, rule["plain"])] if is_cell else []
    if wants == "bare":
        has_is = text.startswith(b"is ", first)
        value = _word(text, first + 3 * has_is)
        return [(first + 3 * has_is, value, rule["plain"] + 10 * (not has_is))] if re.search(rb"[0-9]", value) else []
    values = [(first, _word(text, first), rule["plain"])]
    if text[start - 1 : start] not in (b"?", b"&") or start == 0:
        values = [(first, _line(text, first), rule["plain"])] * _begins_line(text, start) + values
    return values


def _is_name(text: bytes, start: int, stop: int, rule: dict[str, Any]) -> int:
    """The stop of a name, digits included; -1 where it is none."""
    match = re.compile(rb"(?:_(?=[0-9]))?[0-9]*(?![0-9A-Za-z_\-\x80-\xff])").match(text, stop)
    if match is None:
        return -1
    before = text[start - 1 : start] if start else b""
    is_hump = re.match(rb"[a-z]", before) and text[start : start + 1] < b"\x60"
    if rule.get("word") and re.match(rb"[0-9A-Za-z\x80-\xff]", before) and not is_hump:
        return -1
    if _ends_in(text[max(0, start - 20) : start], rule.get("unless", [])):
        return -1
    is_type = re.search(rb"::[0-9A-Za-z_\-]*\Z", text[max(0, start - 64) : start])
    return -1 if is_type and text[match.end() : match.end() + 1] in (b"'", b'"') else match.end()


@cache
def _names() -> dict[str, dict[str, Any]]:
    return {name: rule for rule in built_in()["assignments"] for name in spelt_names(rule)}


def values(text: bytes, hits: list[Hit], wanted: int, millibits: int) -> list[Span]:
    """(start, stop, kind) of every value behind a name, as `match_names` writes them."""
    spans, floor = list[Span](), 0
    for position, keyword in hits:
        rule = _names().get(keyword)
        if rule is None or position < floor:
            continue
        stop = _is_name(text, position, position + len(keyword), rule)
        for start, value, least in _values(text, position, stop, rule) if stop >= 0 else []:
            if _is_secret(value, rule, least, millibits):
                is_uuid = len(value) == 36 and value[8:9] == b"-" and _is_hexadecimal(value)
                kind = _kind(value)
                if not (rule.get("weak") and is_uuid) and wanted >> kind & 1:
                    spans.append((start, start + len(value), kind))
                    floor = start + len(value)
                break
    return spans


def _is_hexadecimal(value: bytes) -> bool:
    return bool(re.fullmatch(rb"[0-9A-Fa-f\-]+", value) and re.search(rb"[0-9]", value) and re.search(rb"[A-Fa-f]", value))


def _kind(value: bytes) -> int:
    if re.fullmatch(rb"[0-9A-Za-z+/]{40}", value) and not _is_hexadecimal(value):
        return KINDS.index("aws")
    return KINDS.index("azure" if re.fullmatch(rb"[0-9A-Za-z+/]{86}==?", value) and value.endswith(b"==") else "assignment")


def copies(text: bytes, spans: list[Span]) -> list[Span]:
    """What is written like a span, outside all spans."""
    texts = dict[bytes, int]()
    for start, stop, kind in spans:
        if stop - start >= 12 and best_evidence(text[start:stop]) >= 8 * 64:
            texts.setdefault(text[start:stop], kind)
    found, j = [], 0
    while j < len(text):
        inside = next((span for span in spans if span[0] <= j < span[1]), None)
        limit = min([span[0] for span in spans if span[0] > j], default=len(text))
        value = max((one for one in texts if text.startswith(one, j) and j + len(one) <= limit), key=len, default=b"")
        if inside is not None:
            j = inside[1]
        elif value:
            found.append((j, j + len(value), texts[value]))
            j += len(value)
        else:
            j += 1
    return found
