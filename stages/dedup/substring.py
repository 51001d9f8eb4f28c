"""Repeated spans: cuts every run of `length` words or bytes that occurs earlier in the corpus; the first copy is kept.

A token is cut if it lies in a window, `length` consecutive tokens of one document, that occurs earlier: by (key, position), or
with `keep: source_order` by (source, key, position). With `keep: none` a token is cut if its window
occurs anywhere else. Exactly these tokens are cut, whatever the corpus.

    text ─┬─ cuts (a chunk repeats one of its spans)
          ├─ passages, by document ─────────────────────────────────────┐
          └─ selected grams, by hash ─▶ match ─▶ cuts (equal spans)     │
                                          └──▶ candidates, by document ─▶ extend ─▶ windows, by hash ─▶ verify ─▶ cuts

Every window selects a gram inside it (winnowing, `datapipe/kernels/dedup/substring.py`), and equal windows equal ones. A
selected gram stands for its span: the run of windows that selected it. Where whole spans are equal,
all but the first are cut at once, which covers most of a copied page. Of spans that are equal in
part, at the ends of copies, the first of each distinct span is looked up in the passages, and its
windows are compared by 128-bit hashes. Each step is linear, and a task holds one bucket.

A token owns the bytes up to the next token; with `unit: byte` only whole characters are cut. A cut point is the end of a
document, so a second pass finds nothing. For each byte of text (20 MB of web pages, news and novels) 1.7 bytes are exchanged
with windows of 50 tokens, 3.6 of 100 bytes, 6.8 of 50 bytes.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from datapipe.kernels.dedup import substring
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.tables import CUT_SCHEMA, Bucket, Exchange
from stages.dedup._cutting import Cutting, RemovedShare, cut_repeated
from stages.dedup._passages import PASSAGES, SELECTED_GRAMS, Windowing, emit_rows
from stages.dedup._spans import CANDIDATES, WINDOWS, candidate_spans, candidate_windows


class Substring(Cutting):
    """Cuts out spans of text that occur earlier in the corpus; the document keeps the rest."""

    unit: Literal["token", "byte"] = Field(
        default="token", description="token: a word, a run of signs, or a character of a script without spaces. byte: a byte."
    )
    length: int = Field(
        default=50,
        ge=8,
        le=substring.MAX_LENGTH,
        description="Minimum length of a repeated span, in tokens, or in bytes with unit: byte.",
    )
    max_removed_share: RemovedShare = 0.8

    by_key: ClassVar[tuple[str, ...]] = ("passages", "cuts")
    apply_options = ("max_removed_share",)

    def emits(self) -> Mapping[str, pa.Schema]:
        return {"anchors": SELECTED_GRAMS, "passages": PASSAGES, "cuts": CUT_SCHEMA}

    def emit(self, batch: DocumentBatch) -> Mapping[str, pa.RecordBatch]:
        return emit_rows(batch, self._windowing, self.keep, self._rank)

    def exchanges(self) -> Sequence[Exchange]:
        cuts = {"cuts": CUT_SCHEMA}
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
        if exchange == "extend":
            return {"windows": candidate_windows(bucket["candidates"], bucket["passages"], self._windowing)}
        if exchange == "verify":
            return {"cuts": cut_repeated(bucket["windows"], "check", self.keep)}
        selected = bucket["anchors"]
        return {"cuts": cut_repeated(selected, "span", self.keep), "candidates": candidate_spans(selected)}

    @property
    def _windowing(self) -> Windowing:
        return Windowing(by_bytes=self.unit == "byte", length=self.length)
