"""English words as spaCy cuts them, by regular expressions over the roles of characters."""

from __future__ import annotations

import re
import unicodedata

from datapipe.kernels.text.contractions import cuts
from tests.oracles.words import Span, characters, hashed

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
    """l, u or b for a letter that is lower, upper or both; empty for other characters."""
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
    match = re.match(r"\.\.+|(?:US|C|A)\$", chunk)
    return len(match[0]) if match else 0


def suffix(chunk: str) -> int:
    if not chunk:
        return 0
    match = re.search(rf"(?:['’][sS]|\.\.+|(?<=[0-9])(?:{_UNITS}|\+|[{re.escape(_CURRENCY)}]))\Z", chunk)
    if match:
        return len(match[0])
    if chunk[-1] in _EDGES or is_icon(chunk[-1]):
        return 1
    before = chunk[-2:-1]
    if chunk[-1] != "." or not before:
        return 0
    two_capitals = len(chunk) > 2 and letter(before) in ("u", "b") and letter(chunk[-3]) in ("u", "b")
    return int(before in _STOPPED or letter(before) in ("l", "b") or two_capitals)


def is_address(chunk: str) -> bool:
    """Whether a host is at the front, after `scheme://` or after an `@`."""
    scheme, slashes, rest = chunk.partition("://")
    has_scheme = (
        slashes
        and len(scheme.encode()) >= 2
        and all(ord(character) >= 0x80 or character.isalnum() or character in "_+-." for character in scheme)
    )
    behind = [chunk[index + 1 :] for index, character in enumerate(chunk) if character == "@" and index > 0]
    return any(map(is_host, [chunk, *([rest] if has_scheme else []), *behind]))


def is_host(text: str) -> bool:
    """Whether a text is labels, the last of small letters, and an optional port and path."""
    size = 0
    while size < len(text) and (text[size] in ".-_0123456789" or letter(text[size]) or ord(text[size]) >= 0xA1):
        size += 1
    *labels, top = text[:size].split(".")
    if not labels or not all(label and label[0] not in "-_" and label[-1] not in "-_" for label in labels):
        return False
    if len(top.encode()) < 2 or not all(ord(character) >= 0x80 or "a" <= character <= "z" for character in top):
        return False
    match = re.fullmatch(r"(?::[0-9]{2,5})?(?:[/?#].*)?", text[size:], re.S)
    return match is not None


def infixes(chunk: str) -> list[tuple[int, int]]:
    """Spans of the signs that split a chunk without its prefixes and suffixes."""
    roles = "".join(map(_role, chunk))
    letters, either = "[lub]", "[lubd]"
    matches = re.finditer(
        rf"\.\.+|i|(?<=d)[+*^-](?=[d-])|(?<=[lbq])\.(?=[ubq])|(?<={letters}),(?={letters})"
        rf"|(?<={either})(?:-{{1,3}}|n|m{{1,2}}|~)(?={letters})|(?<={either})[:](?={letters})",
        roles,
    )
    return [match.span() for match in matches]


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
    """The words of a chunk between white space."""
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
    """The class of a character, where punctuation is what datatrove lists and other signs are OTHER."""
    if character in _LISTED or (unicodedata.category(character) == "Cc" and not character.isspace()):
        return 8
    bit = {"L": 1, "M": 2, "N": 4}.get(unicodedata.category(character)[0], 64)
    return 32 if character.isspace() else bit


def words(text: bytes) -> list[Span]:
    """The words of a text; a byte that begins no character is U+FFFD, which is cut off like a symbol."""
    spans = []
    read = list(characters(text))
    chunk_start = 0
    while chunk_start < len(read):
        stop = chunk_start
        while stop < len(read) and not read[stop][1].isspace():
            stop += 1
        index = chunk_start
        for word in cut("".join(character for _, character, _ in read[chunk_start:stop])):
            inner = read[index : index + len(word)]
            start, end = inner[0][0], inner[-1][0] + inner[-1][2]
            flag = 0
            for character in word:
                flag |= flag_of(character)
            spans.append(Span(start, end - start, hashed(text[start:end]), len(word), flag))
            index += len(word)
        chunk_start = stop + 1
    return spans
