"""Differences between two texts, for people who decide whether one may replace the other.

    texts  ─▶  words  ─┬─▶  words of one text alone, n-grams in common: over everything that is compared
                       └─▶  without the common beginning and end  ─▶  aligned  ─▶  passages that differ, with context

Words are those of near-duplicate detection (`word_characters.py`), compared in the canonical caseless form of Unicode. So every
difference that separates n-grams is one that is shown. In scripts without spaces each character is a word.

The comparison covers the first `COMPARED_CHARS` of each text. Alignment covers `ALIGNED_WORDS` words between the first and the
last difference, because its time grows faster than the number of words: at most 2 s.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Literal, Self
from unicodedata import normalize

import numpy as np

from datapipe.kernels.dedup.word_characters import ALONE, IGNORED, LETTER, MARK, NUMBER, word_table

COMPARED_CHARS = 1_000_000
ALIGNED_WORDS = 10_000
CONTEXT_WORDS = 8
_ISLAND_WORDS = 4

Opcode = tuple[str, int, int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A part of a text as written, and whether its words are in this text alone."""

    text: str
    differs: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A passage of both texts: words that differ, with some common words around them.

    Attributes:
        first, second: the segments of each text.
        differing: number of differing words in both.
        begins, ends: whether the passage contains the beginning, and the end, of both texts.
    """

    first: tuple[Segment, ...]
    second: tuple[Segment, ...]
    differing: int
    begins: bool
    ends: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A comparison of two texts.

    Attributes:
        is_equal: whether the texts are the same, letter by letter.
        words: number of words of each text.
        only: number of words that the other text lacks, each counted as often as it occurs.
        in_common: n-grams that are in both, as a share of those in either (Jaccard).
        passages: in the order of the texts.
        is_whole: whether the comparison covers all of both texts.
        is_aligned: whether the passages reach the end of what is compared.
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
    first: str, second: str, shingles: tuple[int, Literal["word", "char"]] = (5, "word"), context: int | None = CONTEXT_WORDS
) -> Difference:
    """Compares two texts.

    Args:
        shingles: size and unit of the n-grams: words, or characters of words.
        context: common words around each difference; None for one passage with both whole texts.
    """
    texts = first[:COMPARED_CHARS], second[:COMPARED_CHARS]
    words = _Words.of(texts[0]), _Words.of(texts[1])
    counts = Counter(words[0].folded), Counter(words[1].folded)
    grams = _ngrams(words[0].folded, *shingles), _ngrams(words[1].folded, *shingles)
    num_either = len(grams[0] | grams[1])
    opcodes, is_aligned = _opcodes(words[0].folded, words[1].folded)
    groups = _groups(opcodes, context) if any(tag != "equal" for tag, *_ in opcodes) else []
    num_words = len(words[0].folded), len(words[1].folded)
    return Difference(
        is_equal=first == second,
        words=num_words,
        only=((counts[0] - counts[1]).total(), (counts[1] - counts[0]).total()),
        in_common=len(grams[0] & grams[1]) / num_either if num_either else 1.0,
        passages=tuple(_passage(group, words, num_words) for group in groups),
        is_whole=texts == (first, second),
        is_aligned=is_aligned,
    )


def word_spans(text: str) -> list[tuple[int, int]]:
    """The start and stop of each word of a text."""
    return [match.span() for match in _patterns()[0].finditer(text)]


@lru_cache(maxsize=1)
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A word, and the characters in words that are ignored."""
    kinds = word_table()
    joined = _ranges((kinds & (LETTER | NUMBER) != 0) & (kinds & ALONE == 0))
    alone, marks, ignored = (_ranges(kinds & kind != 0) for kind in (ALONE, MARK, IGNORED))
    return re.compile(f"[{alone}][{marks}{ignored}]*|[{joined}][{joined}{marks}{ignored}]*"), re.compile(f"[{ignored}]+")


def _ranges(chosen: np.ndarray) -> str:
    """The code points that are chosen, (0x110000,) bool, as they are written between the brackets of a pattern."""
    borders = np.flatnonzero(np.diff(chosen, prepend=False, append=False))  # start, stop, start, stop, ...
    return "".join(f"\\U{start:08x}-\\U{stop - 1:08x}" for start, stop in borders.reshape(-1, 2).tolist())


def _folded(word: str) -> str:
    """The canonical caseless form of a word."""
    if word.isascii():
        return word.lower()
    return normalize("NFD", normalize("NFD", _patterns()[1].sub("", word)).casefold())


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of a text.

    Attributes:
        folded: in canonical caseless form.
        starts: (num_words + 1,) the first character of each, and the length of the text.
    """

    text: str
    folded: list[str]
    starts: list[int]

    @classmethod
    def of(cls, text: str) -> Self:
        matches = list(_patterns()[0].finditer(text))
        return cls(text, [_folded(match.group()) for match in matches], [*(match.start() for match in matches), len(text)])

    def between(self, start: int, stop: int) -> str:
        """Words [start, stop) as written, each with what follows it; the first word of the text also with what precedes it."""
        return self.text[self.starts[start] if start else 0 : self.starts[stop]] if start < stop else ""


def _ngrams(words: Sequence[str], size: int, unit: Literal["word", "char"]) -> set[tuple[str, ...]]:
    """The n-grams of a text; one for a shorter text, none for a text without words."""
    units = words if unit == "word" else "".join(words)
    if len(units) < size:
        return {tuple(units)} if units else set()
    return set(zip(*(units[start:] for start in range(size))))


def _opcodes(first: Sequence[str], second: Sequence[str]) -> tuple[list[Opcode], bool]:
    """The opcodes of difflib that turn one list of words into the other, and whether they reach the ends of both."""
    shorter = min(len(first), len(second))
    head = next((index for index in range(shorter) if first[index] != second[index]), shorter)
    rest = shorter - head
    tail = next((index for index in range(rest) if first[-1 - index] != second[-1 - index]), rest)
    stops = len(first) - tail, len(second) - tail
    is_aligned = max(stops) - head <= ALIGNED_WORDS
    middle, second_middle = (words[head : min(stop, head + ALIGNED_WORDS)] for words, stop in zip((first, second), stops))
    opcodes = [
        (tag, head + start, head + stop, head + second_start, head + second_stop)
        for tag, start, stop, second_start, second_stop in SequenceMatcher(None, middle, second_middle).get_opcodes()
    ]
    if not is_aligned:  # what follows the last equal words may be equal to words beyond the limit
        last_equal = max((index for index, opcode in enumerate(opcodes) if opcode[0] == "equal"), default=None)
        opcodes = opcodes if last_equal is None else opcodes[: last_equal + 1]
    beginning: list[Opcode] = [("equal", 0, head, 0, head)] if head else []
    end: list[Opcode] = [("equal", stops[0], len(first), stops[1], len(second))] if tail and is_aligned else []
    return _without_islands([*beginning, *opcodes, *end]), is_aligned


def _without_islands(opcodes: Sequence[Opcode]) -> list[Opcode]:
    """Opcodes in which a few equal words between longer differences count as differing: they match by chance."""
    joined: list[Opcode] = []
    for index, (tag, start, stop, second_start, second_stop) in enumerate(opcodes):
        is_inside = 0 < index < len(opcodes) - 1
        is_island = (
            tag == "equal"
            and is_inside
            and stop - start <= _ISLAND_WORDS
            and all(_num_words(opcodes[neighbour]) >= stop - start for neighbour in (index - 1, index + 1))
        )
        differs = is_island or tag != "equal"
        if joined and joined[-1][0] == "differ" and differs:
            _, joined_start, _, joined_second, _ = joined.pop()
            joined.append(("differ", joined_start, stop, joined_second, second_stop))
        else:
            joined.append(("differ" if differs else tag, start, stop, second_start, second_stop))
    return joined


def _num_words(opcode: Opcode) -> int:
    _, start, stop, second_start, second_stop = opcode
    return max(stop - start, second_stop - second_start)


def _groups(opcodes: Sequence[Opcode], context: int | None) -> list[list[Opcode]]:
    """Opcodes split where more than twice `context` equal words separate them; each group keeps `context` of these words."""
    if context is None:
        return [list(opcodes)]
    groups: list[list[Opcode]] = [[]]
    for index, (tag, start, stop, second_start, second_stop) in enumerate(opcodes):
        before = 0 if index == 0 else context
        after = 0 if index == len(opcodes) - 1 else context
        if tag != "equal" or stop - start <= before + after:
            groups[-1].append((tag, start, stop, second_start, second_stop))
            continue
        if before:
            groups[-1].append((tag, start, start + before, second_start, second_start + before))
        if after:
            groups.append([(tag, stop - after, stop, second_stop - after, second_stop)])
    return [group for group in groups if any(tag != "equal" for tag, *_ in group)]


def _passage(group: Sequence[Opcode], words: tuple[_Words, _Words], num_words: tuple[int, int]) -> Passage:
    segments: tuple[list[Segment], list[Segment]] = ([], [])
    for tag, start, stop, second_start, second_stop in group:
        for text_words, text_segments, (low, high) in zip(words, segments, ((start, stop), (second_start, second_stop))):
            if low < high:
                text_segments.append(Segment(text=text_words.between(low, high), differs=tag != "equal"))
    return Passage(
        first=tuple(segments[0]),
        second=tuple(segments[1]),
        differing=sum(stop - start + high - low for tag, start, stop, low, high in group if tag != "equal"),
        begins=group[0][1] == group[0][3] == 0,
        ends=(group[-1][2], group[-1][4]) == num_words,
    )
