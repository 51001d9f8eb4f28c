"""Which documents go to which file, in a run without a tokenizer. Pure.

    documents in the order of the input, weighed    0 ──────┬─ d ─┬──┬────────┬───────
    files of `target_bytes`, numbered               │ 0          │ 1          │ 2
    parts of some files, one for each task          │ 0                       │ 1

A document whose weight begins at w goes to file w // `target_bytes`. So the documents of a file depend on the text alone, and
not on how the input was cut into tasks: the committed counts of a task tell what its documents weigh together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from datapipe.plan.outputs import TableFile
from datapipe.plan.work import Record

LEAST_DOCUMENT_BYTES = 64
"""What a document weighs beside its text, so that no file has any number of empty ones."""

WRITTEN_BYTES = 64 << 20
"""The least weight of the documents that a task writes, but for the last task of a source."""

Number = TypeVar("Number", int, NDArray[np.int64])


def weight(text_bytes: Number, num_docs: int) -> Number:
    """The weight of some documents together, or of each of many."""
    return text_bytes + LEAST_DOCUMENT_BYTES * num_docs


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentsPart:
    """A part of a source that one task writes; see `WriteTask`."""

    documents: tuple[TableFile, ...]
    begin: int
    start: int
    stop: int


def documents_by_part(cleaned: Sequence[Record], part_bytes: int) -> list[DocumentsPart]:
    """The documents of a source in parts of `part_bytes`, by the weights that the committed counts tell."""
    counts = [record.metrics.document_counts for record in cleaned]
    ends = list(accumulate((weight(each.kept_bytes, each.kept) for each in counts), initial=0))  # (num_records + 1,)
    parts: list[DocumentsPart] = []
    for start in range(0, ends[-1], part_bytes):
        first, last = bisect_right(ends, start) - 1, bisect_left(ends, start + part_bytes)
        files = tuple(file for record in cleaned[first:last] for file in record.of("documents", TableFile))
        parts.append(DocumentsPart(documents=files, begin=ends[first], start=start, stop=start + part_bytes))
    return parts
