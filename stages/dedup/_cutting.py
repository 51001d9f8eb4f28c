"""What the stages that cut text share: which copy stays, how much of a document may go, and the rows that say what is cut."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, PrivateAttr

from datapipe import columns
from datapipe.stage import StageContext
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import CUT_SCHEMA, source_rank

RULE = "repeated"
"""The reason of their drops and, of stages that cut one kind of thing, of their cuts."""

RemovedShare = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Greatest share of a document's bytes that may be cut out; the document is dropped where it is more, or "
        "where nothing but white space is left.",
    ),
]


class Cutting(Global):
    """A stage that takes out of documents what others say too."""

    keep: Literal["first", "source_order", "none"] = Field(
        default="first",
        description="first: the copy of lowest key, then place, stays. source_order: the one in the source that the mixture "
        "names first, then as first. none: all of them go.",
    )
    max_removed_share: RemovedShare = 0.5

    rule = RULE
    apply_options = ("max_removed_share",)
    _context: StageContext = PrivateAttr()

    def open(self, context: StageContext) -> None:
        self._context = context

    def source_order(self) -> tuple[str, ...] | None:
        return () if self.keep == "source_order" else None

    def removed_share_limit(self) -> float:
        return self.max_removed_share

    @property
    def _rank(self) -> np.uint16:
        """Of the documents that are emitted."""
        return source_rank(self._context.source_place)


def cut_rows(keys: pa.Array, starts: np.ndarray, stops: np.ndarray, rule: str = RULE) -> pa.RecordBatch:
    """Rows of CUT_SCHEMA: bytes [start, stop) of the document of each key."""
    rules = pa.array([rule], pa.string()).take(pa.array(np.zeros(len(keys), np.int64)))
    numbers = (pa.array(np.ascontiguousarray(one, np.int64)) for one in (starts, stops))
    return pa.RecordBatch.from_arrays([pa.array(columns.key_halves(keys)[0]), keys, *numbers, rules], schema=CUT_SCHEMA)
