"""Words as decontamination compares them, their n-grams, and what is found and cut, in plain Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from unicodedata import combining, normalize

from tests.oracles.case_folding import kind, visible
from tests.oracles.texts import MASK, mix, polynomial

_PRIME, _RADIX, _LENGTH = 0x9E3779B97F4A7C15, 0xD1342543DE82EF9B, 0xA0761D6478BD642F
_SALT = 0xD6E8FEB86659FD93
_ROLES = {"A": "alone", "L": "letters", "N": "letters", "M": "letters"}


@dataclass(frozen=True)
class Word:
    """A word: its folded form, weight, first byte and the byte after it."""

    form: str
    weight: int
    start: int
    stop: int

    @property
    def hashed(self) -> int:
        value = 0xCBF29CE484222325
        for character in self.form:
            value = (value ^ ord(character)) * _PRIME & MASK
        return mix(value)


def folded(character: str) -> str:
    parts = normalize("NFKD", normalize("NFKD", character).casefold()).replace("ı", "i")
    return "".join(part for part in parts if not combining(part))


@cache
def role(character: str) -> tuple[str, str]:
    """A character as words have it: its form, and "letters", "alone", "mark", "" (left out) or " " (ends a word)."""
    if not visible(character.encode(errors="surrogateescape")):
        return "", ""
    form = folded(character)
    if kind(character) == " " and (not form or any(kind(part) == " " for part in form)):
        return "", " "
    form = "".join(part for part in form if kind(part) != " " and visible(part.encode()))
    kinds = "".join(kind(part) for part in form)
    if not form:
        return "", ""
    is_several = "A" in kinds[1:] or ("A" in kinds and set(kinds[1:]) - {"M"}) or (kinds[0] == "M" and set(kinds) != {"M"})
    if is_several:  # several words, or a mark with letters: the character stays as it is
        form, kinds = character, kind(character)
    return (form, _ROLES[kinds[0]] if set(kinds) != {"M"} else "mark") if kinds != " " else ("", " ")


def weight_of(character: str) -> int:
    """Two ideographs, or four other characters, weigh as much as a word of a script with spaces."""
    code = ord(character)
    han = (0x3005 <= code <= 0x3007, 0x3400 <= code <= 0x4DBF, 0x4E00 <= code <= 0x9FFF, 0xF900 <= code < 0xFB00)
    return 2 if any(han) or code >= 0x20000 else 1


def words(text: bytes) -> list[Word]:
    found: list[Word] = []
    is_open, position = "", 0
    for character in text.decode(errors="surrogateescape"):
        size = len(character.encode(errors="surrogateescape"))
        form, what = role(character)
        extends = (what == "letters" and is_open == "letters") or (what == "mark" and is_open)
        if extends:
            last = found.pop()
            found.append(Word(last.form + form, last.weight, last.start, position + size))
        elif what in ("letters", "alone"):
            found.append(Word(form, 4 if what == "letters" else weight_of(form[0]), position, position + size))
            is_open = what
        elif what == " ":
            is_open = ""
        position += size
    return found


def key_of(run: Sequence[Word], salt: int) -> int:
    """The key of a run of words."""
    return mix((prefix_of(run) + salt * _SALT + len(run) * _LENGTH) & MASK) or 1


def prefix_of(run: Sequence[Word]) -> int:
    return polynomial(word.hashed for word in run)


def window_ends(found: Sequence[Word], weight: int) -> list[tuple[int, int]]:
    """For each word the fewest last words that weigh enough, as (first, past the last); none where all are too few."""
    ends = []
    for stop in range(1, len(found) + 1):
        first = next((f for f in range(stop - 1, -1, -1) if sum(word.weight for word in found[f:stop]) >= weight), None)
        if first is not None:
            ends.append((first, stop))
    return ends


def keys(text: bytes, weight: int, salt: int) -> list[int]:
    found = words(text)
    return [key_of(found[first:stop], salt) for first, stop in window_ends(found, weight)]


def pieces(text: str, matches: Sequence[tuple[int, int]], margin: int, least: int) -> list[tuple[int, int]]:
    """The spans of a text, in characters, that stay when matches (start, stop) are cut out with `margin` on both sides."""
    is_cut = [False] * len(text)
    for start, stop in matches:
        for place in range(max(0, start - margin), min(len(text), stop + margin)):
            is_cut[place] = True
    spans, start = [], 0
    for place in range(len(text) + 1):
        if place == len(text) or is_cut[place]:
            spans.append((start, place))
            start = place + 1
    return [(start, stop) for start, stop in spans if stop - start >= least]


def pair_key(answer: int, question: int) -> int:
    return mix(answer ^ ((question + 1) * _RADIX & MASK)) or 1


def passages(item: int, matches: Sequence[tuple[int, int, int, int, int]], postings: Any) -> list[list[Any]]:
    """The passages of an item that reach what it needs.

    Returns rows of the match at which one does, the item twice, and as `coverage.Covered` has it.
    """
    offsets, items, owned, weights, needs, gap = postings
    has = {
        entry: place
        for entry in range(len(weights))
        for place in range(offsets[entry], offsets[entry + 1])
        if items[place] == item
    }
    own = [(number, *match) for number, match in enumerate(matches) if match[1] in has]
    groups: list[list[tuple[int, ...]]] = []
    for match in own:
        if groups and match[3] - groups[-1][-1][3] <= gap:
            groups[-1].append(match)
        else:
            groups.append([match])
    rows = []
    for group in groups:
        for length in range(1, len(group) + 1):
            entries = {match[2] for match in group[:length]}
            if sum(weights[entry] for entry in entries) >= needs[item] and any(owned[has[entry]] for entry in entries):
                total = sum(int(weights[entry]) for entry in {match[2] for match in group})
                rows.append([group[length - 1][0], item, group[-1][1], item, group[0][4], group[-1][5], total])
                break
    return rows
