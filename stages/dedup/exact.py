"""Exact deduplication: keeps one of the documents with the same text, or the same value of a field.

    text or field  ->  128-bit hash of its bytes  ->  rows with equal hashes  ->  all but the first by (rank, key) are dropped

With `by: field`, documents with a null or empty value are not compared.

`normalize: whitespace_case` ignores case (the canonical caseless form of Unicode, `datapipe/kernels/dedup/case_folding.py`)
and invisible characters: soft hyphens, joiners, zero-width spaces, byte order marks, variation selectors. A run of white
space, including no-break spaces, equals one space. `normalize: url` brings URLs into the form of C4
(`datapipe/kernels/filters/url.py`): no scheme, no `www.`, no tracking parameters.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import columns
from datapipe.errors import UserError
from datapipe.kernels.dedup import case_folding, text_hashes
from datapipe.kernels.filters import url
from datapipe.stage.clusters import size_rows, star_drops
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.keep import KeepingOne, survivor_ranks
from datapipe.stage.tables import DROP_SCHEMA, SIZE_SCHEMA, Bucket, Exchange, is_new

TEXTS = columns.full_schema(hash=pa.uint64(), digest=pa.uint64(), rank=pa.uint64(), key=columns.KEY_TYPE)
"""Sorted by all columns: rows of equal texts are adjacent, the survivor first."""


class Exact(KeepingOne):
    """Drops documents whose text, or the value of one of their fields, equals that of another document."""

    by: Literal["text", "field"] = Field(
        default="text", description="text: compare the texts. field: compare the column that `field` names."
    )
    field: str | None = Field(
        default=None, min_length=1, description="Column of `by: field`, of text or whole numbers; null and empty values stay."
    )
    normalize: Literal["none", "whitespace_case", "url"] = Field(
        default="none",
        description="none: bytes as they are. whitespace_case: runs of white space as one space, without case and invisible "
        "characters. url: URLs in the form of C4.",
    )

    def check_options(self) -> None:
        if (self.by == "field") != (self.field is not None):
            raise ValueError("`by: field` and `field: NAME` go together: give both, or neither to compare texts")

    def columns_read(self) -> Mapping[str, str]:
        return {**super().columns_read()} | ({} if self.field is None else {self.field: "field"})

    def row_identity(self, seed: int) -> Mapping[str, Any]:
        """Rows of folded texts are of version 3; all others have not changed."""
        return {**super().row_identity(seed), "version": self.rows_version + 2 * (self.normalize == "whitespace_case")}

    def emits(self) -> Mapping[str, pa.Schema]:
        return {"texts": TEXTS}

    def emit(self, batch: DocumentBatch) -> Mapping[str, pa.RecordBatch]:
        """One row for each document that is compared."""
        offsets, data, compared = self._compared(batch)
        hashes, digests = np.empty(batch.num_docs, np.uint64), np.empty(batch.num_docs, np.uint64)
        text_hashes.hash_texts(offsets, data, hashes, digests)
        ranks = survivor_ranks(self.keep, batch, self._context)
        rows = pa.RecordBatch.from_arrays([hashes, digests, ranks, batch.keys], schema=TEXTS)
        return {"texts": rows if compared.all() else rows.filter(pa.array(compared))}

    def _compared(self, batch: DocumentBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The values to compare as offsets and bytes, and which documents are compared, (num_docs,) bool."""
        texts = batch.texts if self.field is None else _values(batch, self.field, self._context.name)
        offsets, data = columns.text_buffers(texts)
        if self.normalize == "whitespace_case":
            offsets, data = case_folding.fold_texts(offsets, data, case_folding.visible_folding())
            out_offsets, out = np.empty(len(offsets), np.int64), np.empty(int(offsets[-1]), np.uint8)
            text_hashes.squeeze_space(offsets, data, out_offsets, out)  # each run of white space as one space
            offsets, data = out_offsets, out
        elif self.normalize == "url":
            offsets, data = url.normalize_urls(offsets[:-1], offsets[1:], data)
        compared = np.ones(batch.num_docs, np.bool_)
        if self.by == "field":
            compared &= np.diff(offsets) > 0
        return offsets, data, compared

    def exchanges(self) -> Sequence[Exchange]:
        outputs = {"drops": DROP_SCHEMA, "sizes": SIZE_SCHEMA}
        return [Exchange(name="match", inputs=("texts",), outputs=outputs, group=("hash", "digest"), old_beside=("texts",))]

    def reduce(self, exchange: str, bucket: Bucket) -> Mapping[str, pa.RecordBatch]:
        rows = bucket["texts"]
        firsts = columns.first_of_group(columns.numbers(rows.column("hash")), columns.numbers(rows.column("digest")))
        drops = star_drops(rows.column("key"), is_new(rows), firsts, 1.0)
        return {"drops": drops} if self.size_column is None else {"drops": drops, "sizes": size_rows(drops.column("survivor"))}


def _values(batch: DocumentBatch, field: str, stage: str) -> pa.Array:
    """A column as text, (num_docs,) large_string; nulls become empty. Raises UserError."""
    column = batch.column(field, stage)
    is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
    kinds = (*is_text, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise UserError(
            f"{stage}: column '{field}' is of type {column.type}; expected text or numbers. Declare "
            f"types: {{{field}: string}} in the source to compare its values as text"
        )
    return columns.as_large_string(column).fill_null("")
