"""The edit loop of the redacting stages: find spans, count them, replace them, and repeat until no span is found.

    texts ─▶ find ─▶ spans ─▶ replace ─▶ texts ─┐   only documents in which a span was found
               ▲                                │
               └────────────────────────────────┘   at most three times

A replacement may expose a span that the replaced text hid: the word "version" before an address, or the number that made the
next number look like a column of a table. Reading changed texts again makes the stage idempotent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import compute as pc
from datapipe.kernels.redact.spans import FoundSpans
from datapipe.kernels.redact.stand_ins import REPLACEMENT_BYTES, write_stand_ins
from datapipe.kernels.text.replace import replace_spans
from datapipe.stage import FilterResult, Rule
from datapipe.stage.documents import DocumentBatch

_ROUNDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Editor:
    """How spans are found, and what replaces them.

    Attributes:
        find: offsets and bytes of texts -> spans.
        replace: the option of the stages.
        seed: seed of the stand-ins.
        tags: the tag of each kind.
        stand_ins: the stand-in of each kind, by its number in `datapipe/kernels/redact/stand_ins.py`.
        count_columns: the column of counts of each kind.
        by_row: whether `find` takes the rows of the texts in the batch too, (num_texts,) int64.
    """

    find: Callable[..., FoundSpans]
    replace: Literal["tag", "fake", "delete"]
    seed: int
    tags: tuple[bytes, ...]
    stand_ins: tuple[int, ...]
    count_columns: tuple[int, ...]
    by_row: bool = False

    def result(self, batch: DocumentBatch, counts: tuple[str, ...], rules: list[Rule]) -> FilterResult:
        """The edited texts, the counts of spans as columns, and a drop where their sum exceeds the limit of the only rule."""
        texts, num_found = self.edited(batch.texts, len(counts))
        hits = num_found.sum(axis=1).astype(np.float64)
        new = {name: pa.array(num_found[:, column]) for column, name in enumerate(counts)}
        failed = rules[0].failed(hits) if rules else np.zeros(batch.num_docs, np.bool_)
        return FilterResult(
            keep=~failed,
            rule=np.where(failed, 0, -1).astype(np.int16),
            value=hits,
            measured=(hits,) if rules else (),
            columns=new if texts is None else {**new, "text": texts},
        )

    def edited(self, texts: pa.Array, num_counts: int) -> tuple[pa.Array | None, np.ndarray]:
        """The edited texts, None where no span was found, and the counts of spans, (num_docs, num_counts) int32."""
        counts = np.zeros((len(texts), num_counts), np.int32)
        rows, part, edited = np.arange(len(texts)), texts, None
        for _ in range(1 if self.replace == "delete" else _ROUNDS):
            offsets, data = columns.text_buffers(part)
            spans = self.find(offsets, data, rows) if self.by_row else self.find(offsets, data)
            if not len(spans.starts):
                break
            documents = np.searchsorted(offsets[1:], spans.starts, side="right")
            np.add.at(counts, (rows[documents], np.array(self.count_columns)[spans.kinds]), 1)
            part = self._replaced(offsets, data, spans)
            edited = part if edited is None else pc.replace_with_mask(edited, np.isin(np.arange(len(texts)), rows), part)
            changed = np.unique(documents)
            rows, part = rows[changed], part.take(pa.array(changed))
        return edited, counts

    def _replaced(self, offsets: np.ndarray, data: np.ndarray, spans: FoundSpans) -> pa.Array:
        """The texts with every span replaced."""
        rows = np.zeros((len(spans.starts), REPLACEMENT_BYTES), np.uint8)
        lengths = np.zeros(len(spans.starts), np.int64)
        if self.replace == "tag":
            for kind, tag in enumerate(self.tags):
                rows[spans.kinds == kind, : len(tag)] = np.frombuffer(tag, np.uint8)
                lengths[spans.kinds == kind] = len(tag)
        elif self.replace == "fake":
            kinds = np.array(self.stand_ins, np.uint8)[spans.kinds]
            write_stand_ins(data, spans.starts, spans.stops, kinds, np.uint64(self.seed), rows, lengths)
        num_bytes = int(offsets[-1] - offsets[0] - (spans.stops - spans.starts).sum() + lengths.sum())
        out_offsets, out = np.empty(len(offsets), np.int64), np.empty(num_bytes, np.uint8)
        replace_spans(offsets, data, spans.starts, spans.stops, rows, lengths, out_offsets, out)
        return columns.texts_from(out_offsets, out)
