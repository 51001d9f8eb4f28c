"""Keeps documents that look like running text, by the quality rules of Gopher (Rae et al. 2021, appendix A1.1).

The paper does not define words, the base of the ratios, or how stop words are compared. The published variants differ:

| | `paper` | `datatrove` | `dclm` |
|---|---|---|---|
| words | separated by white space | as spaCy tokenizes English, with signs | as `paper`; fastText's for the length |
| length | words that are not only punctuation | the same | words that begin with a letter or digit |
| mean length | of these words | the same | of all words |
| `#` and ellipses | each separately, per word | the same | their sum (`. . .` too) per word |
| bullets | • ‣ ◦ ● ▪ - * | • - | ● • * - |
| lines | not blank | blank lines too | not blank |
| stop words | distinct, any case, without signs around them | distinct, exact | all occurrences, any case |

fastText separates words only at ASCII white space. Lengths are in characters. White space around a line is ignored. A value
equal to a limit passes. All measures of a document without words are 0. `paper` is the default: it means the same in every
script that separates words by spaces. `language` takes the thresholds and stop words of FineWeb-2 (`_thresholds/fineweb2.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from datapipe.kernels.filters import quality
from datapipe.kernels.text.raw_lines import ENDS_BLANK, NEWLINES
from datapipe.kernels.text.words import Words
from datapipe.stage import FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.segmentation.lines import lines
from datapipe.stage.segmentation.raw_lines import raw_lines
from datapipe.stage.segmentation.words import words
from stages.filter._thresholds.by_language import LanguageColumn, LanguageFilter, Variants
from stages.filter._words import WHAT_WORDS_ARE, WordRule

_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
_PROFILES: dict[str, dict[str, Any]] = {
    "paper": {},
    "dclm": {"bullets": "●•*-", "stop_word_match": "folded"},
    "datatrove": {"words": "english", "bullets": "•-", "stop_word_match": "exact"},
}
_MATCHES = {"exact": quality.EXACT, "folded": quality.FOLDED, "stripped": quality.STRIPPED}


class GopherQuality(LanguageFilter):
    """Drops documents that are not prose, by number and length of words, symbols, bullets, ellipses and stop words."""

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = _PROFILES
    of_languages: ClassVar[Mapping[str, Any]] = {"profile": "datatrove"}

    profile: Literal["paper", "datatrove", "dclm"] = Field(
        default="paper",
        description="What is measured, and defaults of the options below. paper: words between white space. datatrove: words "
        "as spaCy tokenizes English, blank lines counted, exact stop words. dclm: the length in words of fastText, `#` and "
        "ellipses added up, repeated stop words counted. Options that are given override the profile.",
    )
    language: str | LanguageColumn | None = Field(
        default=None,
        description="Settings of FineWeb-2 for this language (de, or deu_Latn), and profile datatrove. {column: NAME}: for the "
        "language of each document, by a column.",
    )
    words: WordRule = Field(
        default="whitespace",
        description=WHAT_WORDS_ARE
        + "dclm counts only the length in these words; for whitespace it counts words that begin with "
        "a letter or a digit. Default by profile: english (datatrove), else whitespace; by language: english or dictionary.",
    )
    min_words: int = Field(default=50, ge=0, description="Minimum number of words that are not only punctuation.")
    max_words: int = Field(default=100_000, ge=0, description="Maximum number of words that are not only punctuation.")
    min_mean_word_length: float = Field(default=3.0, ge=0, description="Minimum mean length of these words, in characters.")
    max_mean_word_length: float = Field(default=10.0, ge=0, description="Maximum mean length of these words, in characters.")
    max_hash_ratio: float = Field(
        default=0.1, ge=0, description="Maximum number of `#` per word; dclm counts `#` and ellipses together."
    )
    max_ellipsis_ratio: float = Field(
        default=0.1,
        ge=0,
        description="Maximum number of ellipses, `...` or `…`, per word; dclm counts `#` and ellipses together.",
    )
    bullets: str = Field(
        default="•‣◦●▪-*",
        description="Characters that mark a line as a bullet. Default by profile: •- (datatrove), ●•*- (dclm).",
    )
    max_bullet_lines: float = Field(default=0.9, ge=0, le=1, description="Maximum share of lines that start with a bullet.")
    max_ellipsis_lines: float = Field(default=0.3, ge=0, le=1, description="Maximum share of lines that end in an ellipsis.")
    min_letter_words: float = Field(default=0.8, ge=0, le=1, description="Minimum share of words that contain a letter.")
    stop_words: tuple[str, ...] = Field(default=_STOP_WORDS, description="Stop words, in lower case.")
    stop_word_match: Literal["stripped", "folded", "exact"] = Field(
        default="stripped",
        description="How words are compared with stop words. exact: byte by byte. folded: in any case. stripped: in any case, "
        "without the signs around the word. Default by profile: stripped (paper), exact (datatrove), folded (dclm).",
    )
    min_stop_words: int = Field(
        default=2, ge=0, description="Minimum number of distinct stop words, for dclm of occurrences; 0: no such rule."
    )

    def rules(self) -> Sequence[Rule]:
        return [
            self.at_least("too_few_words", "min_words"),
            self.at_most("too_many_words", "max_words"),
            self.at_least("mean_word_length_low", "min_mean_word_length"),
            self.at_most("mean_word_length_high", "max_mean_word_length"),
            self.at_most("hash_ratio", "max_hash_ratio"),
            self.at_most("ellipsis_ratio", "max_ellipsis_ratio"),
            self.at_most("too_many_bullet_lines", "max_bullet_lines"),
            self.at_most("too_many_ellipsis_lines", "max_ellipsis_lines"),
            self.at_least("too_few_letter_words", "min_letter_words"),
            self.at_least("too_few_stop_words", "min_stop_words"),
        ]

    def process(self, batch: DocumentBatch) -> FilterResult:
        variants = self.variants(batch)
        rated = words(batch) if self.profile == "dclm" else self.words_of(batch, variants)
        ratings = quality.word_counts(rated).T
        num_words = np.maximum(ratings[quality.NUM_WORDS], 1)
        lengths = ratings[quality.NUM_CONTENT]
        means = ratings[quality.CONTENT_CHARS] / np.maximum(lengths, 1)
        if self.profile == "dclm":
            lengths, means = self._dclm_lengths(batch, variants), ratings[quality.NUM_CHARS] / num_words
        measured = [lengths, lengths, means, means, *self._symbols(batch, num_words), *self._lines(batch)]
        letters, stop_words = ratings[quality.NUM_LETTERS] / num_words, self._stop_words(batch, rated, variants)
        return self.decided([*measured, letters, stop_words], variants)

    def _dclm_lengths(self, batch: DocumentBatch, variants: Variants[Self]) -> np.ndarray:
        is_white = np.array([rule == "whitespace" for rule in variants.values("words")])[variants.rows]
        starts = quality.word_start_counts(*batch.buffers)
        if is_white.all():
            return starts
        return np.where(is_white, starts, quality.word_counts(self.words_of(batch, variants)).T[quality.NUM_CONTENT])

    def _symbols(self, batch: DocumentBatch, num_words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hashes, ellipses, spaced = quality.symbol_counts(*batch.buffers).T
        if self.profile == "dclm":
            added_up = (hashes + ellipses + spaced) / num_words
            return added_up, added_up
        return hashes / num_words, ellipses / num_words

    def _lines(self, batch: DocumentBatch) -> tuple[np.ndarray, np.ndarray]:
        """Shares of lines that start with a bullet and that end in an ellipsis, (num_docs,) float64 each."""
        bullets, trailing = quality.line_counts(lines(batch), batch.buffers[1], self.bullets, self.profile == "dclm").T
        num_lines = np.diff(lines(batch).doc_offsets)
        if self.profile == "datatrove":
            totals = raw_lines(batch).totals
            num_lines = totals[:, NEWLINES] + (totals[:, ENDS_BLANK] == 0)
        return bullets / np.maximum(num_lines, 1), trailing / np.maximum(num_lines, 1)

    def _stop_words(self, batch: DocumentBatch, rated: Words, variants: Variants[Self]) -> np.ndarray:
        lists, compare = variants.values("stop_words"), _MATCHES[self.stop_word_match]
        different, occurrences = quality.stop_word_counts(rated, batch.buffers[1], lists, variants.rows, compare).T
        return occurrences if self.profile == "dclm" else different
