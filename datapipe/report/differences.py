"""What differs between two texts, for people who judge whether one may stand for the other.

    texts  ─▶  words  ─┬─▶  counts of words in one alone, n-grams in common: of all that is compared
                       └─▶  less the words that both begin and end with  ─▶  aligned  ─▶  passages that differ, with context

Words are those that near duplicates are found by: runs of ASCII letters and digits and of whatever is not ASCII, case folded
in ASCII alone, so that a difference that keeps n-grams apart is always one that is shown; in scripts without spaces each
character is a word. Of each text the first `COMPARED_CHARS` are looked at, and of what lies between the first and the last
difference `ALIGNED_WORDS` words are aligned, since that takes time beyond proportion: 2 s at the worst.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

COMPARED_CHARS = 1_000_000
ALIGNED_WORDS = 10_000
CONTEXT_WORDS = 8
_ISLAND_WORDS = 4

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
)
_RUN = re.compile("[0-9a-z\x80-\U0010ffff]+")
_CHARACTER = re.compile("[0-9a-z\x80-\U0010ffff]")
_WORD = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])[0-9a-z\x80-\U0010ffff])+")
_FOLDED = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)

Opcode = tuple[str, int, int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A part of a text as it is written, and whether its words are in this text alone."""

    text: str
    differs: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A stretch of both texts with words that differ, and some around them that do not.

    Attributes:
        differing: how many words of the two differ.
        begins, ends: whether it is the beginning, and the end, of both texts.
    """

    one: tuple[Piece, ...]
    other: tuple[Piece, ...]
    differing: int
    begins: bool
    ends: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Two texts compared.

    Attributes:
        is_equal: whether they are the same, letter by letter.
        words: of each; only: how many of them the other has not, each counted as often as it occurs.
        in_common: n-grams that are in both, as a share of those in either (Jaccard).
        passages: in the order of the texts.
        is_whole: whether all of both texts was looked at; is_aligned: whether passages go to their ends.
    """

    is_equal: bool
    words: tuple[int, int]
    only: tuple[int, int]
    in_common: float
    passages: tuple[Passage, ...]
    is_whole: bool
    is_aligned: bool

    @property
    def has_same_words(self) -> bool:
        return not self.passages


def difference(
    one: str, other: str, shingles: tuple[int, Literal["word", "char"]] = (5, "word"), context: int | None = CONTEXT_WORDS
) -> Difference:
    """What differs.

    Args:
        shingles: n-grams of so many words, or of characters of words.
        context: words around what differs; None: both texts whole, as one passage.
    """
    texts = one[:COMPARED_CHARS], other[:COMPARED_CHARS]
    words = _Words(texts[0]), _Words(texts[1])
    counted = Counter(words[0].folded), Counter(words[1].folded)
    grams = _ngrams(texts[0], *shingles), _ngrams(texts[1], *shingles)
    either = len(grams[0] | grams[1])
    opcodes, is_aligned = _opcodes(words[0].folded, words[1].folded)
    groups = _groups(opcodes, context) if any(tag != "equal" for tag, *_ in opcodes) else []
    ends = len(words[0].folded), len(words[1].folded)
    return Difference(
        is_equal=one == other,
        words=ends,
        only=((counted[0] - counted[1]).total(), (counted[1] - counted[0]).total()),
        in_common=len(grams[0] & grams[1]) / either if either else 1.0,
        passages=tuple(_passage(group, *words, ends) for group in groups),
        is_whole=texts == (one, other),
        is_aligned=is_aligned,
    )


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the words of a text begin and end."""
    return [match.span() for match in _WORD.finditer(text.translate(_FOLDED))]


class _Words:
    """The words of a text, folded, and the first character of each, with the end of the text behind them."""

    def __init__(self, text: str) -> None:
        found = list(_WORD.finditer(text.translate(_FOLDED)))
        self.text = text
        self.folded = [match.group() for match in found]
        self.starts = [*(match.start() for match in found), len(text)]

    def between(self, start: int, stop: int) -> str:
        """Words [start, stop) as they are written, with what follows each; before the first word, what precedes it too."""
        return self.text[self.starts[start] if start else 0 : self.starts[stop]] if start < stop else ""


def _ngrams(text: str, size: int, unit: Literal["word", "char"]) -> set[tuple[str, ...]]:
    """The n-grams of a text; all of it as one where it is shorter, none where it has no words."""
    units = (_RUN if unit == "word" else _CHARACTER).findall(text.translate(_FOLDED))
    if len(units) < size:
        return {tuple(units)} if units else set()
    return set(zip(*(units[start:] for start in range(size))))


def _opcodes(one: Sequence[str], other: Sequence[str]) -> tuple[list[Opcode], bool]:
    """How one becomes the other, as difflib has it, and whether to their ends: else what is last is left out."""
    shorter = min(len(one), len(other))
    head = next((at for at in range(shorter) if one[at] != other[at]), shorter)
    tail = next((at for at in range(shorter - head) if one[-1 - at] != other[-1 - at]), shorter - head)
    stops = len(one) - tail, len(other) - tail
    is_aligned = max(stops) - head <= ALIGNED_WORDS
    first, second = (words[head : min(stop, head + ALIGNED_WORDS)] for words, stop in zip((one, other), stops))
    found = [
        (tag, head + start, head + stop, head + other_start, head + other_stop)
        for tag, start, stop, other_start, other_stop in SequenceMatcher(None, first, second).get_opcodes()
    ]
    if not is_aligned:
        last = max((number for number, one in enumerate(found) if one[0] == "equal"), default=None)
        found = found if last is None else found[: last + 1]
    begin: list[Opcode] = [("equal", 0, head, 0, head)] if head else []
    end: list[Opcode] = [("equal", stops[0], len(one), stops[1], len(other))] if tail and is_aligned else []
    return _without_islands([*begin, *found, *end]), is_aligned


def _without_islands(opcodes: Sequence[Opcode]) -> list[Opcode]:
    """Opcodes with equal words that mean nothing, a few between longer runs that differ, taken for differing."""
    found: list[Opcode] = []
    for number, opcode in enumerate(opcodes):
        tag, start, stop, other_start, other_stop = opcode
        between = 0 < number < len(opcodes) - 1 and stop - start <= _ISLAND_WORDS
        is_island = tag == "equal" and between and all(_size(opcodes[one]) >= stop - start for one in (number - 1, number + 1))
        if found and found[-1][0] == "differ" and (is_island or tag != "equal"):
            _, start, _, other_start, _ = found.pop()
        differs = is_island or tag != "equal"
        found.append(("differ" if differs else tag, start, stop, other_start, other_stop))
    return found


def _size(opcode: Opcode) -> int:
    _, start, stop, other_start, other_stop = opcode
    return max(stop - start, other_stop - other_start)


def _groups(opcodes: Sequence[Opcode], context: int | None) -> list[list[Opcode]]:
    """Opcodes apart where more than twice `context` equal words lie between them; of those, only as many stay."""
    if context is None:
        return [list(opcodes)]
    groups: list[list[Opcode]] = [[]]
    for number, (tag, start, stop, other_start, other_stop) in enumerate(opcodes):
        if tag != "equal":
            groups[-1].append((tag, start, stop, other_start, other_stop))
            continue
        is_first, is_last = number == 0, number == len(opcodes) - 1
        before, after = 0 if is_first else context, 0 if is_last else context
        if stop - start <= before + after:
            groups[-1].append((tag, start, stop, other_start, other_stop))
            continue
        if before:
            groups[-1].append((tag, start, start + before, other_start, other_start + before))
        if after:
            groups.append([(tag, stop - after, stop, other_stop - after, other_stop)])
    return [group for group in groups if any(tag != "equal" for tag, *_ in group)]


def _passage(group: Sequence[Opcode], one: _Words, other: _Words, ends: tuple[int, int]) -> Passage:
    pieces: tuple[list[Piece], list[Piece]] = ([], [])
    for tag, start, stop, other_start, other_stop in group:
        for words, spoken, (first, last) in zip((one, other), pieces, ((start, stop), (other_start, other_stop))):
            if first < last:
                spoken.append(Piece(text=words.between(first, last), differs=tag != "equal"))
    return Passage(
        one=tuple(pieces[0]),
        other=tuple(pieces[1]),
        differing=sum(stop - start + last - first for tag, start, stop, first, last in group if tag != "equal"),
        begins=group[0][1] == group[0][3] == 0,
        ends=(group[-1][2], group[-1][4]) == ends,
    )
