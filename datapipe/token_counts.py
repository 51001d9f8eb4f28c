"""Counts of texts and their tokens, by language or another property of documents: sums, which no cut of the work changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from datapipe.dataclass import dataclass, field


class Sums:
    """Base of records whose fields are sums of numbers, and counters of them."""

    __slots__ = ()

    def add(self, other: Self) -> None:
        for name in self.__slots__:
            own, more = getattr(self, name), getattr(other, name)
            if isinstance(own, dict):  # Counter.update takes ten times as long for a few names
                for key, number in more.items():
                    own[key] = own.get(key, 0) + number
            else:
                setattr(self, name, own + more)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


MAX_NAMES = 256


@dataclass(slots=True)
class TokenCounts(Sums):
    documents: int = 0  # how many texts
    bytes: int = 0  # UTF-8 bytes
    words: int = 0  # as `str.split` splits them
    tokens: int = 0  # without end-of-text tokens


@dataclass(slots=True)
class CountsByName:
    """Token counts of a source by the language or licence that its documents have."""

    # empty where nothing is counted; None where there are more than `MAX_NAMES`. A part never has
    # more than the whole, so the result does not depend on how the source was split.
    by_name: dict[str, TokenCounts] | None = field(default_factory=dict)

    def add(self, other: CountsByName) -> None:
        if other.by_name is None:
            self.by_name = None
        for name, counts in (other.by_name or {}).items():
            self._add(name, counts)

    def subtract(self, other: CountsByName) -> None:
        """Takes away the counts of some of its documents."""
        for name, counts in (other.by_name or {}).items():
            self._add(name, TokenCounts(**{each: -number for each, number in counts.to_json().items()}))

    def count(self, codes: NDArray[np.int64], names: Sequence[str], counted: NDArray[np.int64]) -> None:
        """Adds documents. `codes`: (num_docs,) numbers of `names`. `counted`: (num_docs, 4), the
        fields of `TokenCounts` of each document."""
        if self.by_name is None:
            return
        sums = np.zeros((len(names), counted.shape[1]), np.int64)
        np.add.at(sums, codes, counted)
        for name, row in zip(names, sums.tolist()):
            self._add(name, TokenCounts(*row))

    def _add(self, name: str, counts: TokenCounts) -> None:
        if self.by_name is not None:
            self.by_name.setdefault(name, TokenCounts()).add(counts)
            self.by_name = None if len(self.by_name) > MAX_NAMES else self.by_name


@dataclass(slots=True)
class Fertility:
    """Token counts of a source, in total and by the language of its documents."""

    total: TokenCounts = field(default_factory=TokenCounts)
    languages: CountsByName = field(default_factory=CountsByName)
    unknown: int = 0  # of the tokens, those that stand for text without a token

    def add(self, other: Fertility) -> None:
        self.total.add(other.total)
        self.languages.add(other.languages)
        self.unknown += other.unknown
