"""What redacting stages have in common: find spans, count them, replace them, and repeat until no span is found.

A replacement may expose a span that the replaced text hid: the word "version" before an address. So
changed texts are read again, at most three times, which makes the stage idempotent.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import columns, rng
from datapipe.columns import compute as pc
from datapipe.kernels.redact.spans import FoundSpans
from datapipe.kernels.redact.stand_ins import REPLACEMENT_BYTES, write_stand_ins
from datapipe.kernels.text.replace import replace_spans
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.documents import DocumentBatch

_ROUNDS = 3

Find = Callable[[np.ndarray, np.ndarray, np.ndarray], FoundSpans]
"""The spans of texts by their offsets, bytes, and rows in the batch, (num_texts,) int64."""


class Redacting(Filter):
    """A filter that replaces spans of several kinds in texts."""

    mode: Literal["drop", "tag"] = Field(
        default="drop", description="drop: replace, and drop documents with more than `max_hits` hits. tag: only count."
    )
    replace: Literal["tag", "fake", "delete"]
    max_hits: int | None = Field(
        default=None,
        ge=0,
        description="Maximum number of replaced spans in a document. Documents with more are dropped. OLMo: 5.",
    )

    writes = ()
    span_kinds: ClassVar[tuple[str, ...]]
    """The name in `counts` of each kind of span."""
    tags: ClassVar[tuple[bytes, ...]]
    """What replaces spans of each kind with `replace: tag`."""
    stand_ins: ClassVar[tuple[int, ...]]
    """The stand-in of each kind of span with `replace: fake`, by its number in `kernels/redact/stand_ins.py`."""

    def rules(self) -> list[Rule]:
        return [] if self.max_hits is None else [self.at_most("too_many_hits", "max_hits")]

    def unused_kernels(self) -> tuple[str, ...]:
        return () if self.replace == "fake" else (f"{write_stand_ins.function.__module__}:",)

    def redacted(self, batch: DocumentBatch, find: Find) -> FilterResult:
        """The edited texts, the counts of spans as columns, and a drop where their sum exceeds `max_hits`."""
        texts, num_found = self._edited(batch.texts, find)
        hits = num_found.sum(axis=1).astype(np.float64)
        new = {name: pa.array(num_found[:, column]) for column, name in enumerate(self.counts)}
        tried = [(hits, rule.failed(hits)) for rule in self.rules()]
        result = FilterResult.first_failing(batch.num_docs, tried, new if texts is None else {**new, "text": texts})
        return dataclasses.replace(result, value=hits)

    def _edited(self, texts: pa.Array, find: Find) -> tuple[pa.Array | None, np.ndarray]:
        """The edited texts, None where no span was found, and the counts of spans, (num_docs, num_counts) int32."""
        counts = np.zeros((len(texts), len(self.counts)), np.int32)
        count_of = np.array([self.counts.index(kind) for kind in self.span_kinds])
        rows, part, edited = np.arange(len(texts)), texts, None
        for _ in range(1 if self.replace == "delete" else _ROUNDS):
            offsets, data = columns.text_buffers(part)
            spans = find(offsets, data, rows)
            if not len(spans.starts):
                break
            documents = np.searchsorted(offsets[1:], spans.starts, side="right")
            np.add.at(counts, (rows[documents], count_of[spans.kinds]), 1)
            part = self._replaced(offsets, data, spans)
            edited = part if edited is None else pc.replace_with_mask(edited, np.isin(np.arange(len(texts)), rows), part)
            changed = np.unique(documents)
            rows, part = rows[changed], part.take(pa.array(changed))
        return edited, counts

    def _replaced(self, offsets: np.ndarray, data: np.ndarray, spans: FoundSpans) -> pa.Array:
        rows = np.zeros((len(spans.starts), REPLACEMENT_BYTES), np.uint8)
        lengths = np.zeros(len(spans.starts), np.int64)
        if self.replace == "tag":
            for kind, tag in enumerate(self.tags):
                rows[spans.kinds == kind, : len(tag)] = np.frombuffer(tag, np.uint8)
                lengths[spans.kinds == kind] = len(tag)
        elif self.replace == "fake":
            kinds = np.array(self.stand_ins, np.uint8)[spans.kinds]
            seed = rng.seed_for(self._context.seed, self._context.name, "fake")
            write_stand_ins(data, spans.starts, spans.stops, kinds, np.uint64(seed), rows, lengths)
        num_bytes = int(offsets[-1] - offsets[0] - (spans.stops - spans.starts).sum() + lengths.sum())
        out_offsets, out = np.empty(len(offsets), np.int64), np.empty(num_bytes, np.uint8)
        replace_spans(offsets, data, spans.starts, spans.stops, rows, lengths, out_offsets, out)
        return columns.texts_from(out_offsets, out)
