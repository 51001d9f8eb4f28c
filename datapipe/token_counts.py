"""Counts of texts and their tokens, by language and by licence: sums over documents, which no cut of the work changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self


class Sums:
    """Base of records whose fields are sums of numbers."""

    __slots__ = ()

    def add(self, other: Self) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


MAX_LANGUAGES = 256
MAX_LANGUAGE_BYTES = 32
"""A column named `language` with more values or longer ones holds something else, and tokens are not counted by it."""


@dataclass(slots=True)
class TokenCounts(Sums):
    """Texts and their tokens.

    Attributes:
        documents: how many texts.
        bytes: UTF-8 bytes.
        words: as `str.split` splits them.
        tokens: without end-of-text tokens.
    """

    documents: int = 0
    bytes: int = 0
    words: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Fertility:
    """Token counts of a source, in total and by the language of its documents.

    Attributes:
        languages: empty where documents have none; None where they have more than `MAX_LANGUAGES`. A part never has more than
            the whole, so the result does not depend on how the source was split.
        unknown: of the tokens, those that stand for text without a token.
    """

    total: TokenCounts = field(default_factory=TokenCounts)
    languages: dict[str, TokenCounts] | None = field(default_factory=dict)
    unknown: int = 0

    def add(self, other: Fertility) -> None:
        self.total.add(other.total)
        self.unknown += other.unknown
        if other.languages is None:
            self.languages = None
        for name, counts in (other.languages or {}).items():
            self.add_language(name, counts)

    def add_language(self, name: str, counts: TokenCounts) -> None:
        if self.languages is None:
            return
        self.languages.setdefault(name, TokenCounts()).add(counts)
        if len(self.languages) > MAX_LANGUAGES or len(name.encode()) > MAX_LANGUAGE_BYTES:
            self.languages = None


MAX_LICENSES = 256


@dataclass(slots=True)
class LicenseCounts:
    """Token counts of a source by the licences that its documents give.

    Attributes:
        by_license: "unknown" for documents that give none; empty where no column is counted; None where there are more than
            `MAX_LICENSES`. A part never has more than the whole, so the result does not depend on how the source was split.
    """

    by_license: dict[str, TokenCounts] | None = field(default_factory=dict)

    def add(self, other: LicenseCounts) -> None:
        if other.by_license is None:
            self.by_license = None
        for name, counts in (other.by_license or {}).items():
            self.count(name, counts)

    def count(self, name: str, counts: TokenCounts) -> None:
        if self.by_license is None:
            return
        self.by_license.setdefault(name, TokenCounts()).add(counts)
        if len(self.by_license) > MAX_LICENSES:
            self.by_license = None
