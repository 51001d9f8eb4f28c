"""Duplicate lines: cuts lines, paragraphs or spans of three sentences that occur elsewhere in the corpus; one copy is kept.

    text  ->  units, each with a 128-bit hash of its normal form  ->  rows with equal hashes  ->  all but the first are cut

The first copy has the lowest (key, position in the document), or with `keep: source_order` the earliest source. Each unit
takes a row of 46 bytes, whatever its length. A unit includes the bytes up to the next one, such as blank lines; they are cut
with it.

Lines are those of CCNet (Wenzek et al. 2020), which calls them paragraphs, and of the program of C4 (Raffel et al. 2020); three
sentences are the unit of C4's paper. A line whose first copy is in a dropped document is lost.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import columns
from datapipe.columns import KEY_TYPE, full_schema
from datapipe.kernels.dedup import text_units
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.tables import CUT_SCHEMA, Bucket, Exchange
from stages.dedup._cutting import Cutting, cut_repeated

_UNITS = full_schema(hash=pa.uint64(), digest=pa.uint64(), rank=pa.uint16(), key=KEY_TYPE, start=pa.int64(), size=pa.uint32())


class Lines(Cutting):
    """Cuts out lines, paragraphs or spans of three sentences that occur earlier in the corpus."""

    unit: text_units.Unit = Field(
        default="line",
        description="line: text between newlines. paragraph: text between blank lines. three_sentences: any three "
        "consecutive sentences.",
    )
    normalize: Literal["none", "ccnet"] = Field(
        default="ccnet",
        description="ccnet: without case, digits as 0, no punctuation, no control characters and nothing else that is "
        "invisible, each run of white space as one space. none: the text as it is, without the white space around it.",
    )
    min_length: int = Field(
        default=1, ge=1, description="Minimum number of characters of a unit after normalization. Shorter units are never cut."
    )

    def row_identity(self, seed: int) -> Mapping[str, Any]:
        """Rows of folded units are of version 3; those of `normalize: none` have not changed."""
        return {**super().row_identity(seed), "version": self.rows_version + 2 * (self.normalize == "ccnet")}

    def emits(self) -> Mapping[str, pa.Schema]:
        return {"units": _UNITS}

    def emit(self, batch: DocumentBatch) -> Mapping[str, pa.RecordBatch]:
        offsets, data = batch.buffers
        parts = batch.parts
        units = text_units.find_units(self.unit, parts.offsets, data, self.normalize, self.min_length)
        documents = parts.documents[units.documents]
        keys = columns.keys_from(columns.key_matrix(batch.keys)[documents])
        ranks = np.full(len(keys), self._rank)
        starts = units.starts - offsets[documents]
        arrays = [units.hashes, units.digests, ranks, keys, starts, units.sizes]
        return {"units": pa.RecordBatch.from_arrays(arrays, schema=_UNITS)}

    def exchanges(self) -> Sequence[Exchange]:
        group = ("hash", "digest")
        return [Exchange(name="match", inputs=("units",), outputs={"cuts": CUT_SCHEMA}, group=group, old_beside=("units",))]

    def reduce(self, exchange: str, bucket: Bucket) -> Mapping[str, pa.RecordBatch]:
        return {"cuts": cut_repeated(bucket["units"], "digest", self.keep, self.unit)}
