"""Counts of texts and their tokens, by language and by licence: sums over documents, which no cut of the work changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

REACHES = ()  # look-ups by name are of counters


class Sums:
    """Base of records whose fields are sums of numbers."""

    __slots__ = ()

    def add(self, other: Self) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


MAX_NAMES = 256
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
class NamedCounts:
    """Token counts by a name that documents have, such as a licence.

    Attributes:
        by_name: empty where documents have no names; None where there are more than `MAX_NAMES`, or a longer one than
            `max_bytes`. A part never has more than the whole, so the result does not depend on how a source was split.
    """

    by_name: dict[str, TokenCounts] | None = field(default_factory=dict)
    max_bytes: int | None = None

    def add(self, other: NamedCounts) -> None:
        if other.by_name is None:
            self.by_name = None
        for name, counts in (other.by_name or {}).items():
            self.count(name, counts)

    def count(self, name: str, counts: TokenCounts) -> None:
        if self.by_name is None:
            return
        self.by_name.setdefault(name, TokenCounts()).add(counts)
        if len(self.by_name) > MAX_NAMES or (self.max_bytes is not None and len(name.encode()) > self.max_bytes):
            self.by_name = None

    def to_json(self) -> dict[str, Any] | None:
        return None if self.by_name is None else {name: counts.to_json() for name, counts in sorted(self.by_name.items())}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None, max_bytes: int | None = None) -> NamedCounts:
        by_name = None if data is None else {name: TokenCounts(**counts) for name, counts in data.items()}
        return cls(by_name=by_name, max_bytes=max_bytes)


@dataclass(slots=True)
class Fertility:
    """Token counts of a source, in total and by the language of its documents.

    Attributes:
        unknown: of the tokens, those that stand for text without a token.
    """

    total: TokenCounts = field(default_factory=TokenCounts)
    languages: NamedCounts = field(default_factory=lambda: NamedCounts(max_bytes=MAX_LANGUAGE_BYTES))
    unknown: int = 0

    def add(self, other: Fertility) -> None:
        self.total.add(other.total)
        self.unknown += other.unknown
        self.languages.add(other.languages)

    def to_json(self) -> dict[str, Any]:
        unknown = {"unknown": self.unknown} if self.unknown else {}
        return {"total": self.total.to_json(), "languages": self.languages.to_json(), **unknown}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Fertility:
        languages = NamedCounts.from_json(data["languages"], MAX_LANGUAGE_BYTES)
        return cls(total=TokenCounts(**data["total"]), languages=languages, unknown=data.get("unknown", 0))
