"""Keeps documents whose length is between limits, in characters, bytes or words. A length equal to a limit passes.

Characters are code points, bytes are bytes of UTF-8, words are separated by white space.
"""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from datapipe import columns
from datapipe.columns import compute as pc
from datapipe.kernels.text.word_counts import word_counts
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.documents import DocumentBatch

_UNITS = ("chars", "bytes", "words")


class Length(Filter):
    """Drops documents shorter or longer than the given limits. Without a limit the stage keeps every document."""

    min_chars: int | None = Field(default=None, ge=0, description="Minimum number of characters (code points); null: no limit.")
    max_chars: int | None = Field(default=None, ge=0, description="Maximum number of characters (code points); null: no limit.")
    min_bytes: int | None = Field(default=None, ge=0, description="Minimum number of bytes of UTF-8; null: no limit.")
    max_bytes: int | None = Field(default=None, ge=0, description="Maximum number of bytes of UTF-8; null: no limit.")
    min_words: int | None = Field(
        default=None, ge=0, description="Minimum number of words, separated by white space; null: no limit."
    )
    max_words: int | None = Field(
        default=None, ge=0, description="Maximum number of words, separated by white space; null: no limit."
    )

    writes = ()

    def rules(self) -> Sequence[Rule]:
        """`too_few_chars`, `too_many_chars`, the same for bytes and words: those with a limit."""
        pairs = [(f"too_few_{unit}", f"min_{unit}", f"too_many_{unit}", f"max_{unit}") for unit in _UNITS]
        both = [rule for few, least, many, most in pairs for rule in (self.at_least(few, least), self.at_most(many, most))]
        return [rule for rule in both if rule.limit is not None]

    def process(self, batch: DocumentBatch) -> FilterResult:
        rules = self.rules()
        if not rules:
            return FilterResult.first_failing(batch.num_docs, [])
        return FilterResult.from_rules(rules, [_lengths(batch, rule.option.partition("_")[2]) for rule in rules])


def _lengths(batch: DocumentBatch, unit: str) -> np.ndarray:
    if unit == "chars":
        return columns.numbers(pc.utf8_length(batch.texts))
    return columns.text_lengths(batch.texts) if unit == "bytes" else word_counts(*batch.buffers)
