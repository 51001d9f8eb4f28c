"""Differences between two texts, for people who decide whether one may replace the other.

    texts  ─▶  words  ─┬─▶  words of one text alone, n-grams in common: over everything that is compared
                       └─▶  without the common beginning and end  ─▶  aligned  ─▶  passages that differ, with context

Words are those of near-duplicate detection (`word_characters.py`), in Unicode's canonical caseless form, so every difference
that separates n-grams is shown. In scripts without spaces each character is a word. The comparison covers the first
`COMPARED_CHARS` of each text, and alignment `ALIGNED_WORDS` words between the first and the last difference: at most 2 s.
"""

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Literal
from unicodedata import normalize

import numpy as np

from datapipe.dataclass import dataclass
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
    """Words of two texts that differ, with some common words around them: how many differ in both,
    and whether the passage contains the beginning, and the end, of both texts."""

    first: tuple[Segment, ...]
    second: tuple[Segment, ...]
    differing: int
    begins: bool
    ends: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    is_equal: bool  # letter by letter
    # words, only: words of each text, and of these words that the other lacks, each as often as it occurs
    words: tuple[int, int]
    only: tuple[int, int]
    in_common: float  # n-grams that are in both, as a share of those in either (Jaccard)
    passages: tuple[Passage, ...]  # in the order of the texts; none where the words are the same
    is_whole: bool  # whether the comparison covers all of both texts
    is_aligned: bool  # whether the passages reach the end of what is compared


def difference(
    first: str, second: str, shingles: tuple[int, Literal["word", "char"]] = (5, "word"), context: int | None = CONTEXT_WORDS
) -> Difference:
    """Compares two texts by n-grams. `context`: common words around a difference; None for all."""
    texts = first[:COMPARED_CHARS], second[:COMPARED_CHARS]
    spans = word_spans(texts[0]), word_spans(texts[1])
    words = [[_folded(text[start:stop]) for start, stop in each] for text, each in zip(texts, spans)]
    starts = [[*(start for start, _ in each), len(text)] for text, each in zip(texts, spans)]
    counts = Counter(words[0]), Counter(words[1])
    grams = _ngrams(words[0], *shingles), _ngrams(words[1], *shingles)
    num_either = len(grams[0] | grams[1])
    opcodes, is_aligned = _opcodes(*words)
    differs = any(tag != "equal" for tag, *_ in opcodes)
    groups = [] if not differs else [opcodes] if context is None else _groups(opcodes, context)
    return Difference(
        is_equal=first == second,
        words=(len(words[0]), len(words[1])),
        only=((counts[0] - counts[1]).total(), (counts[1] - counts[0]).total()),
        in_common=len(grams[0] & grams[1]) / num_either if num_either else 1.0,
        passages=tuple(_passage(group, texts, starts) for group in groups),
        is_whole=texts == (first, second),
        is_aligned=is_aligned,
    )


def word_spans(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in _patterns()[0].finditer(text)]


@lru_cache(maxsize=1)
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    kinds = word_table()
    joined = _ranges((kinds & (LETTER | NUMBER) != 0) & (kinds & ALONE == 0))
    alone, marks, ignored = (_ranges(kinds & kind != 0) for kind in (ALONE, MARK, IGNORED))
    return re.compile(f"[{alone}][{marks}{ignored}]*|[{joined}][{joined}{marks}{ignored}]*"), re.compile(f"[{ignored}]+")


def _ranges(chosen: np.ndarray) -> str:
    """The chosen code points, (0x110000,) bool, as a pattern writes them between brackets."""
    borders = np.flatnonzero(np.diff(chosen, prepend=False, append=False))  # start, stop, start, stop, ...
    return "".join(f"\\U{start:08x}-\\U{stop - 1:08x}" for start, stop in borders.reshape(-1, 2).tolist())


def _folded(word: str) -> str:
    if word.isascii():
        return word.lower()
    return normalize("NFD", normalize("NFD", _patterns()[1].sub("", word)).casefold())


def _ngrams(words: Sequence[str], size: int, unit: Literal["word", "char"]) -> set[tuple[str, ...]]:
    units = words if unit == "word" else "".join(words)
    if len(units) < size:
        return {tuple(units)} if units else set()
    return set(zip(*(units[start:] for start in range(size))))


def _opcodes(first: Sequence[str], second: Sequence[str]) -> tuple[list[Opcode], bool]:
    """The opcodes of difflib for two lists of words, and whether they reach the ends of both."""
    head, tail = common_ends(first, second)
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


def common_ends(first: Sequence[str], second: Sequence[str]) -> tuple[int, int]:
    """Numbers of equal items: at the beginning of both, and at the end of what follows it."""
    head = _common_start(first, second)
    return head, _common_start(first[head:][::-1], second[head:][::-1])


def _common_start(first: Sequence[str], second: Sequence[str]) -> int:
    differing = (index for index, (left, right) in enumerate(zip(first, second)) if left != right)
    return next(differing, min(len(first), len(second)))


def _without_islands(opcodes: Sequence[Opcode]) -> list[Opcode]:
    """Opcodes where a few equal words between longer differences differ: they match by chance."""
    joined: list[Opcode] = []
    for index, (tag, start, stop, low, high) in enumerate(opcodes):
        neighbours = (*opcodes[max(index - 1, 0) : index], *opcodes[index + 1 : index + 2])
        beside = [max(each[2] - each[1], each[4] - each[3]) for each in neighbours]
        is_island = stop - start <= _ISLAND_WORDS and len(beside) == 2 and min(beside) >= stop - start
        differs = is_island or tag != "equal"
        if joined and joined[-1][0] == "differ" and differs:
            _, first_start, _, first_low, _ = joined.pop()
            joined.append(("differ", first_start, stop, first_low, high))
        else:
            joined.append(("differ" if differs else tag, start, stop, low, high))
    return joined


def _groups(opcodes: Sequence[Opcode], context: int) -> list[list[Opcode]]:
    """Opcodes split at more than twice `context` equal words, which keep `context` of them."""
    groups: list[list[Opcode]] = [[]]
    for tag, start, stop, low, high in opcodes:
        if tag == "equal" and stop - start > 2 * context:
            groups[-1].append((tag, start, start + context, low, low + context))
            groups.append([(tag, stop - context, stop, high - context, high)])
        else:
            groups[-1].append((tag, start, stop, low, high))
    return [group for group in groups if any(tag != "equal" for tag, *_ in group)]


def _passage(group: Sequence[Opcode], texts: tuple[str, str], starts: Sequence[Sequence[int]]) -> Passage:
    """A passage. A word is written with what follows it, the first one of a text also with what
    precedes it. `starts` are those of the words of both texts, with the ends of the texts."""
    segments: tuple[list[Segment], list[Segment]] = ([], [])
    for tag, start, stop, second_start, second_stop in group:
        for text, own, out, (low, high) in zip(texts, starts, segments, ((start, stop), (second_start, second_stop))):
            if low < high:
                out.append(Segment(text=text[own[low] if low else 0 : own[high]], differs=tag != "equal"))
    return Passage(
        first=tuple(segments[0]),
        second=tuple(segments[1]),
        differing=sum(stop - start + high - low for tag, start, stop, low, high in group if tag != "equal"),
        begins=group[0][1] == group[0][3] == 0,
        ends=(group[-1][2] + 1, group[-1][4] + 1) == (len(starts[0]), len(starts[1])),
    )
