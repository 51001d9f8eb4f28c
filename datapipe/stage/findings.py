"""The entries of searched lists that a filter found in documents: which entry, and where.

    Filter.process  ─▶  FilterResult.findings  ─▶  findings of the task  ─▶  report, `datapipe inspect --contamination`

A task writes at most `MOST_OF_DOCUMENT` findings of a document, and beyond those the first finding
of each entry: its file is bounded, and every entry that was found is in it.
"""

import pyarrow as pa

from datapipe.columns import KEY_TYPE, full_schema
from datapipe.dataclass import dataclass

MOST_OF_DOCUMENT = 64

FOUND = full_schema(row=pa.int64(), list=pa.string(), entry=pa.string(), start=pa.int64(), stop=pa.int64(), value=pa.float64())
"""Findings of a filter: the row of the document, ascending; list and entry; bytes of the text; the measured value."""

FINDINGS = pa.schema(
    [*full_schema(key=KEY_TYPE, id=pa.large_string(), stage=pa.string(), outcome=pa.string()), *list(FOUND)[1:]]
)
"""Findings of a task. `outcome`: "dropped", "cut" (kept with an edited text), or "tagged" (kept as it was)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchedList:
    """A list that a filter searches for, and the names of the entries that it cannot find with its options."""

    name: str
    entries: int
    undetectable: tuple[str, ...]
