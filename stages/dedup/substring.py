"""Repeated spans: of every run of `length` words or bytes that occurs twice in the corpus, the first copy stays.

A token goes if it lies in a window, `length` tokens in a row of one document, that occurs earlier: by (key, place), or with
`keep: source_order` by (source, key, place). With `keep: none` if it occurs anywhere else. That is all, and both methods give
just this, whatever the corpus.

    text ─┬─ cuts (a piece that says again what it said)
          ├─ passages, by document ──────────────────────────────┐
          └─ anchors, by gram ─▶ meet ─▶ cuts (equal spans)      │
                                   └──▶ candidates, by document ─▶ look ─▶ windows, by their hash ─▶ verify ─▶ cuts

`exchange`: every window chooses a gram inside it (`datapipe/kernels/dedup/substring.py`); equal windows choose equal ones, and
meet by its hash. An anchor stands for the run of windows that chose one gram, its span. Where whole spans are equal, all but
the first go at once: that is most of a copied page. What is left are spans that are alike in part, at the ends of copies: one
of each kind goes on, is looked up in the passages, and its windows meet by hashes of 128 bits. No pairs are formed anywhere:
each step is linear, and a task holds one bucket. Of the corpus itself its text travels once, compressed, since what is left is
compared exactly; windows as hashes would weigh 8 bytes a token, and reading again is no step of an exchange.

`suffix_array`: all texts in one task that `memory_bytes` bounds, sorted by pydivsufsort. The reference, and for small corpora;
6 MB/s for tokens, 2.4 for bytes.

A token owns the bytes up to the next one; of bytes, only whole characters go. **The seam that a cut leaves counts as the end of
a document**: what is left on either side, taken apart, holds no repeated window, so a second pass finds nothing. Documents
carry their seams to the stages behind this one, until one of them changes the text.

One core of a 2-core AMD EPYC, 20 MB of web pages, news and novels in memory, all steps of `exchange` with the sorting between
them, CPU time: 68 MB/s for 50 tokens (emitting 114), 30 for 100 bytes, 17 for 50. Exchanged for each byte of text: the text,
0.54 bytes of anchors and 0.18 of candidates and windows; for 100 bytes 1.7 and 0.9, for 50 3.3 and 2.5.
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
from stages.dedup._passages import ANCHORS, PASSAGES, TEXTS, Grams, emitted, whole_texts
from stages.dedup._spans import CANDIDATES, WINDOWS, candidates_of, cut_repeated, windows_of


class Substring(Cutting):
    """Cuts out spans of text that occur earlier in the corpus."""

    unit: Literal["token", "byte"] = Field(
        default="token",
        description="What length counts. token: words and runs of signs, each character of scripts without spaces; white "
        "space between them does not matter. byte: bytes, white space too.",
    )
    length: int = Field(
        default=50, ge=8, le=substring.MAX_LENGTH, description="Least tokens or bytes of a span that is repeated."
    )
    max_removed_share: RemovedShare = 0.8
    method: Literal["exchange", "suffix_array"] = Field(
        default="exchange",
        description="exchange: distributed, for any size. suffix_array: all texts at once in one task (needs pydivsufsort); "
        "the spans are the same.",
    )
    memory_bytes: int = Field(
        default=1 << 30,
        ge=1,
        description="Most bytes of text for method suffix_array, which takes 20 times as many (unit byte: 65 times).",
    )

    by_key: ClassVar[tuple[str, ...]] = ("passages", "cuts")
    apply_options = ("max_removed_share", "memory_bytes")

    def emits(self) -> Mapping[str, pa.Schema]:
        tables = {"anchors": ANCHORS, "passages": PASSAGES, "cuts": CUT_SCHEMA}
        return tables if self.method == "exchange" else {"texts": TEXTS}

    def emit(self, batch: DocumentBatch) -> Mapping[str, pa.RecordBatch]:
        if self.method == "suffix_array":
            return {"texts": whole_texts(batch, self._rank)}
        return emitted(batch, self._grams, self.keep, self._rank)

    def exchanges(self) -> Sequence[Exchange]:
        cuts = {"cuts": CUT_SCHEMA}
        if self.method == "suffix_array":
            return [Exchange(name="suffix-array", inputs=("texts",), outputs=cuts, at_once_bytes=self.memory_bytes)]
        return [
            Exchange(name="match", inputs=("anchors",), outputs={**cuts, "candidates": CANDIDATES}),
            Exchange(name="extend", inputs=("candidates", "passages"), outputs={"windows": WINDOWS}),
            Exchange(name="verify", inputs=("windows",), outputs=cuts, group=("hash", "check")),
        ]

    def reduce(self, exchange: str, bucket: Bucket) -> Mapping[str, pa.RecordBatch]:
        if exchange == "suffix-array":
            raise UserError(
                f"dedup.substring: the texts are more than memory_bytes, {self.memory_bytes}. Give it more, or "
                "method: exchange, which finds the same spans."
            )
        if exchange == "extend":
            return {"windows": windows_of(bucket["candidates"], bucket["passages"], self._grams)}
        if exchange == "verify":
            return {"cuts": cut_repeated(bucket["windows"], "check", self.keep)}
        anchors = bucket["anchors"]
        return {"cuts": cut_repeated(anchors, "span", self.keep), "candidates": candidates_of(anchors)}

    def reduce_at_once(self, exchange: str, tables: Bucket) -> Mapping[str, pa.RecordBatch]:
        rows = tables["texts"]
        hashes = columns.numbers(rows.column("hash"))
        borders = [0, *np.flatnonzero(hashes[1:] != hashes[:-1]) + 1, len(hashes)]
        parts = [self._cuts_of(rows.slice(start, stop - start)) for start, stop in pairwise(borders)]
        return {"cuts": pa.concat_batches(parts)}

    def _cuts_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The cuts of texts that are compared with each other, by a suffix array."""
        parts, starts, stops = _suffixes.repeated_spans(rows.column("text"), self._grams, self.keep)
        keys = columns.keys_from(columns.key_matrix(rows.column("key"))[parts])
        begins, new = columns.numbers(rows.column("start"))[parts], is_new(rows)[parts]
        return cut_rows(keys, starts + begins, stops + begins).filter(pa.array(new))

    @property
    def _grams(self) -> Grams:
        return Grams(by_bytes=self.unit == "byte", length=self.length)
