"""Drops pages of lists, headings and repeated lines, by the three rules of FineWeb (Penedo et al. 2024) and its list rule.

    lines  ->  share that ends a sentence, share that is short, share of characters in copies
    words  ->  newlines per word

Lines are those between newlines that are not blank, white space around them included. A line ends a sentence where its last
character is one of Unicode's sentence terminals, of any script; quotes and brackets are not. A copy is the second and any later
occurrence of a line, of all characters but newlines.

The profiles are what was published in two places: `datatrove` is the code that made FineWeb, with 0.01 for characters in copies
(FineWeb-2's authors say so); `paper` has the 0.1 of the paper's text, and words between white space. `fineweb2` is what
FineWeb-2 ran: 0.1, no rule for short lines, and thresholds by `language` (`_fineweb2.py`).

A limit itself passes. A document without lines fails `empty`.

One core of a 2-core AMD EPYC, English web text: 56 MB/s with finding words and lines, 106 by profile `paper`, 850 where they
are found already. On 3,526 real documents `datatrove` decides as datatrove 0.10.1 does on all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from datapipe.kernels.filters import fineweb
from datapipe.kernels.filters.repetition import COPIED_CHARS, Units, unit_repetition
from datapipe.kernels.text.raw_lines import CHARS, NEWLINES
from datapipe.stage import FilterResult, Rule
from datapipe.stage.documents import WORD_SEGMENTATIONS, DocumentBatch
from stages.filter._fineweb2 import Settings
from stages.filter._profiles import ProfiledFilter, words_of

_PROFILES: dict[str, dict[str, Any]] = {
    "datatrove": {},
    "paper": {"words": "whitespace", "max_duplicate_line_chars": 0.1},
    "fineweb2": {"max_duplicate_line_chars": 0.1, "max_short_lines": 1.0},
}


class FinewebQuality(ProfiledFilter):
    """Drops pages whose lines end no sentences, are short, are repeated, or hold few words each."""

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = _PROFILES
    profile_of_languages: ClassVar[str] = "fineweb2"

    profile: Literal["datatrove", "paper", "fineweb2"] = Field(
        default="datatrove",
        description="datatrove: the code behind FineWeb, 0.01 of characters in copies. paper: its text, 0.1, and words "
        "between white space. fineweb2: 0.1, no rule for short lines, thresholds by language. Given options win.",
    )
    language: str | None = Field(
        default=None,
        description="Take the thresholds that FineWeb-2 has for this language (de, or deu_Latn), and profile fineweb2. Given "
        "options win.",
    )
    words: Literal["whitespace", "english", "unicode"] = Field(
        default="english",
        description="What a word is. whitespace: between white space. english: as spaCy cuts English, signs among them. "
        "unicode: without signs, in any script. By profile: english, whitespace (paper).",
    )
    min_ended_lines: float = Field(default=0.12, ge=0, le=1, description="Least share of lines that end a sentence.")
    allow_no_ended_lines: bool = Field(default=False, description="Whether a text with no such line at all passes that rule.")
    sentence_ends: str | None = Field(
        default=None, description="Characters that end a sentence. Default: Unicode's sentence terminals, of all scripts."
    )
    max_short_lines: float = Field(default=0.67, ge=0, le=1, description="Greatest share of short lines.")
    short_line_chars: int = Field(default=30, ge=0, le=2**31 - 1, description="Characters up to which a line is short.")
    max_duplicate_line_chars: float = Field(
        default=0.01,
        ge=0,
        description="Greatest share of characters in copies of lines. By profile: 0.01, 0.1 (paper, fineweb2).",
    )
    max_newlines_per_word: float = Field(default=0.3, ge=0, description="Most newlines per word.")

    @classmethod
    def of_language(cls, found: Settings) -> dict[str, Any]:
        limits = {"min_ended_lines": found.min_punctuation_lines, "max_newlines_per_word": found.max_newline_ratio}
        return {"words": words_of(found), **limits}

    def segmentations(self) -> tuple[str, ...]:
        return (WORD_SEGMENTATIONS[self.words],)

    def rules(self) -> Sequence[Rule]:
        return [
            Rule(name="empty", limit=1.0, side="min"),
            self.at_least("few_ended_lines", "min_ended_lines"),
            self.at_most("short_lines", "max_short_lines"),
            self.at_most("duplicate_line_chars", "max_duplicate_line_chars"),
            self.at_most("newlines_per_word", "max_newlines_per_word"),
        ]

    def process(self, batch: DocumentBatch) -> FilterResult:
        lines, raw = batch.lines, batch.raw_lines
        ends = fineweb.ends_table(self.sentence_ends)
        num_lines, ended, short = fineweb.line_ends(lines, raw, batch.buffers[1], ends, self.short_line_chars).T
        units = Units(doc_offsets=lines.doc_offsets, hashes=raw.hashes, chars=raw.chars)
        copied = unit_repetition(units, every=False)[:, COPIED_CHARS]
        num_chars, newlines = raw.totals[:, CHARS], raw.totals[:, NEWLINES]
        words = batch.words_by(self.words)
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
        return FilterResult.judged(self.rules(), measured)
