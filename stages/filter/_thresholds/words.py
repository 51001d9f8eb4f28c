"""The words that a filter counts: by the rule of an option, which a language may imply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from datapipe.stage import DocumentBatch
from stages.filter._thresholds.fineweb2 import Settings

if TYPE_CHECKING:
    from datapipe.kernels.text.words import Words

_WITHOUT_SPACES = ("Hani", "Hans", "Hant", "Jpan", "Thai", "Laoo", "Khmr", "Mymr")


def words_by(batch: DocumentBatch, rule: Literal["whitespace", "english", "unicode"]) -> Words:
    """The words of a batch by a rule."""
    if rule == "english":
        return batch.english_words
    return batch.words if rule == "whitespace" else batch.unicode_words


def words_of(settings: Settings) -> Literal["english", "unicode"]:
    """The rule of a language: Unicode words where no space separates words, else words and signs."""
    return "unicode" if settings.code.partition("_")[2] in _WITHOUT_SPACES else "english"
