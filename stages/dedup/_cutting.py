"""The options and rows that stages which cut text have in common: which copy is kept, the share of
a document that may be cut."""

from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import columns
from datapipe.columns import first_of_group, is_first
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import CUT_SCHEMA, is_new, source_rank

RULE = "repeated"  # the rule of drops, and of cuts where a stage cuts one unit alone
RemovedShare = Annotated[
    float,
    Field(
        ge=0, le=1, description="Maximum share of the bytes of a document to cut. Documents that would lose more are dropped."
    ),
]


class Cutting(Global):
    """A global stage that cuts text out of documents where other documents contain it too."""

    keep: Literal["first", "source_order", "none"] = Field(
        default="first",
        description="Which copy is kept. first: the one with the lowest (document key, position). source_order: the one in the "
        "source that the mixture names first, then as for first. none: all copies are cut.",
    )
    max_removed_share: RemovedShare = 0.5

    rule = RULE
    apply_options = ("max_removed_share",)

    def source_order(self) -> tuple[str, ...] | None:
        return () if self.keep == "source_order" else None

    def removed_share_limit(self) -> float:
        return self.max_removed_share

    @property
    def _rank(self) -> np.uint16:
        return source_rank(self._context.source_position)


def cut_rows(keys: pa.Array, starts: np.ndarray, stops: np.ndarray, rule: str = RULE) -> pa.RecordBatch:
    """Rows of CUT_SCHEMA: cut the bytes [start, stop) of the document with each key."""
    rules = pa.array([rule], pa.string()).take(pa.array(np.zeros(len(keys), np.int64)))
    return pa.RecordBatch.from_arrays([columns.key_halves(keys)[0], keys, starts, stops, rules], schema=CUT_SCHEMA)


def cut_repeated(rows: pa.RecordBatch, second: str, keep: str, rule: str = RULE) -> pa.RecordBatch:
    """The cuts of new documents in all rows but the first of each group of equal (hash, second);
    with `keep` "none" in the first row of several, too. A chunk of a hot key may contain a row
    twice: two equal rows in sequence are one row, not a copy."""
    group_values = [columns.numbers(rows.column(name)) for name in ("hash", second)]
    row_values = [columns.numbers(rows.column(name)) for name in ("rank", "start")]
    firsts = first_of_group(*group_values)
    row_number = np.cumsum(is_first(*group_values, *row_values, *columns.key_halves(rows.column("key"))))
    repeated = row_number != row_number[firsts]  # the number is that of the row before for a repetition of it
    if keep == "none":
        repeated |= np.isin(firsts, firsts[repeated])
    removed = rows.take(pa.array(np.flatnonzero(repeated & is_new(rows))))
    starts, stops = _whole_characters_of(removed)
    return cut_rows(removed.column("key"), starts, stops, rule)


def _whole_characters_of(rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    starts = columns.numbers(rows.column("start"))
    stops = starts + columns.numbers(rows.column("size"))
    if "trims" not in rows.schema.names:
        return starts, stops
    partial = columns.numbers(rows.column("trims")).astype(np.int64)
    return starts + partial % 16, stops - partial // 16
