"""Runs the stages of a task on its batches, and hands the decisions of filters on.

batch ─▶ stage, guarded ─┬─▶ documents that failed ─▶ quarantine
                         ├─▶ decisions ─▶ drops, measurements
                         └─▶ the documents that are left, with new columns or tags"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.columns import byte_slices, compute, numbers, text_lengths
from datapipe.dataclass import dataclass, field, replace
from datapipe.exchange.files import TableWriters
from datapipe.metrics import TaskMetrics
from datapipe.rng import seed_for
from datapipe.stage.base import Filter, FilterResult, Map, Stage
from datapipe.stage.documents import BASE_FIELDS, TARGET_BATCH_BYTES, DocumentBatch
from datapipe.stage.global_stage import Global
from datapipe.stage.segments import SEGMENTS
from datapipe.stage.when import OUTSIDE_WHEN, When, rejoined
from datapipe.steps.decisions import Drops
from datapipe.steps.edited_segments import after_edit
from datapipe.steps.guard import Failed, Guard, RetryHints
from datapipe.steps.measuring import Measurement
from datapipe.steps.pipeline import BoundStage
from datapipe.steps.quarantine import Quarantine
from datapipe.steps.rank import measured_scores, of_scored, score_column, tagged, with_cut
from datapipe.steps.results import NewColumns, checked_filter, checked_map, checked_tables, tags_of


@dataclass(slots=True)
class StageRunner:
    seed: int
    hints: RetryHints
    metrics: TaskMetrics
    quarantine: Quarantine
    drops: Drops
    measurements: Sequence[Measurement]
    _new_columns: dict[str, NewColumns] = field(default_factory=dict)

    def run(self, bound: BoundStage, batch: DocumentBatch) -> DocumentBatch:
        """The documents that a stage leaves. It sees those of its `when`; others pass it unchanged."""
        if bound.when is None:
            return self._run(bound, batch)
        rows = self._seen(bound, bound.when, batch)
        if rows.all():
            return self._run(bound, batch)
        left = self._run(bound, batch.filter(rows))
        if not left.num_docs:  # an empty batch tells which columns there are
            left = self._run(bound, batch.slice(0, 0))
        return rejoined(batch, rows, left, bound.name)

    def _seen(self, bound: BoundStage, when: When, batch: DocumentBatch) -> np.ndarray:
        """The documents that a stage sees, (num_docs,) bool. The others are counted."""
        rows = when.rows(batch, bound.name)
        self.metrics.document_counts.counts[f"{bound.name}:{OUTSIDE_WHEN}"] += int((~rows).sum())
        return rows

    def _run(self, bound: BoundStage, batch: DocumentBatch) -> DocumentBatch:
        stage, name = bound.stage, bound.name
        assert isinstance(stage, Filter | Map)
        columns = self._new_columns.setdefault(name, NewColumns())

        def checked(part: DocumentBatch) -> FilterResult | dict[str, pa.Array]:
            if isinstance(stage, Map):
                return columns.same(checked_map(stage, part), part)
            result = checked_filter(stage, part)
            result = result if bound.cut is None else with_cut(bound, self.seed, part, result)
            return replace(result, columns=columns.same(result.columns, part))

        with self._timed(name, batch):
            batch.make_read_only()
            processed, raised = self._guard(name, stage, stage.process).run(checked, batch)
            with_segments = [self._with_segments(name, stage, part, result) for part, result in processed]
            parts, failed = _without_failed(with_segments, raised, batch.num_docs)
            kept = [self._after(bound, stage, part, result) for part, result in parts]
            self.quarantine.isolate(name, batch, failed)
        self._measure(bound, batch, parts)
        return _joined(kept, batch)

    def apply_cut(self, bound: BoundStage, batch: DocumentBatch) -> DocumentBatch:
        """The documents, scored before, that a cut keeps, or all with its tags. Documents without a score pass."""
        column = score_column(bound.name)
        rows = numbers(batch.record.column(column).is_valid())
        if rows.all():
            return self._apply_cut(bound, batch)
        left = self._apply_cut(bound, batch.filter(rows))
        return rejoined(batch, rows, left, bound.name)

    def _apply_cut(self, bound: BoundStage, batch: DocumentBatch) -> DocumentBatch:
        assert isinstance(bound.stage, Filter)
        with self.metrics.timed(f"{bound.name}: apply", batch.text_bytes, batch.num_docs):
            result = of_scored(bound, self.seed, batch)
            if bound.stage.mode == "tag":
                left = tagged(bound, batch, result)
            else:
                self.drops.add(bound, batch, result)
                left = DocumentBatch(batch.filter(result.keep).record.drop_columns([score_column(bound.name)]))
        self._measure(bound, batch, [(batch, result)], of_cut=True)
        return left

    def emit(self, bound: BoundStage, source: str, writers: TableWriters, batch: DocumentBatch) -> DocumentBatch:
        """Writes the rows that a global stage emits, and returns the documents without those that failed."""
        stage = bound.stage
        assert isinstance(stage, Global)
        rows = None if bound.when is None else self._seen(bound, bound.when, batch)
        seen = batch if rows is None else batch.filter(rows)
        if not seen.num_docs:
            return batch
        salt = np.uint64(seed_for(0, "scope", source) if stage.scope == "source" else 0)

        def checked(part: DocumentBatch) -> dict[str, pa.RecordBatch]:
            return checked_tables(stage.emit(part), stage.emits())

        with self._timed(bound.name, seen):
            seen.make_read_only()
            parts, failed = self._guard(bound.name, stage, stage.emit).run(checked, seen)
            emitted = [_salted(stage, tables, salt) for _, tables in parts]
        with self.metrics.timed(f"{bound.name}: exchange") as work:
            work.bytes = sum(map(writers.add, emitted))
        self.quarantine.isolate(bound.name, seen, failed)
        keep = np.ones(batch.num_docs, np.bool_)
        keep[(np.arange(batch.num_docs) if rows is None else np.flatnonzero(rows))[list(failed)]] = False
        return batch.filter(keep)

    def _guard(self, name: str, stage: Stage, method: Callable[..., Any]) -> Guard:
        return Guard(name=name, stage=stage, method=method, place_of=self.quarantine.place, hints=self.hints)

    def _measure(
        self, bound: BoundStage, batch: DocumentBatch, parts: Sequence[tuple[DocumentBatch, Any]], *, of_cut: bool = False
    ) -> None:
        """Hands the decisions of a filter on the parts of a batch to the measurements."""
        with self.metrics.timed("measure", batch.text_bytes, batch.num_docs):
            for measurement, (part, result) in product(self.measurements, parts):
                if isinstance(result, FilterResult):
                    measurement.decided(bound, part, result, of_cut=of_cut)

    @contextmanager
    def _timed(self, name: str, batch: DocumentBatch) -> Iterator[None]:
        """Times a stage on a batch. Segmentations that it found, which later stages use too, are measured as separate work."""
        with self.metrics.timed(name, batch.text_bytes, batch.num_docs) as work:
            yield
            for segmentation, seconds in batch.segmentation_s.items():
                self.metrics.spent(segmentation, seconds, batch.text_bytes, batch.num_docs)
                work.seconds -= seconds
            batch.segmentation_s.clear()

    def _after(
        self, bound: BoundStage, stage: Filter | Map, part: DocumentBatch, result: FilterResult | dict[str, pa.Array]
    ) -> DocumentBatch:
        if isinstance(result, dict):
            return self._with_columns(bound.name, stage, part, result)
        assert isinstance(stage, Filter)
        if bound.is_scored:
            scores = pa.array(measured_scores(stage, result))
            result = replace(result, columns={**result.columns, score_column(bound.name): scores})
        if stage.mode == "tag":
            self._add_counts(f"{bound.name} (tag)", stage.counts, result.columns)
            return part.with_columns(tags_of(bound.name, stage, result))
        self.drops.add(bound, part, result)
        return self._with_columns(bound.name, stage, part, result.columns).filter(result.keep)

    def _with_columns(
        self, name: str, stage: Filter | Map, part: DocumentBatch, columns: Mapping[str, pa.Array]
    ) -> DocumentBatch:
        self._add_counts(name, stage.counts, columns)
        new = {column: array for column, array in columns.items() if column not in stage.counts}
        if isinstance(stage, Filter) and stage.extracts:
            return part.extracted(new)
        return part.with_columns(new) if new else part

    def _with_segments(
        self, name: str, stage: Filter | Map, part: DocumentBatch, result: FilterResult | dict[str, pa.Array]
    ) -> tuple[DocumentBatch, FilterResult | dict[str, pa.Array], Failed]:
        """The result with the segments of the texts that a stage edited, and the documents that failed, by row."""
        is_filter = isinstance(result, FilterResult)
        columns, failed = (result.columns, dict(result.failed)) if is_filter else (result, Failed())
        is_edited = "text" in columns and not (isinstance(stage, Filter) and (stage.extracts or stage.mode == "tag"))
        if not is_edited or SEGMENTS in columns or (segments := part.segments) is None:
            return part, result, failed
        texts = columns["text"]
        if is_filter:
            texts = compute.if_else(_is_kept(result), texts, part.texts)  # others have no text that counts
        edit = partial(self._texts_of_segments, name, stage, part)
        new, unplaced = after_edit(segments, part.texts, texts, edit)
        columns = {**columns, SEGMENTS: new}
        return part, replace(result, columns=columns) if is_filter else columns, failed | unplaced

    def _texts_of_segments(
        self, name: str, stage: Filter | Map, part: DocumentBatch, texts: pa.Array, documents: np.ndarray
    ) -> pa.Array:
        """What a stage makes of texts that are segments of documents, (num_texts,) large_string; null where it fails."""
        columns = part.record.drop_columns(["text", SEGMENTS])

        def edited(batch: DocumentBatch) -> pa.Array:
            if isinstance(stage, Map):
                return checked_map(stage, batch).get("text", batch.texts)
            result = checked_filter(stage, batch)
            texts = result.columns.get("text", batch.texts)
            return compute.if_else(_is_kept(result), texts, pa.scalar(None, texts.type))  # a dropped one has no edit

        made: list[pa.Array] = []
        for start, stop in byte_slices(text_lengths(texts), TARGET_BATCH_BYTES):
            rows = columns.take(pa.array(documents[start:stop]))
            batch = DocumentBatch(rows.append_column(BASE_FIELDS[2], texts.slice(start, stop - start)))
            batch.make_read_only()
            parts, failed = self._guard(name, stage, stage.process).run(edited, batch)
            mask = np.zeros(batch.num_docs, np.bool_)
            mask[list(failed)] = True
            whole = pa.concat_arrays([text for _, text in parts]) if parts else texts.slice(0, 0)
            indices = pa.array(np.cumsum(~mask) - 1, mask=mask)
            made.append(whole.take(indices))
        return pa.concat_arrays(made)

    def _add_counts(self, name: str, counts: tuple[str, ...], columns: Mapping[str, pa.Array]) -> None:
        for counted in counts:
            self.metrics.document_counts.counts[f"{name}:{counted}"] += int(columns[counted].sum().as_py() or 0)


Parts = list[tuple[DocumentBatch, FilterResult | dict[str, pa.Array]]]


def _is_kept(result: FilterResult) -> pa.Array:
    """(num_docs,) bool, whether a filter keeps the document and could process it."""
    kept = result.keep.copy()
    kept[list(result.failed)] = False
    return pa.array(kept)


def _without_failed(
    parts: list[tuple[DocumentBatch, FilterResult | dict[str, pa.Array], Failed]], raised: Failed, num_docs: int
) -> tuple[Parts, Failed]:
    """The parts of a batch without the documents that failed in them, by row, and all that failed, in order."""
    rows = np.setdiff1d(np.arange(num_docs), list(raised))  # of the documents in the parts
    failed, left, start = dict(raised), Parts(), 0
    for part, result, of_part in parts:
        stop = start + part.num_docs
        if of_part:
            failed |= {int(rows[start + row]): error for row, error in of_part.items()}
            left.append(_others(part, result, of_part))
        else:
            left.append((part, result))
        start = stop
    return left, dict(sorted(failed.items()))


def _others(
    part: DocumentBatch, result: FilterResult | dict[str, pa.Array], failed: Failed
) -> tuple[DocumentBatch, FilterResult | dict[str, pa.Array]]:
    if isinstance(result, FilterResult):
        others, keep = replace(result, failed=failed).without_failed()
        return part.filter(keep), others
    keep = np.ones(part.num_docs, np.bool_)
    keep[list(failed)] = False
    return part.filter(keep), {name: column.filter(pa.array(keep)) for name, column in result.items()}


def _salted(stage: Global, tables: Mapping[str, pa.RecordBatch], salt: np.uint64) -> dict[str, pa.RecordBatch]:
    """Rows with hashes salted by source, where `scope: source` keeps the sources apart."""
    return {
        name: rows
        if not salt or name in stage.by_key
        else rows.set_column(0, rows.schema.field(0), pa.array(rows.column(0).to_numpy() ^ salt))
        for name, rows in tables.items()
    }


def _joined(parts: list[DocumentBatch], original: DocumentBatch) -> DocumentBatch:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return original.slice(0, 0)
    return DocumentBatch(pa.concat_batches([part.record for part in parts]))
