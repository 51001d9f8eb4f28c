"""Repeated spans: cuts every run of `length` words or bytes that occurs earlier in the corpus; the first copy is kept.

A token is cut if it lies in a window, `length` consecutive tokens of one document, that occurs earlier: by (key, position), or
with `keep: source_order` by (source, key, position). With `keep: none` a token is cut if its window occurs anywhere else. Both
methods cut exactly these tokens, whatever the corpus.

    text ─┬─ cuts (a chunk repeats a span of its own)
          ├─ passages, by document ─────────────────────────────────────┐
          └─ selected grams, by hash ─▶ match ─▶ cuts (equal spans)     │
                                          └──▶ candidates, by document ─▶ extend ─▶ windows, by hash ─▶ verify ─▶ cuts

`method: exchange`. Every window selects a gram inside it (winnowing, `datapipe/kernels/dedup/substring.py`); equal windows
select equal grams, and the grams are exchanged by hash. A selected gram stands for its span: the run of windows that selected
it. Where whole spans are equal, all but the first are cut at once, which covers most of a copied page. Spans that are equal
in part remain, at the ends of copies: the first of each distinct span is looked up in the passages, and its windows are
compared by 128-bit hashes. No pairs are formed: each step is linear, and a task holds one bucket. The text is exchanged once,
compressed, since the remaining windows are compared exactly; hashes of all windows would take 8 bytes a token.

`method: suffix_array`. All texts in one task, which `memory_bytes` bounds, sorted by pydivsufsort: the reference, and a choice
for small corpora.

A token owns the bytes up to the next token; with `unit: byte` only whole characters are cut. **A cut point is the end of a
document**: the text on either side of it, taken separately, holds no repeated window, so a second pass finds nothing. Documents
carry their cut points to later stages, until a stage changes the text.

Exchanged for each byte of text (20 MB of web pages, news and novels):

| unit, length | text | selected grams | candidates and windows |
|---|---|---|---|
| 50 tokens | 1 | 0.54 | 0.18 |
| 100 bytes | 1 | 1.7 | 0.9 |
| 50 bytes | 1 | 3.3 | 2.5 |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import columns
from datapipe.errors import UserError
from datapipe.kernels.dedup import substring
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.tables import CUT_SCHEMA, Bucket, Exchange, is_new
from stages.dedup import _suffixes
from stages.dedup._cutting import Cutting, RemovedShare, cut_rows
from stages.dedup._passages import PASSAGES, SELECTED_GRAMS, TEXTS, Windowing, emit_rows, whole_texts
from stages.dedup._spans import CANDIDATES, WINDOWS, candidate_spans, candidate_windows, cut_repeated


class Substring(Cutting):
    """Cuts out spans of text that occur earlier in the corpus; the document keeps the rest."""

    unit: Literal["token", "byte"] = Field(
        default="token",
        description="The unit of `length`. token: words and runs of signs, and each character of scripts without spaces; white "
        "space is not compared. byte: bytes, white space included.",
    )
    length: int = Field(default=50, ge=8, le=substring.MAX_LENGTH, description="Least tokens (bytes) of a repeated span.")
    max_removed_share: RemovedShare = 0.8
    method: Literal["exchange", "suffix_array"] = Field(
        default="exchange",
        description="exchange: distributed, for a corpus of any size. suffix_array: all texts in one task (needs "
        "pydivsufsort). Both cut the same spans.",
    )
    memory_bytes: int = Field(
        default=1 << 30,
        ge=1,
        description="Most bytes of text for `method: suffix_array`; a larger corpus is an error. The task takes 20 times as "
        "much memory (unit byte: 65 times).",
    )

    by_key: ClassVar[tuple[str, ...]] = ("passages", "cuts")
    apply_options = ("max_removed_share", "memory_bytes")

    def libraries_used(self) -> tuple[str, ...]:
        return (*self.libraries, "pydivsufsort") if self.method == "suffix_array" else self.libraries

    def emits(self) -> Mapping[str, pa.Schema]:
        tables = {"anchors": SELECTED_GRAMS, "passages": PASSAGES, "cuts": CUT_SCHEMA}
        return tables if self.method == "exchange" else {"texts": TEXTS}

    def emit(self, batch: DocumentBatch) -> Mapping[str, pa.RecordBatch]:
        if self.method == "suffix_array":
            return {"texts": whole_texts(batch, self._rank)}
        return emit_rows(batch, self._windowing, self.keep, self._rank)

    def exchanges(self) -> Sequence[Exchange]:
        cuts = {"cuts": CUT_SCHEMA}
        if self.method == "suffix_array":
            return [Exchange(name="suffix-array", inputs=("texts",), outputs=cuts, at_once_bytes=self.memory_bytes)]
        return [
            Exchange(name="match", inputs=("anchors",), outputs={**cuts, "candidates": CANDIDATES}),
            Exchange(
                name="extend",
                inputs=("candidates", "passages"),
                outputs={"windows": WINDOWS},
                old_beside=("candidates",),
            ),
            Exchange(name="verify", inputs=("windows",), outputs=cuts, group=("hash", "check")),
        ]

    def reduce(self, exchange: str, bucket: Bucket) -> Mapping[str, pa.RecordBatch]:
        if exchange == "suffix-array":
            raise UserError(
                f"dedup.substring: the texts are larger than memory_bytes, {self.memory_bytes}. Raise memory_bytes, or write "
                "method: exchange, which finds the same spans."
            )
        if exchange == "extend":
            return {"windows": candidate_windows(bucket["candidates"], bucket["passages"], self._windowing)}
        if exchange == "verify":
            return {"cuts": cut_repeated(bucket["windows"], "check", self.keep)}
        selected = bucket["anchors"]
        return {"cuts": cut_repeated(selected, "span", self.keep), "candidates": candidate_spans(selected)}

    def reduce_at_once(self, exchange: str, tables: Bucket) -> Mapping[str, pa.RecordBatch]:
        rows = tables["texts"]
        hashes = columns.numbers(rows.column("hash"))
        borders = [0, *np.flatnonzero(hashes[1:] != hashes[:-1]) + 1, len(hashes)]
        parts = [self._cuts_of(rows.slice(start, stop - start)) for start, stop in pairwise(borders)]
        return {"cuts": pa.concat_batches(parts)}

    def _cuts_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The cuts of texts that are compared with each other by a suffix array."""
        parts, starts, stops = _suffixes.repeated_spans(rows.column("text"), self._windowing, self.keep)
        keys = columns.keys_from(columns.key_matrix(rows.column("key"))[parts])
        begins, new = columns.numbers(rows.column("start"))[parts], is_new(rows)[parts]
        return cut_rows(keys, starts + begins, stops + begins).filter(pa.array(new))

    @property
    def _windowing(self) -> Windowing:
        return Windowing(by_bytes=self.unit == "byte", length=self.length)
