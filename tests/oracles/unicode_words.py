"""Words by the rules WB4 to WB13b of UAX #29, between two characters at a time; scripts are told by the names of characters."""

from __future__ import annotations

import unicodedata

from datapipe.kernels.text.unicode_classes import codes_of
from datapipe.kernels.text.unicode_words import ALSO_DIGITS, ALSO_LETTERS
from tests.oracles.words import Span, characters, hashed, kind

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


def role(character: str) -> str:
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


def words(text: bytes) -> list[Span]:
    """The words of a text: pieces between boundaries that begin with a letter or a digit."""
    read = list(characters(text))
    roles = [role(character) for _, character, _ in read]
    bases = [index for index, kind in enumerate(roles) if kind != "x"]
    kinds = "".join(roles[index] for index in bases)
    spans, first = [], 0
    for number, base in enumerate(bases):
        first = base if number == 0 or not joins(kinds, number - 1) else first
        if number + 1 < len(bases) and joins(kinds, number):
            continue
        stop = bases[number + 1] if number + 1 < len(bases) else len(read)
        if read[first][1].isalnum():
            spans.append(_span(text, read[first:stop]))
    return spans


def _span(text: bytes, read: list[tuple[int, str, int]]) -> Span:
    start, end = read[0][0], read[-1][0] + read[-1][2]
    flag = 0
    for _, character, _ in read:
        flag |= kind(character)
    return Span(start, end - start, hashed(text[start:end]), len(read), flag)
