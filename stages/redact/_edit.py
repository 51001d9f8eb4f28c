"""What the redacting stages share: spans found, counted and replaced until a second reading finds nothing more.

    texts ─▶ find ─▶ spans ─▶ replace ─▶ texts ─┐   only of documents in which something was found
               ▲                                │
               └────────────────────────────────┘   at most three times

Replacing a span may bring to light what it hid: the words that said "version" before an address, the number that made the
next look like a table. Reading again what was changed makes the output one that the stage leaves alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import compute as pc
from datapipe.kernels.redact.pii import FoundSpans
from datapipe.kernels.redact.stand_ins import REPLACEMENT_BYTES, write_stand_ins
from datapipe.kernels.text.replace import replace_spans
from datapipe.stage import FilterResult, Rule
from datapipe.stage.documents import DocumentBatch

_ROUNDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Editor:
    """How spans are found and what replaces them.

    Attributes:
        find: offsets and bytes of texts -> spans.
        replace: as the stages' option.
        seed: of the stand-ins.
        tags: what a tag is, by kind.
        stand_ins: which stand-in of `kernels/redact/stand_ins.py` a kind has, by kind.
        count_columns: by kind, which column of the counts it is counted in.
    """

    find: Callable[[np.ndarray, np.ndarray], FoundSpans]
    replace: Literal["tag", "fake", "delete"]
    seed: int
    tags: tuple[bytes, ...]
    stand_ins: tuple[int, ...]
    count_columns: tuple[int, ...]

    def judged(self, batch: DocumentBatch, counts: tuple[str, ...], rules: list[Rule]) -> FilterResult:
        """The texts without what was found, what was found, and a drop where the sum is over the one rule's limit."""
        texts, num_found = self.edited(batch.texts, len(counts))
        hits = num_found.sum(axis=1).astype(np.float64)
        new = {name: pa.array(num_found[:, at]) for at, name in enumerate(counts)}
        failed = rules[0].failed(hits) if rules else np.zeros(batch.num_docs, np.bool_)
        return FilterResult(
            keep=~failed,
            rule=np.where(failed, 0, -1).astype(np.int16),
            value=hits,
            measured=(hits,) if rules else (),
            columns=new if texts is None else {**new, "text": texts},
        )

    def edited(self, texts: pa.Array, num_counts: int) -> tuple[pa.Array | None, np.ndarray]:
        """The texts, None where nothing was found, and what was found: (num_docs, num_counts) int32."""
        counts = np.zeros((len(texts), num_counts), np.int32)
        rows, part, edited = np.arange(len(texts)), texts, None
        for _ in range(1 if self.replace == "delete" else _ROUNDS):
            offsets, data = columns.text_buffers(part)
            found = self.find(offsets, data)
            if not len(found.starts):
                break
            documents = np.searchsorted(offsets[1:], found.starts, side="right")
            np.add.at(counts, (rows[documents], np.array(self.count_columns)[found.kinds]), 1)
            part = self._replaced(offsets, data, found)
            edited = part if edited is None else pc.replace_with_mask(edited, np.isin(np.arange(len(texts)), rows), part)
            changed = np.unique(documents)
            rows, part = rows[changed], part.take(pa.array(changed))
        return edited, counts

    def _replaced(self, offsets: np.ndarray, data: np.ndarray, found: FoundSpans) -> pa.Array:
        rows = np.zeros((len(found.starts), REPLACEMENT_BYTES), np.uint8)
        lengths = np.zeros(len(found.starts), np.int64)
        if self.replace == "tag":
            for kind, tag in enumerate(self.tags):
                rows[found.kinds == kind, : len(tag)] = np.frombuffer(tag, np.uint8)
                lengths[found.kinds == kind] = len(tag)
        elif self.replace == "fake":
            kinds = np.array(self.stand_ins, np.uint8)[found.kinds]
            write_stand_ins(data, found.starts, found.stops, kinds, np.uint64(self.seed), rows, lengths)
        num_bytes = int(offsets[-1] - offsets[0] - (found.stops - found.starts).sum() + lengths.sum())
        out_offsets, out = np.empty(len(offsets), np.int64), np.empty(num_bytes, np.uint8)
        replace_spans(offsets, data, found.starts, found.stops, rows, lengths, out_offsets, out)
        return columns.texts_from(out_offsets, out)
