"""Drops documents that repeat themselves, by the repetition rules of Gopher (Rae et al. 2021, table A1).

    lines  ->  paragraphs  ->  shares of lines and paragraphs, and of their characters, that are copies
    words  ->  n-grams     ->  share of characters in the most frequent 2..4-gram, in repeated 5..10-grams

The published variants differ:

| | `paper` | `datatrove` | `dclm` |
|---|---|---|---|
| words | separated by white space | as spaCy tokenizes English, with signs | Unicode words that begin with a letter or digit |
| lines | without the white space around them | with it | as `paper` |
| paragraphs | runs of lines between blank lines | the same | text between empty lines, with its newlines |
| copy | every occurrence but the first | the same | every occurrence of a repeated unit |
| line and paragraph shares are of | the characters of all lines | all characters of the text | as `paper` |
| most frequent n-gram | the longest of several; 0 if it occurs once | the first of several; or occurs once | as `paper` |
| repeated 5..10-grams | every occurrence, each word counted once | from the left; a seen n-gram is skipped whole | as `paper` |
| n-gram shares are of | the characters of all words | all characters of the text | as `paper` |
| order of the rules | lines, paragraphs, their characters, n-grams | paragraphs first | as `paper` |

`datatrove` counts an n-gram that occurs once, so it drops every short document: put a length rule before this stage. The most
frequent n-gram counts with overlapping occurrences, so its share may exceed 1; `datatrove` also counts its spaces. A line of
white space alone is blank in `paper` and `datatrove`. A value equal to a limit passes. `language` takes the thresholds of
FineWeb-2. Decisions equal those of datatrove and of DCLM's program only behind `normalize.unicode`, which replaces CR LF.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from datapipe.kernels.filters import quality, repetition
from datapipe.kernels.filters.repetition import COPIED_CHARS, COPIES, NUM_UNITS, UNIT_CHARS, Units
from datapipe.kernels.text.raw_lines import CHARS, ENDS_BLANK, OPENS_BLANK
from datapipe.kernels.text.words import find_lines
from datapipe.stage import FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.segmentation.lines import lines
from datapipe.stage.segmentation.raw_lines import raw_lines
from datapipe.stage.segmentation.words import words
from stages.filter._thresholds.by_language import LanguageColumn, LanguageFilter, Variants
from stages.filter._words import WHAT_WORDS_ARE, WordRule

_PROFILES: dict[str, dict[str, Any]] = {"paper": {}, "dclm": {"words": "unicode"}, "datatrove": {"words": "english"}}
_OFF = ("max_duplicate_paragraphs", "max_duplicate_paragraph_chars", "max_duplicate_line_chars")
"""FineWeb-2 has no rules on paragraphs and none on the characters of copied lines."""


def _share(default: float, of: str) -> float:
    return Field(default=default, ge=0, description=f"Maximum share of {of}.")


def _chars_in(default: float, ngram: str) -> float:
    return _share(default, f"characters in {ngram}")


class GopherRepetition(LanguageFilter):
    """Drops documents with too many repeated lines, paragraphs or word n-grams, by the rules of Gopher."""

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = _PROFILES
    of_languages: ClassVar[Mapping[str, Any]] = {"profile": "datatrove", **dict.fromkeys(_OFF, 1.0)}

    profile: Literal["paper", "datatrove", "dclm"] = Field(
        default="paper",
        description="How repetition is counted. paper: copies after the first, and n-grams that occur again. datatrove: shares "
        "of all characters of the text, n-grams from the left, the most frequent n-gram even if it occurs once. dclm: all "
        "occurrences of repeated lines and paragraphs. Decisions equal datatrove's only behind normalize.unicode, which "
        "replaces CR LF.",
    )
    language: str | LanguageColumn | None = Field(
        default=None,
        description="Settings of FineWeb-2 for this language (de, or deu_Latn), and profile datatrove. {column: NAME}: for the "
        "language of each document, by a column.",
    )
    words: WordRule = Field(
        default="whitespace",
        description=WHAT_WORDS_ARE
        + "Default by profile: whitespace (paper), english (datatrove), unicode (dclm); by language: "
        "english or dictionary.",
    )
    max_duplicate_lines: float = _share(0.30, "lines that repeat an earlier line")
    max_duplicate_paragraphs: float = _share(0.30, "paragraphs that repeat an earlier paragraph")
    max_duplicate_line_chars: float = _chars_in(0.20, "lines that repeat an earlier line")
    max_duplicate_paragraph_chars: float = _chars_in(0.20, "paragraphs that repeat an earlier paragraph")
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
        """One rule for each limit, named like its option without `max_`."""
        limits = [option for option in type(self).model_fields if option.startswith("max_")]
        if self.profile == "datatrove":
            limits.sort(key=lambda option: ("paragraph" not in option, "line" not in option))
        return [self.at_most(option.removeprefix("max_"), option) for option in limits]

    def process(self, batch: DocumentBatch) -> FilterResult:
        variants = self.variants(batch)
        measured = {**self._units(batch), **self._ngrams(batch, variants)}
        return self.decided([measured[rule.name] for rule in self.rules()], variants)

    def _units(self, batch: DocumentBatch) -> dict[str, np.ndarray]:
        """Shares of lines and paragraphs, and of characters in them, that are copies: (num_docs,) each."""
        spans, with_white_space = lines(batch), self.profile == "datatrove"
        counted = raw_lines(batch) if with_white_space else spans
        units = Units(doc_offsets=spans.doc_offsets, hashes=counted.hashes, chars=counted.chars)
        shares: dict[str, np.ndarray] = {}
        for name, unit in (("line", units), ("paragraph", self._paragraphs(batch, units))):
            counts = repetition.unit_repetition(unit, every=self.profile == "dclm").T
            num_units, copies, num_chars = counts[NUM_UNITS], counts[COPIES], counts[UNIT_CHARS]
            if with_white_space:
                num_chars = raw_lines(batch).totals[:, CHARS]
            if with_white_space and name == "line":  # a newline at either end of the text leaves an empty line there
                opens, ends = raw_lines(batch).totals[:, OPENS_BLANK], raw_lines(batch).totals[:, ENDS_BLANK]
                num_units, copies = num_units + opens + ends, copies + opens * ends
            shares[f"duplicate_{name}s"] = copies / np.maximum(num_units, 1)
            shares[f"duplicate_{name}_chars"] = counts[COPIED_CHARS] / np.maximum(num_chars, 1)
        return shares

    def _paragraphs(self, batch: DocumentBatch, units: Units) -> Units:
        if self.profile == "dclm":
            spans = find_lines(words(batch), batch.buffers[1], newlines=2)
            return Units(doc_offsets=spans.doc_offsets, hashes=spans.hashes, chars=spans.chars)
        return repetition.paragraphs(units, lines(batch).opens, int(self.profile == "datatrove"))

    def _ngrams(self, batch: DocumentBatch, variants: Variants[Self]) -> dict[str, np.ndarray]:
        counted = self.words_of(batch, variants)
        joined = self.profile == "datatrove"
        counts = repetition.ngram_repetition(counted, joined).T
        num_chars = raw_lines(batch).totals[:, CHARS] if joined else quality.word_counts(counted)[:, quality.NUM_CHARS]
        names = [f"top_{n}_gram" for n in repetition.TOP_SIZES]
        names += [f"duplicate_{n}_grams" for n in repetition.DUPLICATE_SIZES]
        return {name: count / np.maximum(num_chars, 1) for name, count in zip(names, counts, strict=True)}
