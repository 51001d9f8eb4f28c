"""Keeps documents that look like running text, by the quality rules of Gopher (Rae et al. 2021, appendix A1.1).

    words  ->  how many, how long, with letters, symbols per word, stop words
    lines  ->  shares that start with a bullet, that end in an ellipsis

What the paper leaves open is settled so:

- A word is what stands between white space, its punctuation included. Only words with a character that is neither
  punctuation nor symbol count for `min_words`, `max_words` and the mean length; lengths are in characters.
- `#`, and ellipses (`...` or `…`), are counted wherever they are and divided by all words, each with a limit of its own;
  of a run of dots every three are an ellipsis. All words are also what the share of words with a letter is of.
- Lines are those that are not blank, without the white space around them. Bullets are • ‣ ◦ ● ▪ - *.
- Stop words are counted once each, in any case and without the punctuation around them, so "The" and "(the)" count.

A limit itself passes. A document without words has 0 of everything and divides by nothing.

One core of a 2-core AMD EPYC does 55 to 70 MB/s of news and web text, most of it in finding words and lines; see
`datapipe/kernels/quality.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from datapipe.documents import DocumentBatch
from datapipe.kernels import quality
from datapipe.stage import Filter, FilterResult, Rule


class GopherQuality(Filter):
    """Drops documents that are no running text: too short or long, of odd words, symbols, bullets or cut-off lines."""

    min_words: int = Field(default=50, ge=0, description="Least words with a character that is not punctuation.")
    max_words: int = Field(default=100_000, ge=0, description="Most words with a character that is not punctuation.")
    min_mean_word_length: float = Field(default=3.0, ge=0, description="Least mean length of those words, in characters.")
    max_mean_word_length: float = Field(default=10.0, ge=0, description="Greatest mean length of those words, in characters.")
    max_hash_ratio: float = Field(default=0.1, ge=0, description="Most `#` per word.")
    max_ellipsis_ratio: float = Field(default=0.1, ge=0, description="Most ellipses, `...` or `…`, per word.")
    max_bullet_lines: float = Field(default=0.9, ge=0, le=1, description="Greatest share of lines that start with a bullet.")
    max_ellipsis_lines: float = Field(default=0.3, ge=0, le=1, description="Greatest share of lines that end in an ellipsis.")
    min_letter_words: float = Field(default=0.8, ge=0, le=1, description="Least share of words that have a letter.")
    min_stop_words: int = Field(
        default=2,
        ge=0,
        le=8,
        description="How many different ones of the, be, to, of, and, that, have, with must occur; 0 for other languages.",
    )

    def rules(self) -> Sequence[Rule]:
        return [
            self.at_least("too_few_words", "min_words"),
            self.at_most("too_many_words", "max_words"),
            self.at_least("mean_word_length_low", "min_mean_word_length"),
            self.at_most("mean_word_length_high", "max_mean_word_length"),
            self.at_most("too_many_hashes", "max_hash_ratio"),
            self.at_most("too_many_ellipses", "max_ellipsis_ratio"),
            self.at_most("too_many_bullet_lines", "max_bullet_lines"),
            self.at_most("too_many_ellipsis_lines", "max_ellipsis_lines"),
            self.at_least("too_few_letter_words", "min_letter_words"),
            self.at_least("too_few_stop_words", "min_stop_words"),
        ]

    def process(self, batch: DocumentBatch) -> FilterResult:
        _, data = batch.buffers
        num_words, mean_length, hashes, ellipses, letters, stop_words = quality.word_quality(batch.words, data).T
        bullets, trailing = quality.line_quality(batch.lines, data).T
        lengths = [num_words, num_words, mean_length, mean_length]
        return FilterResult.judged(self.rules(), [*lengths, hashes, ellipses, bullets, trailing, letters, stop_words])
