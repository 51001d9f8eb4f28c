"""Drops documents that repeat themselves, by the repetition rules of Gopher (Rae et al. 2021, table A1).

    lines  ->  paragraphs  ->  shares of lines and paragraphs, and of their characters, that are copies
    words  ->  n-grams     ->  share of characters in the most frequent 2..4-gram, in repeated 5..10-grams

What the paper leaves open is settled so:

- Lines are those that are not blank, without the white space around them; paragraphs are runs of lines between blank ones.
  A copy is the second and any later occurrence in the document. Characters are those of all such lines.
- A word is what stands between white space, exactly: case and punctuation count. Characters are those of all words, without
  white space.
- The most frequent n-gram counts with all its occurrences, also where they overlap, so its share may exceed 1; of several
  equally frequent the longest. One that occurs once counts 0, so a short text is not repetitive for being short.
- Of a 5..10-gram that repeats, every occurrence counts, the first too; a word in several of them counts once.

A limit itself passes. A document without words or lines measures 0.

One core of a 2-core AMD EPYC does 120 to 250 MB/s of news and web text once words and lines are found, 45 to 70 with finding
them; see `datapipe/kernels/repetition.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from datapipe.documents import DocumentBatch
from datapipe.kernels import repetition
from datapipe.stage import Filter, FilterResult, Rule


def _share(default: float, of: str) -> float:
    """An option: a greatest share of a document."""
    return Field(default=default, ge=0, description=f"Greatest share of {of}.")


def _chars_in(default: float, ngram: str) -> float:
    return _share(default, f"characters in {ngram}")


class GopherRepetition(Filter):
    """Drops documents too much of which are repeated lines, paragraphs or word n-grams."""

    max_duplicate_lines: float = _share(0.30, "lines that repeat an earlier one")
    max_duplicate_paragraphs: float = _share(0.30, "paragraphs that repeat an earlier one")
    max_duplicate_line_chars: float = _chars_in(0.20, "lines that repeat an earlier one")
    max_duplicate_paragraph_chars: float = _chars_in(0.20, "paragraphs that repeat an earlier one")
    max_top_2_gram: float = _chars_in(0.20, "the most frequent 2-gram of words")
    max_top_3_gram: float = _chars_in(0.18, "the most frequent 3-gram of words")
    max_top_4_gram: float = _chars_in(0.16, "the most frequent 4-gram of words")
    max_duplicate_5_grams: float = _chars_in(0.15, "5-grams of words that occur again")
    max_duplicate_6_grams: float = _chars_in(0.14, "6-grams of words that occur again")
    max_duplicate_7_grams: float = _chars_in(0.13, "7-grams of words that occur again")
    max_duplicate_8_grams: float = _chars_in(0.12, "8-grams of words that occur again")
    max_duplicate_9_grams: float = _chars_in(0.11, "9-grams of words that occur again")
    max_duplicate_10_grams: float = _chars_in(0.10, "10-grams of words that occur again")

    def rules(self) -> Sequence[Rule]:
        """As the options, without `max_`."""
        limits = [option for option in type(self).model_fields if option.startswith("max_")]
        return [self.at_most(option.removeprefix("max_"), option) for option in limits]

    def process(self, batch: DocumentBatch) -> FilterResult:
        lines, line_chars = repetition.line_repetition(batch.lines).T
        paragraphs, paragraph_chars = repetition.paragraph_repetition(batch.lines).T
        ngrams: list[np.ndarray] = list(repetition.ngram_repetition(batch.words).T)
        measured = [lines, paragraphs, line_chars, paragraph_chars, *ngrams]
        return FilterResult.judged(self.rules(), measured)
