"""Drops pages of lists, headings and repeated lines, by the three rules of FineWeb (Penedo et al. 2024) and its list rule.

    lines  ->  share that ends a sentence, share that is short, share of characters in copies
    words  ->  newlines per word

Lines are the text between newlines, white space included; blank lines are ignored. A line ends a sentence if its last
character is a Unicode sentence terminal of any script, not a quote or a bracket. Every occurrence of a line but the first is a
copy; the share of copies is of all characters but newlines.

`datatrove` is the code that made FineWeb, as the authors of FineWeb-2 (Penedo et al. 2025) confirm. A value equal to a limit
passes. A document without lines fails the rule `empty`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from datapipe.kernels.filters import fineweb
from datapipe.kernels.filters.repetition import COPIED_CHARS, Units, unit_repetition
from datapipe.kernels.text.raw_lines import CHARS, NEWLINES
from datapipe.stage import FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.segmentation.lines import lines
from datapipe.stage.segmentation.raw_lines import raw_lines
from stages.filter._thresholds.by_language import LanguageColumn, LanguageFilter
from stages.filter._words import WHAT_WORDS_ARE, WordRule

_PROFILES: dict[str, dict[str, Any]] = {
    "datatrove": {},
    "paper": {"words": "whitespace", "max_duplicate_line_chars": 0.1},
    "fineweb2": {"max_duplicate_line_chars": 0.1, "max_short_lines": 1.0},
}


class FinewebQuality(LanguageFilter):
    """Drops pages whose lines end no sentences, are short, are repeated or have few words, by the rules of FineWeb."""

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = _PROFILES
    of_languages: ClassVar[Mapping[str, Any]] = {"profile": "fineweb2"}

    profile: Literal["datatrove", "paper", "fineweb2"] = Field(
        default="datatrove",
        description="Defaults of the options below. datatrove: the code that made FineWeb, 0.01 of characters in copies. "
        "paper: the text of the paper, 0.1, words between white space. fineweb2: 0.1, no rule for short lines, thresholds by "
        "language.",
    )
    language: str | LanguageColumn | None = Field(
        default=None,
        description="Use FineWeb-2's thresholds for this language (de, or deu_Latn), and profile fineweb2. {column: NAME}: for "
        "the language of each document, by a column.",
    )
    words: WordRule = Field(
        default="english",
        description=WHAT_WORDS_ARE + "Default by profile: english, whitespace (paper); by language: english or dictionary.",
    )
    min_ended_lines: float = Field(default=0.12, ge=0, le=1, description="Minimum share of lines that end a sentence.")
    allow_no_ended_lines: bool = Field(default=False, description="Keep a text in which no line ends a sentence.")
    sentence_ends: str | None = Field(
        default=None, description="Characters that end a sentence. Default: Unicode's sentence terminals, of all scripts."
    )
    max_short_lines: float = Field(default=0.67, ge=0, le=1, description="Maximum share of short lines.")
    short_line_chars: int = Field(default=30, ge=0, le=2**31 - 1, description="Maximum number of characters in a short line.")
    max_duplicate_line_chars: float = Field(
        default=0.01, ge=0, description="Maximum share of characters in copies of lines; paper and fineweb2: 0.1."
    )
    max_newlines_per_word: float = Field(default=0.3, ge=0, description="Maximum number of newlines per word.")

    def rules(self) -> Sequence[Rule]:
        return [
            Rule(name="empty", limit=1.0, side="min"),
            self.at_least("too_few_ended_lines", "min_ended_lines"),
            self.at_most("short_lines", "max_short_lines"),
            self.at_most("duplicate_line_chars", "max_duplicate_line_chars"),
            self.at_most("newlines_per_word", "max_newlines_per_word"),
        ]

    def process(self, batch: DocumentBatch) -> FilterResult:
        trimmed, raw = lines(batch), raw_lines(batch)
        ends = fineweb.ends_table(self.sentence_ends)
        num_lines, ended, short = fineweb.line_ends(trimmed, raw, batch.buffers[1], ends, self.short_line_chars).T
        units = Units(doc_offsets=trimmed.doc_offsets, hashes=raw.hashes, chars=raw.chars)
        copied = unit_repetition(units, every=False)[:, COPIED_CHARS]
        num_chars, newlines = raw.totals[:, CHARS], raw.totals[:, NEWLINES]
        variants = self.variants(batch)
        words = self.words_of(batch, variants)
        ended_share = ended / np.maximum(num_lines, 1)
        if self.allow_no_ended_lines:
            ended_share = np.where(ended == 0, 1.0, ended_share)
        measured = [
            num_lines,
            ended_share,
            short / np.maximum(num_lines, 1),
            copied / np.maximum(num_chars - newlines, 1),
            newlines / np.maximum(np.diff(words.doc_offsets), 1),
        ]
        return self.decided(measured, variants)
