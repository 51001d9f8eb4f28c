"""Exact deduplication: of documents with the same text, or the same value of a field, one survives.

    text or field  ->  128-bit hash of its bytes  ->  documents of equal hash meet  ->  all but the first of (rank, key) go

The first 64 bits of the hash decide where documents meet, all 128 whether they are equal. Nothing else of a text is
exchanged.

What says nothing, by rule: a field that is null or empty makes no documents alike. Texts that are empty (after `normalize`)
are equal to each other, so one of them survives, unless `empty: never`; so are texts without a letter that hold the same
digits, unless `only_digits: never`. Short texts are texts like any other.

URLs are brought into the form of C4 (`datapipe/kernels/filters/url.py`): without scheme, `www.` and tracking parameters.

One core of a 2-core AMD EPYC emits 3 GB/s of raw text; with `normalize: whitespace_case` 300 MB/s, and of URLs of 60 bytes
180 MB/s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, PrivateAttr, model_validator

from datapipe import columns
from datapipe.errors import UserError
from datapipe.kernels.dedup import contents
from datapipe.kernels.dedup import text_hashes as buckets
from datapipe.kernels.filters import url
from datapipe.stage import StageContext
from datapipe.stage.clusters import first_of_group, size_rows, star_drops
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.global_stage import Global
from datapipe.stage.keep import KEEP_FIRST, KEEP_TEXT, Keep, source_order, survivor_ranks
from datapipe.stage.tables import DROP_SCHEMA, SIZE_SCHEMA, Bucket, Exchange, is_new

TEXTS = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("digest", pa.uint64(), nullable=False),
        pa.field("rank", pa.uint64(), nullable=False),
        pa.field("key", columns.KEY_TYPE, nullable=False),
    ]
)
"""Sorted, equal texts are together, the survivor first."""


class Exact(Global):
    """Drops documents whose text, or a field of theirs, equals that of another."""

    by: Literal["text", "field"] = Field(
        default="text", description="What is compared: the text, or the column that `field` names."
    )
    field: str | None = Field(
        default=None,
        min_length=1,
        description="With `by: field`, the column: one that the source keeps, or that an earlier stage writes; text or whole "
        "numbers. Documents where it is null or empty are never dropped.",
    )
    normalize: Literal["none", "whitespace_case", "url"] = Field(
        default="none",
        description="none: equal when all bytes are. whitespace_case: when they are after every run of white space became one "
        "space and letters lower case. url: when they are the same URL in the form of C4, without scheme, www., what follows "
        "?utm_, ?ref or ?feed, and slashes at the end.",
    )
    keep: Keep = Field(default=KEEP_FIRST, validate_default=True, description=KEEP_TEXT)
    empty: Literal["meet", "never"] = Field(
        default="meet", description="meet: texts that are empty after `normalize` are equal to each other. never: to none."
    )
    only_digits: Literal["meet", "never"] = Field(
        default="meet",
        description="meet: what holds digits and no letter is compared as any other. never: it is equal to none, so that page "
        "numbers, years and prices make no documents alike.",
    )

    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)
    _context: StageContext = PrivateAttr()

    @model_validator(mode="after")
    def _field_where_it_counts(self) -> Self:
        if (self.by == "field") != (self.field is not None):
            raise ValueError("by: field and field: NAME go together: give both, or neither to compare texts")
        return self

    def open(self, context: StageContext) -> None:
        self._context = context

    def source_order(self) -> tuple[str, ...] | None:
        return source_order(self.keep)

    def emits(self) -> Mapping[str, pa.Schema]:
        return {"texts": TEXTS}

    def emit(self, batch: DocumentBatch) -> Mapping[str, pa.RecordBatch]:
        """One row for each document that may be equal to another."""
        offsets, data, told = self._compared(batch)
        hashes, digests = np.empty(batch.num_docs, np.uint64), np.empty(batch.num_docs, np.uint64)
        buckets.hash_texts(offsets, data, hashes, digests)
        ranks = survivor_ranks(self.keep, batch, self._context)
        arrays = [pa.array(hashes), pa.array(digests), pa.array(ranks), batch.keys]
        rows = pa.RecordBatch.from_arrays(arrays, schema=TEXTS)
        return {"texts": rows if told.all() else rows.filter(pa.array(told))}

    def _compared(self, batch: DocumentBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Offsets and bytes of what is compared, and where it says anything, (num_docs,) bool."""
        texts = batch.texts if self.field is None else _values(batch, self.field, self._context.name)
        offsets, data = columns.text_buffers(texts)
        if self.normalize == "whitespace_case":
            offsets, data = _squeezed(texts)
        elif self.normalize == "url":
            offsets, data = url.normalize_urls(offsets[:-1], offsets[1:], data)
        told = np.ones(batch.num_docs, np.bool_)
        if self.by == "field" or self.empty == "never":
            told &= np.diff(offsets) > 0
        if self.only_digits == "never":
            held = np.empty(batch.num_docs, np.uint8)
            contents.find_contents(offsets, data, held)
            told &= held != contents.DIGITS
        return offsets, data, told

    def exchanges(self) -> Sequence[Exchange]:
        outputs = {"drops": DROP_SCHEMA, "sizes": SIZE_SCHEMA}
        return [Exchange(name="match", inputs=("texts",), outputs=outputs, group=("hash", "digest"))]

    def reduce(self, exchange: str, bucket: Bucket) -> Mapping[str, pa.RecordBatch]:
        rows = bucket["texts"]
        firsts = first_of_group(columns.numbers(rows.column("hash")), columns.numbers(rows.column("digest")))
        drops = star_drops(rows.column("key"), is_new(rows), firsts, 1.0)
        return {"drops": drops} if self.size_column is None else {"drops": drops, "sizes": size_rows(drops.column("survivor"))}


def _values(batch: DocumentBatch, field: str, stage: str) -> pa.Array:
    """A column as text, (num_docs,) large_string, with empty ones for nulls. Raises UserError."""
    found = batch.column(field, stage)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_null, pa.types.is_integer)
    if not any(is_kind(found.type) for is_kind in kinds):
        raise UserError(f"{stage}: column '{field}' is of type {found.type}; expected text or whole numbers")
    return columns.as_large_string(found).fill_null("")


def _squeezed(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and bytes of the texts in lower case, with white space squeezed."""
    offsets, data = columns.text_buffers(pc.call_function("utf8_lower", [texts]))
    out_offsets = np.empty(len(offsets), np.int64)
    out = np.empty(int(offsets[-1] - offsets[0]), np.uint8)
    buckets.squeeze_space(offsets, data, out_offsets, out)
    return out_offsets, out
