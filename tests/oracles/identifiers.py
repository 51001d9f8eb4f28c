"""Cards, IBANs, social security numbers and candidates for phone numbers by regular expressions and plain arithmetic."""

import re

from datapipe.kernels.redact import phone_words
from tests.oracles.pii import sort_of

CARD, IBAN, SSN, PHONE, NATIONAL, ANNOUNCED = 4, 5, 6, 7, 9, 10
WANTS_CARD, WANTS_IBAN, WANTS_SSN, WANTS_PHONE, AMERICAN_SHAPES, TRUNK_SHAPES = 1, 2, 4, 8, 16, 32
Span = tuple[int, int, int]

_BEFORE = rb"(?<![0-9A-Za-z_\-/$%+&@])(?<![^A-Za-z\x80-\xff]\.)(?<!\A\.)"
_AFTER = rb"(?![0-9A-Za-z_@%])(?![.\-][0-9])"
_CARD_WORDS = (
    b"card cards visa mastercard maestro amex dankort uatp credit debit cc karte karten kreditkarte carte tarjeta carta cartao "
    b"kort kreditkort kaart creditcard karta karty kartu kartica"
)
_SSN_WORDS = b"ssn ssns security itin itins atin tin tax taxpayer"
_SSN_FILLERS = b" identification identifier id ids"
_WORDS_BEHIND = rb"(?i:[ ,(]{1,2}(?:ssn|itin|atin|tin)(?![A-Za-z]))"
_TYPESET = dict.fromkeys("\xa0\u2007\u2009\u200a\u202f\u3000", " ")
_TYPESET |= dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
_TYPESET |= dict(zip("（）＋－．／０１２３４５６７８９", "()+-./0123456789", strict=True))
_PHONE_WORDS = phone_words.spellings(phone_words.WORDS)
_PHONE_FILLERS = set(map(phone_words.folded, phone_words.FILLERS.split()))
_FILLERS = b"number numbers no nr num is was at on me us our my your the or to home office work direct line free toll"
_IBANS = (
    "NO15 BE16 DK18 FI18 FK18 FO18 GL18 NL18 SD18 MK19 SI19 AT20 BA20 EE20 KZ20 LT20 LU20 MN20 XK20 CH21 HR21 LI21 LV21 "
    "BG22 BH22 CR22 DE22 GB22 GE22 IE22 ME22 RS22 VA22 AE23 GI23 IL23 IQ23 OM23 SO23 TL23 AD24 CZ24 ES24 MD24 PK24 RO24 "
    "SA24 SE24 SK24 TN24 VG24 LY25 PT25 ST25 IS26 TR26 BI27 DJ27 FR27 GR27 IT27 MC27 MR27 SM27 AL28 AZ28 BY28 CY28 DO28 "
    "GT28 HN28 HU28 LB28 NI28 PL28 SV28 BR29 EG29 PS29 QA29 UA29 JO30 KW30 MU30 YE30 MT31 SC31 LC32 RU33"
)
_LENGTH_OF = {written[:2]: int(written[2:]) for written in _IBANS.split()}
_LONG, _ANY, _SWITCH = {16, 17, 18, 19}, set(range(12, 20)), {16, 18, 19}
_MAESTRO = (5018, 5020, 5038, 5893, 6304, 6759, 6761, 6762, 6763, 676770, 676774)
_SURE_ISSUERS = [
    *((first, last, {16}) for first, last in [(51, 55), (2221, 2720), (2205, 2205), (9792, 9792), (5019, 5019), (637, 639)]),
    *((first, last, {16}) for first, last in [(508500, 508999), (606985, 608500), (8172, 8201), (506699, 506778)]),
    *((first, last, {16}) for first, last in [(509000, 509999), (604201, 604219), (506199, 506432), (588845, 588851)]),
    *((one, one, {16}) for one in (504175, 627780, 636297, 636368, 606282, 5614, 8600, 9860, 5078, 603522, 589657, 589562)),
    *((one, one, {16}) for one in (9112, 9051, 286900, 502275, 6054)),
    *((one, one, {15}) for one in (34, 37, 1800, 2131)),
    *((first, last, {14}) for first, last in [(300, 305), (3095, 3095), (36, 36), (38, 39)]),
    *((first, last, _LONG) for first, last in [(3528, 3589), (6011, 6011), (644, 649), (62, 62), (65, 65), (8110, 8171)]),
    *((first, last, _LONG) for first, last in [(2200, 2204), (506099, 506198), (507865, 507964), (636, 636)]),
    *((first, last, _LONG) for first, last in [(604001, 604200), (6706, 6706), (6709, 6709), (6771, 6771)]),
    *((one, one, _LONG) for one in _MAESTRO),
    *((one, one, _SWITCH) for one in (4903, 4904, 4905, 4911, 4936, 564182, 633110, 6333, 6334, 6767)),
    *((one, one, {16, 19}) for one in (4, 9704)),
]
_RARE_ISSUERS = [
    (1, 1, {15}),
    (4, 4, {13}),
    *((one, one, {16}) for one in (35, 1946, 60, 81, 82)),
    *((one, one, _LONG) for one in (30, 36, 38, 39)),
    *((first, last, _ANY) for first, last in [(50, 50), (56, 69)]),
    (31, 31, {19}),
    (3841, 3841, {13, 16, 19}),
]


def _is_clear(text: bytes, floor: int, start: int) -> bool:
    """Whether the number at `start` is not part of a longer token that begins before it."""
    return start >= floor and bool(re.compile(_BEFORE).match(text[floor:], start - floor))


def _follows(text: bytes, start: int, words: bytes, fillers: bytes = _FILLERS, num_words: int = 3) -> bool:
    """Whether one of the last words is among `words`, with only fillers after it."""
    before = re.split(rb"[0-9<>\xa7]", text[max(0, start - 40) : start])[-1]
    for word in re.findall(rb"[A-Za-z]+", before)[: -num_words - 1 : -1]:
        if word.lower()[:8] in {listed[:8] for listed in words.split()}:
            return True
        if word.lower()[:8] not in [filler[:8] for filler in fillers.split()]:
            return False
    return False


def _follows_phone_word(text: bytes, start: int) -> bool:
    """Whether one of the four last words announces a phone number, in any script, with only fillers after it."""
    characters: list[str] = []
    is_whole = True
    for character in reversed(text[:start].decode("utf-8", errors="surrogateescape")):
        is_whole = len(characters) < 40 and len("".join(characters).encode("utf-8", errors="surrogateescape")) < 100
        if not is_whole:
            break
        characters.append(character)
    runs: list[str] = []
    last = ""
    for character in characters:
        if re.match("[0-9<>０-９]", character):
            is_whole = True
            break
        if character in phone_words.SYMBOLS:
            runs.append(character)
        sort = _letters_of(character)
        if sort and sort == last:
            runs[-1] = character + runs[-1]
        elif sort:
            runs.append(character)
        last = sort
    else:
        is_whole |= not last
    for number, run in enumerate(runs[:4]):
        if run in phone_words.SYMBOLS:
            return True
        word = phone_words.folded(run)
        if _letters_of(run[0]) == "unspaced" and any(word[at:] in _PHONE_WORDS for at in range(len(word))):
            return True
        is_cut = not is_whole and number == len(runs) - 1
        if is_cut or word in _PHONE_WORDS or word not in _PHONE_FILLERS:
            return not is_cut and word in _PHONE_WORDS
    return False


def _letters_of(character: str) -> str:
    """`spaced` or `unspaced` for a letter, ASCII ones included; nothing for all other characters."""
    return ("spaced" if character.isalpha() else "") if character.isascii() else sort_of(character)


def _is_issued(digits: str, issuers: list[tuple[int, int, set[int]]]) -> bool:
    return any(first <= int(digits[: len(str(first))]) <= last and len(digits) in lengths for first, last, lengths in issuers)


def _is_card(text: bytes, start: int, written: bytes) -> bool:
    digits = re.sub(r"\D", "", written.decode())
    doubled = [int(digit) * (1 + index % 2) for index, digit in enumerate(reversed(digits))]
    if sum(number // 10 + number % 10 for number in doubled) % 10:
        return False
    is_told = _follows(text, start, _CARD_WORDS) or re.fullmatch(rb"1[0-9]{3}([ -])[0-9]{5}\1[0-9]{6}", written)
    return _is_issued(digits, _SURE_ISSUERS) or bool(_is_issued(digits, _RARE_ISSUERS) and is_told)


def _card(text: bytes, floor: int, start: int) -> int:
    """The stop of the card at `start`, or 0."""
    if start - 2 >= floor and re.match(rb"[0-9]{4} ", text[start:]) and re.match(rb"[0-9] ", text[start - 2 :]):
        return 0
    table = re.compile(rb"[0-9]{4}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{4}\1[0-9]{4}")
    if table.match(text, start):
        return 0
    for form in (
        rb"[0-9]{12,19}",
        rb"[0-9]{4}([ -])[0-9]{6}\1[0-9]{4,5}",
        rb"1[0-9]{3}([ -])[0-9]{5}\1[0-9]{6}",
        rb"[0-9]{4}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{4}\1[0-9]{1,3}",
        rb"[0-9]{4}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{1,4}",
    ):
        match = re.compile(form + _AFTER).match(text, start)
        if match and _is_card(text, start, match[0]):
            return match.end()
    return 0


def _iban(text: bytes, start: int) -> int:
    """The stop of the IBAN at `start`, or 0."""
    length = _LENGTH_OF.get(text[start : start + 2].decode("latin-1").upper(), 0)
    sign = re.escape(text[start + 4 : start + 5]) if text[start + 4 : start + 5] in (b" ", b"-") else b""
    groups = [b"[0-9A-Za-z]{4}"] * (length // 4) + ([b"[0-9A-Za-z]{%d}" % (length % 4)] if length % 4 else [])
    match = re.compile(rb"(?=[A-Za-z]{2}[0-9]{2})" + sign.join(groups) + _AFTER).match(text, start)
    if not length or not match:
        return 0
    written = re.sub(rb"[ -]", b"", match[0]).decode()
    if written not in (written.upper(), written.lower()):
        return 0
    number = "".join(str(int(character, 36)) for character in written[4:] + written[:4])
    return match.end() if int(number) % 97 == 1 else 0


def _ssn(text: bytes, start: int) -> tuple[int, bool]:
    """The stop of digits written like an SSN, or 0, and whether the SSN is valid."""
    match = re.compile(rb"[0-9]{3}-[0-9]{2}-[0-9]{4}" + _AFTER).match(text, start)
    form = match or re.compile(rb"(?:[0-9]{9}|[0-9]{3} [0-9]{2} [0-9]{4})" + _AFTER).match(text, start)
    is_before = _follows(text, start, _SSN_WORDS, _FILLERS + _SSN_FILLERS, 4)
    is_announced = is_before or (form is not None and re.compile(_WORDS_BEHIND).match(text, form.end()))
    if not match and is_announced:
        match = form
    if not match:
        return 0, False
    digits = re.sub(rb"\D", b"", match[0])
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    is_taxpayer = re.match(rb"9[0-9]{2}(?:5[0-9]|6[0-5]|7[0-9]|8[0-8]|9[0-9])", digits) and is_announced
    is_reserved = re.fullmatch(rb"987-65-432[0-9]", match[0])
    is_area = area not in (b"000", b"666") and (area < b"900" or (is_taxpayer and not is_reserved))
    is_valid = bool(is_area) and group != b"00" and serial != b"0000"
    return (match.end(), is_valid) if is_valid or b"-" in match[0] else (0, False)


def _body(text: bytes, start: int) -> bytes:
    """The digits and separators of a phone number."""
    match = re.match(rb"[0-9](?:[ \-./()]{0,2}[0-9]){0,14}", text[start:])
    assert match is not None
    written = match[0]
    for opened in re.finditer(rb"[ \-./()]?\(", written):
        if len(re.sub(rb"\D", b"", written[: opened.start()])) >= 10:
            written = written[: opened.start()]
            break
    for another in re.finditer(rb"[ \-./()]+(?=0)", written):  # behind ten digits with a trunk prefix begins another number
        with_trunk = written.startswith(b"0") and re.match(rb"0[1-9]", text[start + another.end() :])
        full = 12 if text[start + 1 : start + 2] == b"0" else 10
        if with_trunk and len(re.sub(rb"\D", b"", written[: another.start()])) >= full:
            return written[: another.start()]
    if re.match(rb"[0-9]", text[start + len(written) :]):
        cut = re.match(rb"(.*[0-9])[ \-./()]+[0-9]+\Z", written)
        written = cut[1] if cut else b""
    return written if len(re.sub(rb"\D", b"", written)) >= 7 else b""


def _is_trunk(written: bytes) -> bool:
    if re.fullmatch(rb"0[1-9][ \-)][0-9]{2}(?:[ -][0-9]{2}){3}", written):
        return True
    if re.fullmatch(rb"00(?: [1-9][0-9 \-]*|[1-9][0-9]{0,2}[ \-][0-9 \-]*)", written):
        return 11 <= len(re.sub(rb"\D", b"", written)) <= 15
    shape = re.fullmatch(rb"0[1-9][0-9]{1,3}[ \-)][0-9 \-]*", written)
    return bool(shape) and 10 <= len(re.sub(rb"\D", b"", written)) <= 12


def _extended(text: bytes, stop: int) -> int:
    """The stop of the number and its extension, 0 where it is not free-standing."""
    match = re.compile(rb" ?(?:ext\.?|x) ?[0-9]{1,6}(?![0-9])").match(text, stop)
    stop = match.end() if match else stop
    return stop if re.compile(_AFTER).match(text, stop) else 0


def _phone(text: bytes, floor: int, first: int, wanted: int) -> Span | None:
    before = text[first - 1 : first] if first > floor else b""
    start = first - 1 if before in (b"+", b"(") else first
    if not _is_clear(text, floor, start) or (before == b"+" and text[max(0, start - 1) : start] in (b")", b"]")):
        return None
    stop = first + len(_body(text, first))
    if before == b"+":
        return (start, _extended(text, stop), PHONE) if stop > first and _extended(text, stop) else None
    kind = ANNOUNCED if _follows_phone_word(text, start) else NATIONAL
    american = rb"(?:1[-. ])?(?:\([2-9][0-8][0-9]\) ?[2-9][0-9]{2}[-. ]|[2-9][0-8][0-9]([-.])[2-9][0-9]{2}\1)[0-9]{4}(?![0-9])"
    shaped = re.compile(american).match(text, start)
    if wanted & AMERICAN_SHAPES and shaped and _extended(text, shaped.end()):
        return start, _extended(text, shaped.end()), kind
    is_telling = (wanted & TRUNK_SHAPES and _is_trunk(text[first:stop])) or kind == ANNOUNCED
    return (start, _extended(text, stop), kind) if stop > first and is_telling and _extended(text, stop) else None


def _folded(text: bytes) -> tuple[bytes, list[int]]:
    """The text with the ASCII equals of typeset characters, and where each of its bytes stands in the text."""
    folded, places, offset = b"", [], 0
    for character in text.decode("utf-8", errors="surrogateescape"):
        written = character.encode("utf-8", errors="surrogateescape")
        equal = _TYPESET[character].encode() if character in _TYPESET else written
        folded += equal
        places += range(offset, offset + len(equal))
        offset += len(written)
    return folded, [*places, offset]


def _is_typeset(text: bytes, floor: int, first: int) -> bool:
    """Whether seven digits or more follow with a typeset character among them or before them, within 60 bytes."""
    has_folded = first - 3 >= floor and text[first - 3 : first] in ("＋".encode(), "（".encode())
    digits, offset = 0, first
    for character in text[first : first + 70].decode("utf-8", errors="replace"):
        equal = _TYPESET.get(character, character)
        if offset >= first + 60 or (digits >= 12 and not has_folded) or equal not in " -./()0123456789+" or character == "+":
            break
        has_folded |= character in _TYPESET
        digits += equal.isdigit()
        offset += len(character.encode())
    return has_folded and digits >= 7


def find(text: bytes, wanted: int) -> list[Span]:
    """(start, stop, kind) of every number, as the kernel writes them."""
    spans: list[Span] = []
    floor = 0
    folded, places = _folded(text)
    for group in re.finditer(rb"(?:[0-9]|\xef\xbc[\x90-\x99])+", text):
        first = group.start()
        if first < floor:
            continue
        span, stop = _at(text, floor, first, wanted) if group[0][:1].isdigit() else (None, 0)
        if not stop and _is_typeset(text, floor, first):
            edge = next(index for index, place in enumerate(places) if place >= floor)
            span, stop = _at(folded, edge, places.index(first), wanted)
            span = (places[span[0]], places[span[1]], span[2]) if span else None
            stop = places[stop] if stop else 0
        if span:
            spans.append(span)
        floor = max(floor, stop)
    return spans


def _at(text: bytes, floor: int, first: int, wanted: int) -> tuple[Span | None, int]:
    """The number with the group of digits at `first`, and the offset where the scan continues."""
    if (
        wanted & WANTS_IBAN
        and first - 2 >= floor
        and re.match(rb"[A-Za-z]{2}", text[first - 2 : first])
        and _is_clear(text, floor, first - 2)
    ):
        stop = _iban(text, first - 2)
        if stop:
            return (first - 2, stop, IBAN), stop
    is_clear = _is_clear(text, floor, first)
    stop = _card(text, floor, first) if is_clear and wanted & WANTS_CARD else 0
    if stop:
        return (first, stop, CARD), stop
    stop, is_valid = _ssn(text, first) if is_clear else (0, False)
    if stop:
        return ((first, stop, SSN) if is_valid and wanted & WANTS_SSN else None), stop
    stand_in = re.compile(rb"(?<=\+)1-555-555-01[0-9]{2}(?![0-9])").match(text, first)
    if wanted & WANTS_PHONE and stand_in and first > floor and _is_clear(text, floor, first - 1):
        return None, stand_in.end()
    phone = _phone(text, floor, first, wanted) if wanted & WANTS_PHONE else None
    return phone, phone[1] if phone else 0
