"""Applies the decisions of a global stage to a batch: drops documents, cuts spans, adds the columns about clusters.

    batch ─▶ drops ─▶ cuts ─┬─▶ more cut than allowed, or nothing left: dropped, as STAGE:too_much_removed
                            └─▶ the text without the spans, and its cut points ─▶ size and cluster columns

The bytes cut from documents that stay are counted by rule, as STAGE:RULE_bytes; each byte once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np
import pyarrow as pa

from datapipe.columns import compute as pc
from datapipe.columns import hex_keys, keys_from, numbers, text_buffers, text_lengths, texts_from
from datapipe.errors import StageError, UserError
from datapipe.exchange.partitions import TableWriter
from datapipe.kernels.text import replace
from datapipe.metrics import DocumentCounts
from datapipe.plan.work import Decisions
from datapipe.shards import schemas
from datapipe.stage.cut_points import CUT_POINTS, cut_points_after, no_cut_points
from datapipe.stage.documents import DocumentBatch
from datapipe.storage import Root
from datapipe.tasks.decisions import Cuts, KeyedRows, cluster_sizes, cuts_of, drops_of
from datapipe.tasks.measuring.clusters import SurvivorWriter

TOO_MUCH_REMOVED = "too_much_removed"

_CONTINUES, _MASK = 0x80, 0xC0  # bytes 10xxxxxx continue a character


class DecisionApplier:
    """The decisions on one task's documents.

    Args:
        rows: by table, of those that the stage writes.
        drops: where dropped documents are written.
        survivors: what counts the documents that were dropped for each survivor.
    """

    def __init__(
        self,
        decisions: Decisions,
        rows: Mapping[str, KeyedRows],
        document_counts: DocumentCounts,
        drops: TableWriter,
        survivors: SurvivorWriter,
    ) -> None:
        self.decisions, self.rows, self.document_counts, self.drops = decisions, rows, document_counts, drops
        self.survivors = survivors

    @classmethod
    def open(
        cls, root: Root, decisions: Decisions, document_counts: DocumentCounts, drops: TableWriter, survivors: SurvivorWriter
    ) -> Self:
        """Opens the files of the decisions."""
        rows = {name: KeyedRows.open(root, files) for name, files in decisions.tables.items()}
        return cls(decisions, rows, document_counts, drops, survivors)

    def apply(self, batch: DocumentBatch) -> DocumentBatch:
        """The documents of a batch that stay, without the spans that are cut."""
        if "drops" in self.rows:
            batch = self._without_drops(batch)
        if "cuts" in self.rows and batch.num_docs:
            batch = self._cut(batch, cuts_of(self.rows["cuts"], batch.keys))
        return self._with_cluster(batch)

    def _without_drops(self, batch: DocumentBatch) -> DocumentBatch:
        drops = drops_of(self.rows["drops"], batch.keys)
        if not drops.dropped.any():
            return batch
        rows = np.flatnonzero(drops.dropped)
        survivors = keys_from(drops.survivor[rows])
        self.survivors.add(self.decisions.name, survivors)
        self._drop(batch, rows, self.decisions.rule, drops.value[rows], pa.nulls(len(rows), pa.float64()), survivors)
        return batch.filter(~drops.dropped)

    def _with_cluster(self, batch: DocumentBatch) -> DocumentBatch:
        """The documents that stay, with the columns about their clusters."""
        added: dict[str, pa.Array] = {}
        if self.decisions.size_column is not None:
            sizes = cluster_sizes(self.rows["sizes"], batch.keys) if "sizes" in self.rows else np.ones(batch.num_docs, np.int64)
            added[self.decisions.size_column] = pa.array(sizes)
        if self.decisions.cluster_column is not None:
            added[self.decisions.cluster_column] = hex_keys(batch.keys)
        again = next((name for name in added if name in batch.record.schema.names), None)
        if again is not None:
            raise UserError(
                f"{self.decisions.name}: the column '{again}' exists already: an earlier stage wrote it. Name another column."
            )
        return batch.with_columns(added) if added else batch

    def _drop(
        self, batch: DocumentBatch, rows: np.ndarray, rule: str, values: np.ndarray, limits: pa.Array, survivors: pa.Array
    ) -> None:
        name = self.decisions.name
        self.document_counts.dropped[f"{name}:{rule}"] += len(rows)
        keys, ids = (column.take(pa.array(rows)) for column in (batch.keys, batch.record.column("id")))
        arrays = [keys, ids, pa.array([name] * len(rows)), pa.array([rule] * len(rows)), pa.array(values), limits, survivors]
        self.drops.add(pa.record_batch(arrays, schema=schemas.DROPS))

    def _cut(self, batch: DocumentBatch, cuts: Cuts) -> DocumentBatch:
        if not len(cuts.documents):
            return batch if batch.cut_points is not None else batch.with_columns({CUT_POINTS: no_cut_points(batch.num_docs)})
        offsets, data = batch.buffers
        starts, stops = _parted(cuts, offsets, data, self.decisions.name)
        is_left = starts < stops  # earlier cuts did not take all of it
        starts, stops, documents, rules = starts[is_left], stops[is_left], cuts.documents[is_left], cuts.rules[is_left]
        removed = np.bincount(documents, stops - starts, batch.num_docs)  # (num_docs,) bytes; exact below 2**53
        share = np.round(removed / np.maximum(np.diff(offsets), 1), 6)
        texts = _without(offsets, data, starts, stops)
        too_much = (share > self.decisions.removed_share) | ((removed > 0) & _is_blank(texts))
        if too_much.any():
            rows, limit = np.flatnonzero(too_much), self.decisions.removed_share
            survivors = pa.nulls(len(rows), schemas.DROPS.field("survivor").type)
            self._drop(batch, rows, TOO_MUCH_REMOVED, share[rows], pa.array(np.full(len(rows), limit)), survivors)
        stay = ~too_much[documents]
        counts = np.bincount(rules[stay], (stops - starts)[stay], len(cuts.names))
        for rule, count in zip(cuts.names, counts):
            self.document_counts.counts[f"{self.decisions.name}:{rule}_bytes"] += int(count)
        cut_points = cut_points_after(offsets, batch.cut_points, starts, stops, text_buffers(texts)[0])
        return batch.with_columns({"text": texts, CUT_POINTS: cut_points}).filter(~too_much)


def _is_blank(texts: pa.Array) -> np.ndarray:
    """Which texts hold nothing but white space, (num_docs,) bool."""
    return numbers(pc.utf8_is_space(texts)) | (text_lengths(texts) == 0)


def _parted(cuts: Cuts, offsets: np.ndarray, data: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Start and stop of each cut in `data`, without the bytes of the cuts before it: (num_cuts,) int64 each, ascending.

    Raises StageError for a span outside its document, or one that would cut a character in two.
    """
    begins, ends = offsets[cuts.documents], offsets[cuts.documents + 1]
    starts, stops = cuts.starts + begins, cuts.stops + begins
    inside = (starts >= begins) & (starts <= stops) & (stops <= ends)
    for byte_offsets in (starts, stops):
        before_end = byte_offsets[inside & (byte_offsets < ends)]
        if not inside.all() or ((data[before_end] & _MASK) == _CONTINUES).any():
            raise StageError(f"{name}: cuts outside of a text or within a character. This is a defect of the stage.")
    taken = np.concatenate([[0], np.maximum.accumulate(stops)[:-1]])
    return np.maximum(starts, np.minimum(taken, stops)), stops


def _without(offsets: np.ndarray, data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> pa.Array:
    """The texts without the spans."""
    out_offsets = np.empty(len(offsets), np.int64)
    out = np.empty(int(offsets[-1] - offsets[0] - (stops - starts).sum()), np.uint8)
    nothing = np.zeros((len(starts), 32), np.uint8), np.zeros(len(starts), np.int64)
    replace.replace_spans(offsets, data, np.ascontiguousarray(starts), np.ascontiguousarray(stops), *nothing, out_offsets, out)
    return texts_from(out_offsets, out)
