"""Words as spaCy and as UAX #29 cut them, and the sentences of spaCy's sentencizer."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from datapipe.kernels.text.contractions import cuts
from datapipe.kernels.text.english_signs import ALPHA, BEFORE, CURRENCY, EDGE, ICON, LOWER, QUOTE, STOPS, UPPER, sign_table
from datapipe.kernels.text.marks import END_CHARS
from datapipe.kernels.text.unicode_classes import codes_of
from datapipe.kernels.text.unicode_words import ALSO_DIGITS, ALSO_LETTERS
from tests.oracles.texts import Span, characters, hashed, kind, text_of

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
    while size < len(text) and (
        text[size] in ".-_" or letter(text[size]) or "0" <= text[size] <= "9" or "\u00a1" <= text[size] <= "\uffff"
    ):
        size += 1
    *labels, top = text[:size].split(".")
    if not labels or not all(0 < len(label) <= 64 and label[0] not in "-_" and label[-1] not in "-_" for label in labels):
        return False
    if not 2 <= len(top) <= 63 or not all(has(character, LOWER) for character in top):
        return False
    match = re.fullmatch(r"(?::[0-9]{2,5})?(?:[/?#].*)?", text[size:], re.S)
    return match is not None


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


def english_words(text: bytes) -> list[Span]:
    """The words of a text; a byte that begins no character is U+FFFD, which is cut off like a symbol."""
    spans = []
    read = list(characters(text))
    chunk_start = 0
    while chunk_start < len(read):
        stop = chunk_start
        while stop < len(read) and not read[stop][1].isspace():
            stop += 1
        index = chunk_start
        for word in joined(pieces("".join(character for _, character, _ in read[chunk_start:stop]), WHOLES)):
            spans.append(_span(text, read[index : index + len(word)], flag_of))
            index += len(word)
        chunk_start = stop + 1
    return spans


def sentences(line: bytes) -> int:
    """Number of sentences that are not blank."""
    text = text_of(line)
    kinds: list[str] = []
    for white, chunk in re.findall(r"(\s*)(\S+)|\s+\Z", text):
        kinds += [" "] if white not in ("", " ") else []
        words = joined(pieces(chunk, WHOLES))
        for before, word in zip(["", *words], words):
            kinds += word if before == "°" and word in ("C.", "F.", "K.") else [word]
    count, ended, blank = 0, False, True
    for token in kinds:
        punctuation = all(unicodedata.category(character)[0] == "P" for character in token)
        if ended and not punctuation:
            ended, blank = False, True
        if token in set(END_CHARS):
            ended = True
        if token != " " and blank:
            count, blank = count + 1, False
    return count


_ALONE = (
    *("THAI ", "LAO ", "MYANMAR ", "KHMER ", "TAI ", "NEW TAI LUE ", "AHOM ", "HIRAGANA ", "HENTAIGANA ", "CJK ", "HANGZHOU "),
    *("KHITAN ", "TANGUT COMPONENT", "NUSHU CH", "IDEOGRAPHIC CLOSING", "IDEOGRAPHIC NUMBER"),
)
"""How the names of letters begin that join no other. Tangut ideographs have no names."""

_SIGNS = {
    "_": "_\u202f\u203f\u2040\u2054\ufe33\ufe34\ufe4d\ufe4e\ufe4f\uff3f",
    "'": "'",
    '"': '"',
    ".": ".\u2018\u2019\u2024\ufe52\uff07\uff0e",
    ":": ":\u00b7\u0387\u055f\u05f4\u2027\ufe13\ufe55\uff1a",
    ",": ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe50\ufe54\uff0c\uff1b",
}
_LETTERS, _DIGITS = (set(map(chr, codes_of(listed))) for listed in (ALSO_LETTERS, ALSO_DIGITS))


def word_break(character: str) -> str:
    """The value of Word_Break as one letter, o for other."""
    category, name = unicodedata.category(character), unicodedata.name(character, "")
    if category == "Nd" or character in _DIGITS:
        return "N"
    if category[0] == "M" or character in "\uff9e\uff9f" or "FITZPATRICK" in name:
        return "x"
    if category == "Cf" and character != "\u200b" and character not in _LETTERS:
        return "x"
    for sign, members in _SIGNS.items():
        if character in members:
            return sign
    if name.startswith("HEBREW ") and category == "Lo" and "PLUS" not in name:
        return "H"
    if any(start <= character <= stop for start, stop in ("\u3031\u3035", "\u3300\u3357", "゠゠", "\U0001b155\U0001b155")):
        return "K"
    if "KATAKANA" in name and not name.endswith("MIDDLE DOT") and not name.startswith("SQUARED"):
        return "K"
    if (category[0] == "L" or category == "Nl" or character in _LETTERS) and not _stands_alone(character, name):
        return "A"
    return "o"


def _stands_alone(character: str, name: str) -> bool:
    return name.startswith(_ALONE) or (not name and character >= "\U00017000")


def joins(kinds: str, index: int) -> bool:
    """Whether no boundary is between two of the characters that extend nothing."""
    before, after = kinds[index], kinds[index + 1]
    two_before, two_after = kinds[index - 1] if index else "", kinds[index + 2 : index + 3]
    letters = "AH"
    if before in letters and (after in letters or (after in ":.'" and two_after and two_after in letters)):
        return True
    if before in ":.'" and two_before and two_before in letters and after in letters:
        return True
    if before == "H" and (after == "'" or (after == '"' and two_after == "H")):
        return True
    if (two_before, before, after) == ("H", '"', "H"):
        return True
    if before in "NAH" and after in "NAH":
        return True
    if (before == "N" and after in ",.'" and two_after == "N") or (two_before == "N" and before in ",.'" and after == "N"):
        return True
    return (before == after == "K") or (before in "AHNK_" and after == "_") or (before == "_" and after in "AHNK")


def unicode_words(text: bytes) -> list[Span]:
    """The words of a text: pieces between boundaries that begin with a letter or a digit."""
    read = list(characters(text))
    roles = [word_break(character) for _, character, _ in read]
    bases = [index for index, kind in enumerate(roles) if kind != "x"]
    kinds = "".join(roles[index] for index in bases)
    spans, first = [], 0
    for number, base in enumerate(bases):
        first = base if number == 0 or not joins(kinds, number - 1) else first
        if number + 1 < len(bases) and joins(kinds, number):
            continue
        stop = bases[number + 1] if number + 1 < len(bases) else len(read)
        if read[first][1].isalnum():
            spans.append(_span(text, read[first:stop], kind))
    return spans


def _span(text: bytes, read: list[tuple[int, str, int]], class_of: Callable[[str], int]) -> Span:
    start, end = read[0][0], read[-1][0] + read[-1][2]
    flag = 0
    for _, character, _ in read:
        flag |= class_of(character)
    return Span(start, end - start, hashed(text[start:end]), len(read), flag)
