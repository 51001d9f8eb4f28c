"""Texts without case, and their words, by Python's Unicode database."""

import re
import unicodedata
from unicodedata import normalize

_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U00031fff]"
)
_IGNORED = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""From DerivedCoreProperties.txt of Unicode, Default_Ignorable_Code_Point."""

_HANGUL = re.compile("[\u1100-\u1112][\u1161-\u1175][\u11a8-\u11c2]?")


def caseless(text: str) -> str:
    """The canonical caseless form, definition D145 of Unicode, with syllables of Hangul composed."""
    folded = normalize("NFD", normalize("NFD", text).casefold())
    return syllables(folded)


def syllables(text: str) -> str:
    """The text with the jamo of each syllable of Hangul composed."""
    return _HANGUL.sub(lambda syllable: normalize("NFC", syllable.group()), text)


def folded(text: bytes) -> bytes:
    """The canonical caseless form of a text; bytes that are not UTF-8 stay."""
    return caseless(text.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def category(character: str) -> str:
    """The major category of a character; L where Unicode does not assign one."""
    found = unicodedata.category(character)
    return "L" if found == "Cn" else found[0]


def kind(character: str) -> str:
    """L, N or M for a character of words, A for one that is its own word, else " "."""
    found = category(character)
    if found in "LN" and _UNSPACED.match(character):
        return "A"
    return found if found in "LNM" else " "


def visible(text: bytes) -> str:
    """The characters of a text that are not ignored."""
    return _IGNORED.sub("", text.decode(errors="replace"))


def words(text: bytes) -> list[bytes]:
    """The words of a text: folded, without marks that follow no letter and no number."""
    decomposed = normalize("NFD", visible(text))
    found = re.finditer("AM*|[LN][LNM]*", "".join(map(kind, decomposed)))
    parts = [decomposed[match.start() : match.end()] for match in found]
    return [caseless(part).encode() for part in parts]
