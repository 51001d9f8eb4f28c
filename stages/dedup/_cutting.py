"""The options and rows that stages which cut text have in common: which copy is kept, the share of
a document that may be cut."""

from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import columns
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import CUT_SCHEMA, source_rank

RULE = "repeated"  # the rule of drops, and of cuts where a stage cuts one unit alone
RemovedShare = Annotated[
    float,
    Field(ge=0, le=1, description="Greatest share of a document's bytes that is cut; above it, the document is dropped."),
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
    spans = (pa.array(np.ascontiguousarray(ends, np.int64)) for ends in (starts, stops))
    return pa.RecordBatch.from_arrays([pa.array(columns.key_halves(keys)[0]), keys, *spans, rules], schema=CUT_SCHEMA)
