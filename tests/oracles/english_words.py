"""English words as spaCy cuts them, by regular expressions over what each character may do."""

from __future__ import annotations

import re
import unicodedata

from datapipe.kernels.text.contractions import cuts
from tests.oracles.words import Found, characters, hashed

_EDGES = "…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪'\"”“`‘´’‚„»«「」『』（）〔〕【】《》〈〉⟦⟧—–"
_QUOTES = "'\"”“`‘´’‚„»«「」『』（）〔〕【】《》〈〉⟦⟧"
_CURRENCY = "$£€¥฿₽﷼₴₠₡₢₣₤₥₦₧₨₩₪₫₭₮₯₰₱₲₳₵₶₷₸₹₺₻₼₾₿"
_UNITS = (
    "m/s|km/h|km²|km³|kmh|km|mph|mbar|mm²|mm³|m²|m³|cm²|cm³|dm|cm|mm|ha|µm|nm"
    "|yd|in|ft|kg|mg|µg|lb|oz|hPa|Pa|mb|MB|kb|KB|gb|GB|tb|TB|m|g|t|T|G|M|K|%"
)
_STOPPED = "%²-+0123456789…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪" + _QUOTES
WHOLES = cuts()
_LISTED = "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"


def is_icon(character: str) -> bool:
    return unicodedata.category(character) == "So" or character == "…"


def letter(character: str) -> str:
    """l, u or b for a letter that is lower, upper or both; else nothing."""
    if unicodedata.category(character)[0] != "L":
        return ""
    return "u" if character.isupper() else "l" if character.islower() else "b"


def prefix(chunk: str) -> int:
    first = chunk[0]
    if (
        first in _EDGES
        or is_icon(first)
        or first in "§%=" + _CURRENCY
        or (first == "+" and chunk[1:2] not in tuple("0123456789"))
    ):
        return 1
    found = re.match(r"\.\.+|(?:US|C|A)\$", chunk)
    return len(found[0]) if found else 0


def suffix(chunk: str) -> int:
    if not chunk:
        return 0
    found = re.search(rf"(?:['’][sS]|\.\.+|(?<=[0-9])(?:{_UNITS}|\+|[{re.escape(_CURRENCY)}]))\Z", chunk)
    if found:
        return len(found[0])
    if chunk[-1] in _EDGES or is_icon(chunk[-1]):
        return 1
    before = chunk[-2:-1]
    if chunk[-1] != "." or not before:
        return 0
    two_capitals = len(chunk) > 2 and letter(before) in ("u", "b") and letter(chunk[-3]) in ("u", "b")
    return int(before in _STOPPED or letter(before) in ("l", "b") or two_capitals)


def is_address(chunk: str) -> bool:
    """A host at the front, behind `scheme://` or behind any `@`."""
    scheme, slashes, rest = chunk.partition("://")
    has_scheme = (
        slashes and len(scheme.encode()) >= 2 and all(ord(one) >= 0x80 or one.isalnum() or one in "_+-." for one in scheme)
    )
    behind = [chunk[at + 1 :] for at, one in enumerate(chunk) if one == "@" and at > 0]
    return any(map(is_host, [chunk, *([rest] if has_scheme else []), *behind]))


def is_host(text: str) -> bool:
    """Labels, the last of small letters, then at most a port and a path."""
    size = 0
    while size < len(text) and (text[size] in ".-_0123456789" or letter(text[size]) or ord(text[size]) >= 0xA1):
        size += 1
    *labels, top = text[:size].split(".")
    if not labels or not all(label and label[0] not in "-_" and label[-1] not in "-_" for label in labels):
        return False
    if len(top.encode()) < 2 or not all(ord(one) >= 0x80 or "a" <= one <= "z" for one in top):
        return False
    found = re.fullmatch(r"(?::[0-9]{2,5})?(?:[/?#].*)?", text[size:], re.S)
    return found is not None


def infixes(chunk: str) -> list[tuple[int, int]]:
    """Where signs cut what is left of a chunk; found on a string of what each character may do."""
    roles = "".join(map(_role, chunk))
    letters, either = "[lub]", "[lubd]"
    found = re.finditer(
        rf"\.\.+|i|(?<=d)[+*^-](?=[d-])|(?<=[lbq])\.(?=[ubq])|(?<={letters}),(?={letters})"
        rf"|(?<={either})(?:-{{1,3}}|n|m{{1,2}}|~)(?={letters})|(?<={either})[:](?={letters})",
        roles,
    )
    return [one.span() for one in found]


def _role(character: str) -> str:
    if is_icon(character):
        return "i"
    if letter(character):
        return letter(character)
    if character in "0123456789":
        return "d"
    if character in ":<>=/":
        return ":"
    if character == ",":
        return ","
    if character in _QUOTES:
        return "q"
    return {"–": "n", "—": "m"}.get(character, character if character in ".+*^-~" else "o")


def cut(chunk: str) -> list[str]:
    """The words of what stands between white space."""
    front: list[str] = []
    back: list[str] = []
    while chunk and chunk not in WHOLES:
        size = prefix(chunk)
        if size:
            front, chunk = [*front, chunk[:size]], chunk[size:]
            if chunk in WHOLES:
                break
        end = suffix(chunk)
        if end:
            back, chunk = [chunk[-end:], *back], chunk[:-end]
        if not size and not end:
            break
    if chunk in WHOLES:
        return [*front, *WHOLES[chunk], *back]
    middle, begin = [], 0
    for start, stop in [] if is_address(chunk) else infixes(chunk):
        if start > begin:
            middle += [chunk[begin:start], chunk[start:stop]]
            begin = stop
    return [*front, *middle, *([chunk[begin:]] if chunk[begin:] else []), *back]


def flag_of(character: str) -> int:
    """Letter, mark, number, white space as ever; punctuation where datatrove lists the sign, else other."""
    if character in _LISTED or (unicodedata.category(character) == "Cc" and not character.isspace()):
        return 8
    bit = {"L": 1, "M": 2, "N": 4}.get(unicodedata.category(character)[0], 64)
    return 32 if character.isspace() else bit


def words(text: bytes) -> list[Found]:
    """The words of a text; a byte that begins no character is cut as U+FFFD, which comes off like any symbol."""
    found = []
    read = list(characters(text))
    at = 0
    while at < len(read):
        stop = at
        while stop < len(read) and not read[stop][1].isspace():
            stop += 1
        place = at
        for word in cut("".join(character for _, character, _ in read[at:stop])):
            inner = read[place : place + len(word)]
            start, end = inner[0][0], inner[-1][0] + inner[-1][2]
            flag = 0
            for character in word:
                flag |= flag_of(character)
            found.append(Found(start, end - start, hashed(text[start:end]), len(word), flag))
            place += len(word)
        at = stop + 1
    return found
