"""English words as spaCy cuts them, by regular expressions over the roles of characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache

from datapipe.kernels.text.contractions import cuts
from datapipe.kernels.text.english_signs import ALPHA, BEFORE, CURRENCY, EDGE, ICON, LOWER, QUOTE, STOPS, UPPER, sign_table
from tests.oracles.words import Span, characters, hashed

_UNITS = (
    "m/s|km/h|km²|km³|kmh|km|mph|mbar|mm²|mm³|m²|m³|cm²|cm³|dm|cm|mm|ha|µm|nm"
    "|yd|in|ft|kg|mg|µg|lb|oz|hPa|Pa|mb|MB|kb|KB|gb|GB|tb|TB|m|g|t|T|G|M|K|%|dm²|dm³|км²|км³|км/ч|км|м²|м³|м/с|мг|мм²|мм³|мм"
    "|мбар|мб|Мб|МБ|м|дм²|дм³|дм|см²|см³|см|нм|кг|кПа|кб|Кб|КБ|г|Па|гб|Гб|ГБ|Тб|ТБ|тбكم|كم²|كم³|كم|كوب|كغ|م²|م³|مم²|مم³|مم|ملغ|م"
    "|سم²|سم³|سم|غرام|جرام|جم|اكواب"
)
WHOLES = cuts()
_LISTED = "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"


def has(character: str, *roles: int) -> bool:
    """Whether a character has one of the roles that `sign_table` lists: they are facts of spaCy."""
    return any(int(sign_table()[ord(character)]) & role for role in roles)


def letter(character: str) -> str:
    """l, u, b or n for a letter that is lower, upper, both or neither; empty for other characters."""
    if not has(character, ALPHA):
        return ""
    lower, upper = has(character, LOWER), has(character, UPPER)
    return ("b" if upper else "l") if lower else ("u" if upper else "n")


def prefix(chunk: str) -> int:
    first = chunk[0]
    if has(first, EDGE, BEFORE) or (first == "+" and chunk[1:2] not in tuple("0123456789")):
        return 1
    match = re.match(r"\.\.+|(?:US|C|A)\$", chunk)
    return len(match[0]) if match else 0


def suffix(chunk: str) -> int:
    if not chunk:
        return 0
    match = re.search(rf"(?:['’][sS]|\.\.+|(?<=[0-9])(?:{_UNITS}|\+|(?:US|A|C)?\$)|(?<=°[FfCcKk])\.)\Z", chunk)
    if match:
        return len(match[0])
    before = chunk[-2:-1]
    if has(chunk[-1], EDGE) or (has(chunk[-1], CURRENCY) and before and before in "0123456789"):
        return 1
    if chunk[-1] != "." or not before:
        return 0
    two_capitals = len(chunk) > 2 and has(before, UPPER) and has(chunk[-3], UPPER)
    return int(has(before, STOPS) or two_capitals)


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
    while size < len(text) and (text[size] in ".-_" or letter(text[size]) or "0" <= text[size] <= "9" or is_wide(text[size])):
        size += 1
    *labels, top = text[:size].split(".")
    if not labels or not all(0 < len(label) <= 64 and label[0] not in "-_" and label[-1] not in "-_" for label in labels):
        return False
    if not 2 <= len(top) <= 63 or not all(has(character, LOWER) for character in top):
        return False
    match = re.fullmatch(r"(?::[0-9]{2,5})?(?:[/?#].*)?", text[size:], re.S)
    return match is not None


def is_wide(character: str) -> bool:
    return "\u00a1" <= character <= "\uffff"


def infixes(chunk: str) -> list[tuple[int, int]]:
    """Spans of the signs that split a chunk without its prefixes and suffixes."""
    roles = "".join(map(_role, chunk))
    letters, either = "[lubn]", "[lubnd]"
    matches = re.finditer(
        rf"\.\.+|i|(?<=d)[+*^-](?=[d-])|(?<=[lbq,])\.(?=[ubq,])|(?<={letters}),(?={letters})"
        rf"|(?<={either})(?:-{{1,3}}|n|m{{1,2}}|~)(?={letters})|(?<={either})[:](?={letters})",
        roles,
    )
    return [match.span() for match in matches]


def _role(character: str) -> str:
    if has(character, ICON):
        return "i"
    if letter(character):
        return letter(character)
    if character in "0123456789":
        return "d"
    if character in ":<>=/":
        return ":"
    if character == ",":
        return ","
    if has(character, QUOTE):
        return "q"
    return {"–": "n", "—": "m"}.get(character, character if character in ".+*^-~" else "o")


def cut(chunk: str) -> list[str]:
    """The words of a chunk between white space."""
    return joined(pieces(chunk, WHOLES))


def pieces(chunk: str, wholes: Mapping[str, Sequence[str]]) -> list[str]:
    """The words of a chunk, by its signs and the special cases that signs leave."""
    front: list[str] = []
    back: list[str] = []
    while chunk and chunk not in wholes:
        size = prefix(chunk)
        if size and chunk[size:] in wholes:
            front, chunk = [*front, chunk[:size]], chunk[size:]
            break
        end = suffix(chunk[size:])
        if end and chunk[:-end] in wholes:
            back, chunk = [chunk[-end:], *back], chunk[:-end]
            break
        if not size and not end:
            break
        front = [*front, chunk[:size]] if size else front
        back = [chunk[len(chunk) - end :], *back] if end else back
        chunk = chunk[size : len(chunk) - end]
    if chunk in wholes:
        return [*front, *wholes[chunk], *back]
    middle, begin = [], 0
    for start, stop in [] if is_address(chunk) else infixes(chunk):
        if start > 0:
            middle += [*([chunk[begin:start]] if start > begin else []), chunk[start:stop]]
            begin = stop
    return [*front, *middle, *([chunk[begin:]] if chunk[begin:] else []), *back]


@lru_cache(maxsize=1)
def split_wholes() -> dict[str, int]:
    """The special cases that signs split, and into how many words; only those that get no more words themselves."""
    counts = {whole: len(pieces(whole, {})) for whole in WHOLES}
    return {whole: count for whole, count in counts.items() if count > 1 and count >= len(WHOLES[whole])}


def joined(words: list[str]) -> list[str]:
    """The words, with special cases that signs have split: of those that overlap the longer, then the first."""
    out, index = [], 0
    while index < len(words):
        size = longest(words, index)
        if size and all(longest(words, later) <= size for later in range(index + 1, index + size)):
            out += WHOLES["".join(words[index : index + size])]
            index += size
        else:
            out.append(words[index])
            index += 1
    return out


def longest(words: list[str], index: int) -> int:
    """The most words from `index` on that are a special case; 0 for none."""
    sizes = [size for size in range(2, 12) if split_wholes().get("".join(words[index : index + size])) == size]
    return max((size for size in sizes if index + size <= len(words)), default=0)


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
