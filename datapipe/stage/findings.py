"""What a filter finds in documents, beside its decision: whose text it is, and where.

    Filter.process  ─▶  FilterResult.findings  ─▶  findings of the task  ─▶  report, `datapipe inspect --contamination`

A finding names an entry of a list that the stage searches for, such as an item of a benchmark. Counts of documents cannot tell
which entries were found anywhere, since the same entry is found in many documents: the findings can.

A task writes at most `MOST_OF_DOCUMENT` findings of a document, and beyond those the first finding of each entry. So its file
is bounded by its documents and the lists, and the entries that were found are all in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from datapipe.columns import KEY_TYPE, full_schema

MOST_OF_DOCUMENT = 64

FOUND = full_schema(row=pa.int64(), list=pa.string(), entry=pa.string(), start=pa.int64(), stop=pa.int64(), value=pa.float64())
"""Findings of a filter: the row of the document in the batch, ascending; list and entry; bytes of the text as the stage got it;
what it measured."""

FINDINGS = pa.schema(
    [*full_schema(key=KEY_TYPE, id=pa.large_string(), stage=pa.string(), outcome=pa.string()), *list(FOUND)[1:]]
)
"""Findings of a task. `outcome`: "dropped", "cut" (kept with an edited text), or "tagged" (kept as it was)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchedList:
    """A list that a filter searches for.

    Attributes:
        name: of the list.
        entries: how many it has.
        undetectable: names of those that the filter cannot find with its options.
    """

    name: str
    entries: int
    undetectable: tuple[str, ...]
