"""The map task: documents stream through the fused stages of a segment.

    splits ─▶ reader ──────────────────┐                             ┌─▶ documents      for the next step
                                       ├─▶ stage ─▶ stage ─▶ … ──────┼─▶ emitted.TABLE  rows for the global stage that follows
    documents ─▶ decisions applied ────┘                             ├─▶ kept           of the last segment: all but the text
                                                                     ├─▶ drops          key, reason, measured value
                                                                     └─▶ quarantine     unreadable input, failed documents

One batch is in memory at a time, and one run of emitted rows. Stages only return columns and decisions; this module counts,
writes and quarantines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.errors import UnsplittableInputError
from datapipe.exchange.facts import FactWriter, kept_facts
from datapipe.exchange.files import TableWriters
from datapipe.exchange.partitions import TableWriter, read_documents
from datapipe.inputs.planned_input import PlannedInput, damages
from datapipe.machine.activity import at_place
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import OutputFile, Outputs
from datapipe.rng import seed_for
from datapipe.stage.base import Filter, FilterResult, Map, Rule, Stage
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.field_types import FoundType
from datapipe.stage.global_stage import Global
from datapipe.stage.reader import OpenInput, ReadBatch
from datapipe.steps.contract.guard import Guard
from datapipe.steps.contract.results import NewColumns, checked_emit, checked_filter, checked_map, tags_of
from datapipe.steps.decisions import DecisionApplier, DropWriter, KeyedRows
from datapipe.steps.measuring.clusters import SurvivorWriter
from datapipe.steps.measuring.distributions import Distributions
from datapipe.steps.measuring.findings import FindingsWriter, searched
from datapipe.steps.quarantine import Quarantine
from datapipe.steps.ranking import ScoreWriter, of_scored, score_column, tagged, with_cut
from datapipe.steps.read_batches import coalesced, conformed, limited, with_keys
from datapipe.steps.work import BoundStage, InputSplit, MapTask
from datapipe.storage.root import Root


def run_map(task: MapTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """Runs a map task, writing its outputs below `folder`. A task that finds that a file cannot be cut at its range, or values
    that the types of their columns do not hold, has no outputs and counts nothing else; what it has written goes with the next
    sweep of attempts."""
    mapper = _Mapper(task, root, folder)
    mapper.open()
    try:
        for batch in mapper.batches():
            if not mapper.metrics.wider_types:  # else reading goes on for the other values of these fields alone
                mapper.process(batch)
    except UnsplittableInputError:
        return {}, TaskMetrics(unsplittable_files=[mapper.path])
    if mapper.metrics.wider_types:
        return {}, TaskMetrics(wider_types=mapper.metrics.wider_types)
    return mapper.finish(), mapper.metrics


class _Mapper:
    """One map task at work: its writers and its numbers."""

    def __init__(self, task: MapTask, root: Root, folder: str) -> None:
        self.task, self.root = task, root
        self.left = task.limit  # documents to read
        self.path = ""  # of the file that is read
        self.metrics = TaskMetrics()
        self.document_counts = self.metrics.document_counts
        self.documents = TableWriter(root, f"{folder}/documents.arrow")
        self.drops = DropWriter(root, f"{folder}/drops.parquet", task.source, self.document_counts)
        self.findings = FindingsWriter(root, f"{folder}/findings.parquet", task.source)
        self.distributions = Distributions(root, folder, task.source)
        self.survivors = SurvivorWriter(root, f"{folder}/survivors.arrow")
        paths = [split.file.path for split in task.splits] if task.inputs else None
        self.quarantine = Quarantine(root, folder, task.source, self.document_counts, paths)
        self.new_columns = {bound.name: NewColumns() for bound in task.stages}
        self.applier: DecisionApplier | None = None
        self.scores = self._score_writer(folder)
        self.kept: FactWriter | None = None  # of the last segment: documents that other segments pass on may still be dropped
        if task.emit is None and self.scores is None:
            self.kept = FactWriter(root, f"{folder}/kept.parquet", source=task.source, fate="kept")
        self.emitted: TableWriters | None = None
        if task.emit is not None:
            stage = task.emit.stage
            assert isinstance(stage, Global)
            self.emitted = TableWriters(root, folder, stage.emits())
            self.salt = np.uint64(seed_for(0, "scope", task.source) if stage.scope == "source" else 0)

    def _score_writer(self, folder: str) -> ScoreWriter | None:
        """Where scores go if the last stage keeps a share whose cut is not known yet."""
        last = self.task.stages[-1] if self.task.stages else None
        share = last.stage.kept_share() if last is not None and last.cut is None and isinstance(last.stage, Filter) else None
        return None if last is None or share is None else ScoreWriter(self.root, folder, last, share, self.task.seed)

    def open(self) -> None:
        """Opens the decisions on the task's documents."""
        if self.task.decisions is not None:
            rows = {name: KeyedRows.open(self.root, files) for name, files in self.task.decisions.tables.items()}
            self.applier = DecisionApplier(self.task.decisions, rows, self.drops, self.survivors)

    # ---------------------------------------------------------------------------------------------- input

    def batches(self) -> Iterator[DocumentBatch]:
        if not self.task.inputs:
            for batch in read_documents(self.root, self.task.documents, self.metrics):
                self._count_read(batch)
                yield batch
            return
        for record in coalesced(self._records()):
            batch = DocumentBatch(record)
            self._count_read(batch)
            self.distributions.add_lengths("read", batch)
            yield batch

    def _count_read(self, batch: DocumentBatch) -> None:
        self.document_counts.read += batch.num_docs
        self.document_counts.read_bytes += batch.text_bytes

    def _records(self) -> Iterator[pa.RecordBatch]:
        """The readers' batches with keys, up to the limit. Raises ChangedInputError where a file is not the planned one."""
        self.metrics.field_values = dict.fromkeys(self.task.fields.columns, 0)
        for source in self.task.inputs:
            if self.left == 0:
                return
            self.path = source.split.file.path
            with PlannedInput(source.split.file) as planned:
                yield from self._records_of(source, planned.open)

    def _records_of(self, source: InputSplit, open_input: OpenInput) -> Iterator[pa.RecordBatch]:
        """The batches of a split, up to the limit; rejected input goes to quarantine."""
        split, num_records = source.split, 0
        reading = iter(source.reader.read(split, self.task.fields, open_input))
        while self.left is None or self.left > 0:
            with self.metrics.timed("read") as work:
                at_place(f"{split.file.path}, after {num_records:,} of its documents")
                part = next(reading, None)
                if part is None:
                    break
                self._add_wider(part, split.file.path)
                part = conformed(part, split, self.task.fields)
                if self.left is not None:
                    part, self.left = limited(part, self.left)
                record = with_keys(part, split, self.task.source)
                work.bytes, work.documents = part.input_bytes, len(part.positions)
            num_records += len(part.positions) + len(part.rejected) + sum(part.passed_over.values())
            self.quarantine.reject(split.file.path, part.rejected)
            self.metrics.unreadable_files += damages(split.file, part.rejected)
            for kind, count in part.passed_over.items():
                self.document_counts.counts[f"read:{kind}"] += count
            if record.num_rows:
                for name, column in part.extra.items():
                    self.metrics.field_values[name] += len(column) - column.null_count
                yield record
        if not num_records and split.start == 0 and split.stop in (None, len(split.file.row_groups)):
            self.document_counts.counts["read:empty_files"] += 1

    def _add_wider(self, part: ReadBatch, path: str) -> None:
        """Adds the types of values that do not fit to those that the task has met, in the order of the input."""
        for field, kind in part.wider.items():
            found, held = FoundType(kind=kind, path=path), self.metrics.wider_types.get(field)
            self.metrics.wider_types[field] = (found if held is None else FoundType.from_json(held).with_more(found)).to_json()

    # ---------------------------------------------------------------------------------------------- stages

    def process(self, batch: DocumentBatch) -> None:
        if self.applier is not None and self.task.decisions is not None:
            with self.metrics.timed(f"{self.task.decisions.name}: apply", batch.text_bytes, batch.num_docs):
                batch = self.applier.apply(batch)
        if self.task.cut is not None:
            with self.metrics.timed(f"{self.task.cut.name}: apply", batch.text_bytes, batch.num_docs):
                batch = self._below_cut_dropped(self.task.cut, batch)
        for bound in self.task.stages:
            if batch.num_docs == 0:
                return
            with self._timed_stage(bound.name, batch):
                batch = self._run_stage(bound, batch)
        if self.emitted is not None and self.task.emit is not None and batch.num_docs:
            batch = self._emit(self.task.emit, self.emitted, batch)
        with self.metrics.timed("write documents", batch.text_bytes, batch.num_docs):
            self.documents.add(batch.record)
        if self.kept is not None:
            with self.metrics.timed("write facts", num_docs=batch.num_docs) as work:
                facts = kept_facts(batch)
                work.bytes = facts.nbytes
                self.kept.add(facts)
        self.distributions.add_lengths("kept", batch)
        self.document_counts.kept += batch.num_docs
        self.document_counts.kept_bytes += batch.text_bytes

    def _below_cut_dropped(self, bound: BoundStage, batch: DocumentBatch) -> DocumentBatch:
        """The documents that a cut keeps, or all with its tags."""
        assert isinstance(bound.stage, Filter)
        result = of_scored(bound, self.task.seed, batch)
        self.distributions.add(bound, batch, result, of_cut=True)
        if bound.stage.mode == "tag":
            return tagged(bound, batch, result)
        self._drop(bound.name, bound.stage.rules(), batch, result)
        return DocumentBatch(batch.filter(result.keep).record.drop_columns([score_column(bound.name)]))

    @contextmanager
    def _timed_stage(self, name: str, batch: DocumentBatch) -> Iterator[None]:
        """Times a stage on a batch. Segmentations that it found, which later stages use too, are work of their own."""
        with self.metrics.timed(name, batch.text_bytes, batch.num_docs) as work:
            yield
            for segmentation, seconds in batch.segmentation_s.items():
                self.metrics.spent(segmentation, seconds, batch.text_bytes, batch.num_docs)
                work.seconds -= seconds
            batch.segmentation_s.clear()
            measuring_s = self.distributions.taken_s()
            self.metrics.spent("measure", measuring_s, batch.text_bytes, batch.num_docs)
            work.seconds -= measuring_s

    def _run_stage(self, bound: BoundStage, batch: DocumentBatch) -> DocumentBatch:
        stage, name = bound.stage, bound.name
        assert isinstance(stage, Filter | Map)
        batch.make_read_only()

        def checked(part: DocumentBatch) -> FilterResult | dict[str, pa.Array]:
            if isinstance(stage, Map):
                return self.new_columns[name].same(checked_map(stage, part), part)
            result = checked_filter(stage, part)
            result = result if bound.cut is None else with_cut(bound, self.task.seed, part, result)
            return replace(result, columns=self.new_columns[name].same(result.columns, part))

        parts, failed = self._guard(name, stage, stage.process).run(checked, batch)
        kept = [self._after_stage(bound, stage, part, result) for part, result in parts]
        self.quarantine.isolate(name, batch, failed)
        return _joined(kept, batch)

    def _guard(self, name: str, stage: Stage, method: Callable[..., Any]) -> Guard:
        return Guard(name=name, stage=stage, method=method, place_of=self.quarantine.place, care=self.task.care)

    def _after_stage(
        self, bound: BoundStage, stage: Filter | Map, part: DocumentBatch, result: FilterResult | dict[str, pa.Array]
    ) -> DocumentBatch:
        """The documents with the columns that a stage returned, without those that it drops."""
        name = bound.name
        if isinstance(result, dict):
            return self._with_columns(name, stage, part, result)
        assert isinstance(stage, Filter)
        if self.scores is not None and self.scores.name == name:
            result = self.scores.with_scores(stage, part, result)
        self.findings.add(name, stage, part, result)
        self.distributions.add(bound, part, result)
        if stage.mode == "tag":
            self._add_counts(f"{name} (tag)", stage.counts, result.columns)
            return part.with_columns(tags_of(name, stage, result))
        self._drop(name, stage.rules(), part, result)
        return self._with_columns(name, stage, part, result.columns).filter(result.keep)

    def _with_columns(
        self, name: str, stage: Filter | Map, part: DocumentBatch, columns: Mapping[str, pa.Array]
    ) -> DocumentBatch:
        self._add_counts(name, stage.counts, columns)
        new = {column: array for column, array in columns.items() if column not in stage.counts}
        if isinstance(stage, Filter) and stage.extracts:
            return part.extracted(new)
        return part.with_columns(new) if new else part

    def _add_counts(self, name: str, counts: tuple[str, ...], columns: Mapping[str, pa.Array]) -> None:
        for counted in counts:
            self.document_counts.counts[f"{name}:{counted}"] += int(columns[counted].sum().as_py() or 0)

    def _drop(self, name: str, rules: Sequence[Rule], part: DocumentBatch, result: FilterResult) -> None:
        rows = np.flatnonzero(~result.keep)
        if not len(rows):
            return
        numbers = result.rule[rows].astype(np.int64)
        names = pa.array([rule.name for rule in rules], pa.string()).take(pa.array(numbers))
        limits = np.array([rule.limit for rule in rules], np.float64)[numbers] if result.limit is None else result.limit[rows]
        self.drops.drop(part, rows, name, names, result.value[rows], pa.array(limits))

    def _emit(self, bound: BoundStage, writers: TableWriters, batch: DocumentBatch) -> DocumentBatch:
        stage = bound.stage
        assert isinstance(stage, Global)
        with self._timed_stage(bound.name, batch):
            batch.make_read_only()
            parts, failed = self._guard(bound.name, stage, stage.emit).run(lambda part: checked_emit(stage, part), batch)
            emitted = [self._salted(stage, tables) for _, tables in parts]
        with self.metrics.timed(f"{bound.name}: exchange") as work:
            work.bytes = sum(writers.add(tables, bound.name) for tables in emitted)
        self.quarantine.isolate(bound.name, batch, failed)
        return _joined([part for part, _ in parts], batch) if failed else batch

    def _salted(self, stage: Global, tables: Mapping[str, pa.RecordBatch]) -> dict[str, pa.RecordBatch]:
        """Rows whose hashes are salted by source, where `scope: source` keeps the sources apart."""
        return {
            name: rows
            if not self.salt or name in stage.by_key
            else rows.set_column(0, rows.schema.field(0), pa.array(rows.column(0).to_numpy() ^ self.salt))
            for name, rows in tables.items()
        }

    def finish(self) -> Outputs:
        with self.metrics.timed("write documents"):
            outputs: dict[str, tuple[OutputFile, ...]] = {"documents": self.documents.finish()}
        with self.metrics.timed("write facts"):
            outputs |= {"kept": self.kept.finish() if self.kept is not None else (), "drops": self.drops.finish()}
            outputs |= {"quarantine": self.quarantine.finish(), "findings": self.findings.finish()}
        outputs |= {**self.distributions.finish(), "survivors": self.survivors.finish()}
        outputs |= self.scores.finish() if self.scores is not None else {}
        self.metrics.searched = searched(self.task.stages)
        if self.emitted is not None and self.task.emit is not None:
            with self.metrics.timed(f"{self.task.emit.name}: exchange"):
                outputs |= self.emitted.finish("emitted.")
        self.document_counts.check(self.task.label)
        return outputs


def _joined(parts: list[DocumentBatch], original: DocumentBatch) -> DocumentBatch:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return original.slice(0, 0)
    return DocumentBatch(pa.concat_batches([part.record for part in parts]))
