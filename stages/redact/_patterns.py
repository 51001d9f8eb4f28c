"""Patterns of the user's rules: `re` in windows around the hits of their keywords.

    hits  ─▶ windows from 256 bytes before a keyword to 2,048 behind it, or as long as a match may be  ─▶ matches  ─▶ secrets

A pattern without keywords reads every text, in windows that overlap. A match at the edge of its window is none, unless the
text ends there. The secret is the group of the rule, else the first group that took part, else the match.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from datapipe.kernels.redact.keywords import Hits
from datapipe.kernels.redact.pii import FoundSpans
from stages.redact._regex import most_characters

_REPLACED = re.compile(r"<SECRET>|<PRIVATE_KEY>|EXAMPLE-[0-9a-f]{16}")
"""What replaces secrets: found again, it would be counted again."""
BYTES_BEFORE, BYTES_BEHIND = 256, 2_048


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """What is no secret: where one of `patterns` matches the target, or a stop word is in the secret; both with `needs_all`.

    Attributes:
        target: "secret", "match" or "line".
    """

    patterns: tuple[re.Pattern[str], ...]
    stop_words: tuple[str, ...]
    target: str
    needs_all: bool

    def holds(self, secret: str, match: str, line: str) -> bool:
        text = {"secret": secret, "match": match, "line": line}[self.target]
        checks = []
        if self.patterns:
            checks.append(any(pattern.search(text) for pattern in self.patterns))
        if self.stop_words:
            checks.append(any(word in secret.lower() for word in self.stop_words))
        return bool(checks) and (all(checks) if self.needs_all else any(checks))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """A rule of the user.

    Attributes:
        id: its name.
        keywords: in small letters; () to read every text.
        pattern: what is looked for.
        group: the group that is the secret; 0: the first that took part.
        entropy: what the secret exceeds, in bits a character by the frequencies of its characters; 0: no limit.
        exceptions: what is no secret.
    """

    id: str
    keywords: tuple[str, ...]
    pattern: re.Pattern[str]
    group: int
    entropy: float
    exceptions: tuple[Allowance, ...]


class Patterns:
    """The patterns of a file of rules, by the numbers of their keywords."""

    def __init__(self, patterns: Sequence[Pattern], numbers: dict[str, int], kind: int) -> None:
        self._kind, self._patterns = kind, patterns
        self._numbers = [np.array([numbers[word] for word in pattern.keywords], np.int32) for pattern in patterns]

    def near_hits(self, offsets: np.ndarray, data: np.ndarray, hits: Hits) -> FoundSpans:
        """The secrets near hits, of the patterns with keywords; they may overlap."""
        spans = list[tuple[int, int]]()
        for pattern, numbers in zip(self._patterns, self._numbers):
            if len(numbers):
                positions = hits.positions[np.isin(hits.numbers, numbers)]
                behind = min(BYTES_BEHIND, BYTES_BEFORE + most_characters(pattern.pattern))
                spans += _found(pattern, data, _windows(offsets, positions, behind))
        return self._spans(spans)

    def anywhere(self, offsets: np.ndarray, data: np.ndarray) -> FoundSpans:
        """The secrets of the patterns without keywords."""
        spans = list[tuple[int, int]]()
        if any(not pattern.keywords for pattern in self._patterns):
            positions = np.arange(offsets[0], offsets[-1], BYTES_BEHIND, dtype=np.int64)
            positions = np.union1d(positions, offsets[:-1][np.diff(offsets) > 0])
            for pattern in self._patterns:
                if not pattern.keywords:
                    spans += _found(pattern, data, _windows(offsets, positions, BYTES_BEHIND))
        return self._spans(spans)

    def _spans(self, spans: list[tuple[int, int]]) -> FoundSpans:
        starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
        return FoundSpans(starts=starts, stops=stops, kinds=np.full(len(spans), self._kind, np.uint8))


def _windows(offsets: np.ndarray, positions: np.ndarray, behind: int) -> Iterator[tuple[int, int, int, int]]:
    """The windows around positions in text order, at most four times as long as one, and the document around each."""
    documents = np.searchsorted(offsets[1:], positions, side="right")
    begins, ends = offsets[documents], offsets[documents + 1]
    lows, highs = np.maximum(positions - BYTES_BEFORE, begins), np.minimum(positions + behind, ends)
    window: tuple[int, int, int, int] | None = None
    for low, high, begin, end in zip(lows.tolist(), highs.tolist(), begins.tolist(), ends.tolist()):
        if window and begin == window[2] and low <= window[1] and high - window[0] <= 4 * BYTES_BEHIND:
            window = (window[0], high, begin, end)
            continue
        if window:
            yield window
        window = (low, high, begin, end)
    if window:
        yield window


def _found(pattern: Pattern, data: np.ndarray, windows: Iterator[tuple[int, int, int, int]]) -> list[tuple[int, int]]:
    """Start and stop of the secrets of a pattern, in bytes."""
    spans = []
    for start, high, begin, end in windows:
        low = start
        while low < high and data[low] & 0xC0 == 0x80:
            low += 1  # a window begins with a whole character
        text = data[low:high].tobytes().decode("utf-8", "surrogateescape")
        replaced = [match.span() for match in _REPLACED.finditer(text)]
        for match in pattern.pattern.finditer(text):
            is_cut = (match.start() == 0 and low > begin) or (match.end() == len(text) and high < end)
            group = pattern.group or next((number for number, part in enumerate(match.groups(), 1) if part), 0)
            first, stop = match.span(group)
            is_cut |= any(first < after and before < stop for before, after in replaced)
            if first < stop and not is_cut and _is_secret(pattern, text, match, match[group]):
                first = low + len(text[:first].encode("utf-8", "surrogateescape"))
                spans.append((first, first + len(match[group].encode("utf-8", "surrogateescape"))))
    return spans


def _is_secret(pattern: Pattern, text: str, match: re.Match[str], secret: str) -> bool:
    """Whether a match has the entropy of its rule and is no exception."""
    if pattern.entropy and _entropy(secret) <= pattern.entropy:
        return False
    line = text[text.rfind("\n", 0, match.start()) + 1 : (text + "\n").find("\n", match.end())]
    return not any(exception.holds(secret, match[0], line) for exception in pattern.exceptions)


def _entropy(text: str) -> float:
    """Bits a character, by the frequencies of the characters."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())
