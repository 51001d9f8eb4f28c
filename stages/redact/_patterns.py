"""Patterns of the user's rules, by RE2: each reads the whole of a text that has one of its keywords.

    hits of keywords  ─▶ texts for each pattern  ─▶ matches  ─▶ the secret of each: its group, else the first group, else all

RE2 takes linear time for one match, so no pattern hangs, and it reads what gitleaks, written in Go, reads. A pattern that may
match one character, or else a whole text, still takes quadratic time on a text made for it: 90 kB take four seconds.
"""

import importlib
import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.kernels.redact.keywords import Hits
from datapipe.kernels.redact.spans import FoundSpans
from datapipe.machine.libraries import require

_REPLACED = re.compile(rb"<SECRET>|<PRIVATE_KEY>|EXAMPLE-[0-9a-f]{16}")
"""What replaces secrets: found again, it would be counted again."""
LIBRARY = "google-re2"
_MAX_MEMORY = 64 << 20
_HALF_CHARACTERS = re.compile(r"(?<!\\)(?:\\\\)*\\C")


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """No secret: where one of `patterns` matches the target ("secret", "match" or "line"), or a
    stop word is in the secret; with `needs_all` both."""

    patterns: tuple[Any, ...]
    stop_words: tuple[bytes, ...]
    target: str
    needs_all: bool

    def holds(self, secret: bytes, match: bytes, line: bytes) -> bool:
        text = {"secret": secret, "match": match, "line": line}[self.target]
        checks = []
        if self.patterns:
            checks.append(any(pattern.search(text) for pattern in self.patterns))
        if self.stop_words:
            checks.append(any(word in secret.lower() for word in self.stop_words))
        return bool(checks) and (all(checks) if self.needs_all else any(checks))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """A rule of the user: keywords in small letters, () to read every text; the group that is the secret, 0 for the first that
    took part; the entropy that the secret exceeds, in bits a character, 0 for no limit; exceptions."""

    id: str
    keywords: tuple[str, ...]
    pattern: Any
    group: int
    entropy: float
    exceptions: tuple[Allowance, ...]


def compiled(written: str) -> Any:
    """The pattern of an expression. Raises ValueError with what is wrong, and UserError where RE2 is not installed."""
    require(LIBRARY, "redact.secrets with rules")
    library = importlib.import_module("re2")
    if _HALF_CHARACTERS.search(written):
        raise ValueError("has \\C, which may match half a character. Write . or a class such as [A-Za-z]")
    options = library.Options()
    options.log_errors, options.max_mem = False, _MAX_MEMORY
    try:
        return library.compile(written.encode(), options)
    except library.error as error:
        reason = error.args[0] if error.args else error
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise ValueError(f"is no regular expression of RE2, which gitleaks reads too: {reason}. Correct it") from error


class Patterns:
    """The patterns of a file of rules, by the numbers of their keywords."""

    def __init__(self, patterns: Sequence[Pattern], numbers: dict[str, int], kind: int) -> None:
        self._kind, self._num_keywords = kind, len(numbers)
        self._of_keyword, self._everywhere = defaultdict[int, list[Pattern]](list), list[Pattern]()
        for pattern in patterns:
            for word in pattern.keywords:
                self._of_keyword[numbers[word]].append(pattern)
            self._everywhere += [] if pattern.keywords else [pattern]
        self._keywords = np.array(sorted(self._of_keyword), np.int32)

    def places(self, offsets: np.ndarray, hits: Hits) -> np.ndarray:
        """The texts with keywords of patterns, and the keywords: both in one number, once each."""
        is_own = np.isin(hits.numbers, self._keywords)
        documents = np.searchsorted(offsets[1:], hits.positions[is_own], side="right")
        return np.unique(documents * self._num_keywords + hits.numbers[is_own])

    def find(self, offsets: np.ndarray, data: np.ndarray, places: Sequence[np.ndarray]) -> FoundSpans:
        """The secrets in documents with these places, in text order; they may overlap."""
        wanted = defaultdict[int, dict[str, Pattern]](dict)
        for place in np.unique(np.concatenate([np.empty(0, np.int64), *places])).tolist():
            document, number = divmod(place, self._num_keywords)
            wanted[document].update({pattern.id: pattern for pattern in self._of_keyword[number]})
        spans = list[tuple[int, int]]()
        for document in range(len(offsets) - 1) if self._everywhere else sorted(wanted):
            begin, end = offsets[document : document + 2].tolist()
            hits = _found([*self._everywhere, *wanted[document].values()], data[begin:end].tobytes())
            spans += [(begin + start, begin + stop) for start, stop in hits]
        starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
        return FoundSpans(starts, stops, np.full(len(spans), self._kind, np.uint8))


def _found(patterns: Sequence[Pattern], text: bytes) -> Iterator[tuple[int, int]]:
    replaced = [match.span() for match in _REPLACED.finditer(text)]
    stops = [stop for _, stop in replaced]
    for pattern in patterns:
        for match in pattern.pattern.finditer(text):
            group = pattern.group or next((number for number, part in enumerate(match.groups(), 1) if part), 0)
            start, stop = match.span(group)
            following = bisect_right(stops, start)
            is_replaced = following < len(replaced) and replaced[following][0] < stop
            if start < stop and not is_replaced and _is_secret(pattern, text, match.start(), match.end(), text[start:stop]):
                yield start, stop


def _is_secret(pattern: Pattern, text: bytes, start: int, stop: int, secret: bytes) -> bool:
    """Whether the secret of a match has the entropy of its rule and is no exception."""
    if pattern.entropy and _entropy(secret.decode(errors="replace")) <= pattern.entropy:
        return False
    if not pattern.exceptions:
        return True
    end = text.find(b"\n", stop)
    line = text[text.rfind(b"\n", 0, start) + 1 : end if end >= 0 else len(text)]
    return not any(exception.holds(secret, text[start:stop], line) for exception in pattern.exceptions)


def _entropy(text: str) -> float:
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())
