"""The map task: documents stream through the fused stages of a segment.

    splits ─▶ reader ──────────────────┐                             ┌─▶ documents      for the next step
                                       ├─▶ stage ─▶ stage ─▶ … ──────┼─▶ emitted.TABLE  rows for the global stage that follows
    documents ─▶ decisions applied ────┘                             ├─▶ kept           of the last segment: all but the text
                                                                     ├─▶ drops          key, reason, measured value
                                                                     └─▶ quarantine     unreadable input, failed documents

One batch is in memory at a time, and one run of emitted rows.

A task that finds that its file cannot be cut at its range commits this alone; the next plan then
has one task for the file instead of those of its ranges. Values that the types of their columns do
not hold are handled in the same way. The finding is a record, so a run that was killed goes on with
it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import pyarrow as pa

from datapipe.dataclass import dataclass, field, replace
from datapipe.errors import UnsplittableInputError
from datapipe.exchange.files import TableWriters
from datapipe.exchange.tables import FactWriter, TableWriter, kept_facts, read_documents
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import ExchangeFile, OutputFile, Outputs, Record, TableFile, Tables
from datapipe.records.versions import UNICODE
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from datapipe.stage.global_stage import Global
from datapipe.stage.reader import FieldNames, InputFile, Split
from datapipe.stage.tables import CONTENTS
from datapipe.steps.costs import DOCUMENTS, EXCHANGED, StepCost, Texts, passed_on, rows_cost, seconds_of, stage_cost
from datapipe.steps.decisions import HELD_BLOCKS, DecisionApplier, Decisions, Drops, KeyedRows
from datapipe.steps.growth import Files, Growth, Reads, StepSize
from datapipe.steps.guard import NO_HINTS, RetryHints
from datapipe.steps.kind import ARROW, LEFT_OUT, Fields, OpenStage, Plan, Planning, Step, Task, documents_of, entering
from datapipe.steps.measuring import MEASUREMENTS, Measurement, searched
from datapipe.steps.pipeline import BoundStage, GlobalStep, RankingStep
from datapipe.steps.quarantine import Quarantine
from datapipe.steps.rank import Scores, find_cut
from datapipe.steps.read_batches import InputSource, InputSplit, MapMetrics
from datapipe.steps.reduce import decisions
from datapipe.steps.splits import file_hash
from datapipe.steps.stage_runner import StageRunner
from datapipe.storage.root import Root, is_remote

if TYPE_CHECKING:  # a worker plans nothing
    from datapipe.config.mixture import Mixture
    from datapipe.steps.request import PlannedSource

_READ_MB_PER_S, _PASS_ON_MB_PER_S = 80.0, 90.0
"""Of text, on one core: for reading input, and for writing documents and reading them again."""

_OF_READING = ("format", "text", "messages", "tools", "repository", "id", "keep", "sample")
"""The options of a source that its first step depends on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MapTask(Task):
    """Streams documents through fused stages: of `inputs`, or `documents` of the step before."""

    kind, version, libraries = "map", 2, (UNICODE,)
    options, metrics_type = ("execution.split_bytes",), MapMetrics

    inputs: tuple[InputSplit, ...] = field(default=(), metadata=entering(lambda inputs: [split.identity() for split in inputs]))
    fields: FieldNames = field(default_factory=FieldNames, metadata=entering(lambda names: names.identity()))
    limit: int | None = None  # read at most so many documents
    before: str = ""  # fingerprint of the task that wrote `documents`
    documents: tuple[TableFile, ...] = field(default=(), metadata=LEFT_OUT)  # they follow from `before`
    # of the global stage before; applied to `documents`
    decisions: Decisions | None = field(default=None, metadata=entering(lambda decisions: decisions and decisions.identity()))
    # the filter that scored `documents` in the step before, with the cut that is applied to them
    cut: BoundStage | None = field(default=None, metadata=entering(lambda by: by and [by.name, by.digest, str(by.cut)]))
    stages: tuple[BoundStage, ...] = field(
        default=(), metadata=entering(lambda stages: [[bound.name, bound.digest] for bound in stages])
    )
    # the global stage that follows
    emit: BoundStage | None = field(default=None, metadata=entering(lambda bound: bound and [bound.name, bound.emit_digest]))
    # position of the source in the order of sources that `emit` goes by; see `StageContext`
    source_position: int | None = None
    # of earlier attempts. Documents that crash a stage are found by running it, so they do not enter the fingerprint.
    hints: RetryHints = field(default=NO_HINTS, metadata=LEFT_OUT)

    @property
    def splits(self) -> tuple[Split, ...]:
        return tuple(entry.split for entry in self.inputs)

    @property
    def input_files(self) -> Mapping[str, InputFile]:
        return {split.file.url: split.file for split in self.splits}

    @property
    def input_bytes(self) -> float:
        return sum(split.file.text_bytes * split.share for split in self.splits) + sum(file.bytes for file in self.documents)

    @property
    def read_files(self) -> Iterator[OutputFile]:
        yield from self.documents
        for files in self.decisions.tables.values() if self.decisions is not None else ():
            yield from files

    @property
    def stages_run(self) -> tuple[BoundStage, ...]:
        return (*self.stages, *([self.emit] if self.emit is not None else []))

    @property
    def libraries_used(self) -> tuple[str, ...]:
        of_readers = (library for entry in self.inputs for library in entry.reader.libraries_used())
        return (*self.libraries, *of_readers, *(library for bound in self.stages_run for library in bound.libraries))

    def with_open_stages(self, open_stage: OpenStage) -> Self:
        emit = None if self.emit is None else open_stage(self.emit, self.source_position)
        return replace(self, stages=tuple(open_stage(bound, None) for bound in self.stages), emit=emit)

    def is_doubtful(self, metrics: TaskMetrics) -> bool:
        """The network may damage bytes of a store or server. Only damage that every reading finds is damage of the file."""
        return bool(metrics.of(MapMetrics).unreadable_files) and any(is_remote(split.file.url) for split in self.splits)

    def noted(self) -> Task:  # a file that changes takes back the tasks that read it
        return self if self.inputs else super(MapTask, self).noted()  # noqa: UP008  # `slots` makes another class

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        flow = _Flow(self, root, folder)
        try:
            for batch in flow.batches():
                if not flow.own.wider_types:  # else reading goes on for the other values of these fields alone
                    flow.process(batch)
        except UnsplittableInputError:
            return {}, TaskMetrics(own=MapMetrics(unsplittable_files=[flow.input.path]))
        if flow.own.wider_types:
            return {}, TaskMetrics(own=MapMetrics(wider_types=flow.own.wider_types))
        return flow.finish(), flow.metrics

    @classmethod
    def plan(cls, planning: Planning) -> None:
        for name, segments in planning.plan.pipeline.segments.items():
            _segment(planning, name, len(segments) - 1)

    @classmethod
    def options_of(cls, step: Step) -> tuple[str, ...]:
        is_first = step.id.endswith("/read")
        return (*cls.options, *(f"sources.SOURCE.{name}" for name in (_OF_READING if is_first else ())))

    @classmethod
    def stages_of(cls, plan: Plan, step: Step, source: str) -> Iterable[BoundStage]:
        pipeline = plan.pipeline
        for number, stages in enumerate(pipeline.segments[source]):
            if pipeline.map_step(source, number) == step.id:
                after = pipeline.after[source][number]
                return [*stages, *([after.stage] if after else [])]
        return []

    @classmethod
    def cost(cls, plan: Plan, step: Step, texts: Texts) -> Iterator[StepCost]:
        """The step before an exchange has its bytes, and the time to emit its rows."""
        entering, leaving = texts.of_steps[step.id]
        number = plan.of_kind("map", step.source).index(step)
        yield StepCost(leaving * DOCUMENTS, seconds_of(leaving, _PASS_ON_MB_PER_S))
        yield StepCost(seconds=seconds_of(texts.input[step.source], _READ_MB_PER_S) if number == 0 else 0.0)
        for bound in plan.pipeline.segments[step.source][number]:
            yield stage_cost(bound.stage, entering)
            entering *= passed_on(bound)
        following = plan.pipeline.after[step.source][number]
        if isinstance(following, GlobalStep):
            yield rows_cost(following.stage.stage, leaving)
            yield stage_cost(following.stage.stage, (1 - EXCHANGED) * leaving)

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        """As many tasks as there are groups of splits; later ones look up the decisions on their documents."""
        pipeline, source = growth.pipeline, step.source
        steps = [pipeline.map_step(source, number) for number in range(len(pipeline.segments[source]))]
        number, tasks = steps.index(step.id), growth.sources[source].tasks
        if number == 0:
            growth.add(step, tasks, growth.sources[source].reads)
            return
        reads, ending = [growth.whole(growth.steps[steps[number - 1]].writes.get("documents", Files()))], pipeline.after[source]
        if isinstance(group := ending[number - 1], GlobalStep):
            share = tasks / sum(growth.sources[name].tasks for name, _ in group.sources)
            for files in growth.steps[f"{group.id}/decisions"].writes.values():
                reads.append(Reads.by_key(files, min(growth.sources[source].files_a_task, files.number) * tasks, share))
        growth.add(step, tasks, *reads)


class _Flow:
    def __init__(self, task: MapTask, root: Root, folder: str) -> None:
        self.task, self.root, self.own = task, root, MapMetrics()
        self.metrics = TaskMetrics(own=self.own)
        self.counts, source = self.metrics.document_counts, task.source
        paths = [split.file.path for split in task.splits] if task.inputs else None
        self.quarantine = Quarantine(root, folder, source, self.counts, paths)
        self.input = InputSource(source, task.inputs, task.fields, task.limit, self.metrics, self.own, self.quarantine)
        self.drops = Drops(root, folder, source, self.counts)
        self.measurements: list[Measurement] = [measurement(root, folder, source) for measurement in MEASUREMENTS]
        scored = [bound for bound in task.stages if bound.is_scored]
        self.measurements += [Scores(root, folder, bound, task.seed) for bound in scored]
        self.runner = StageRunner(task.seed, task.hints, self.metrics, self.quarantine, self.drops, self.measurements)
        self.documents = TableWriter(root, f"{folder}/documents.arrow")
        self.kept: FactWriter | None = None  # of the last segment: documents that other segments pass on may still be dropped
        if task.emit is None and not scored:
            self.kept = FactWriter(root, f"{folder}/kept.parquet", source=source, fate="kept")
        self.emitted = None if task.emit is None else TableWriters(root, folder, cast(Global, task.emit.stage).emits())
        self.makes_contents = task.emit is not None and cast(Global, task.emit.stage).makes_contents
        self.applier: DecisionApplier | None = None
        if task.decisions is not None:
            held = {CONTENTS: 1}  # its blocks have documents
            tables = task.decisions.tables.items()
            rows = {name: KeyedRows.open(root, files, held.get(name, HELD_BLOCKS)) for name, files in tables}
            self.applier = DecisionApplier(task.decisions, rows, self.drops, self.measurements)

    def batches(self) -> Iterator[DocumentBatch]:
        is_input = bool(self.task.inputs)
        batches = map(DocumentBatch, self.input.batches()) if is_input else None
        for batch in batches or read_documents(self.root, self.task.documents, self.metrics):
            self.counts.read += batch.num_docs
            self.counts.read_bytes += batch.text_bytes
            if is_input:
                self.measure("read", batch)
            yield batch

    def measure(self, part: Literal["read", "kept"], batch: DocumentBatch) -> None:
        with self.metrics.timed("measure"):
            for measurement in self.measurements:
                measurement.documents(part, batch)

    def process(self, batch: DocumentBatch) -> None:
        if self.applier is None:
            self._process(batch)
            return
        name, sizes = f"{self.applier.decisions.name}: apply", chain([(batch.text_bytes, batch.num_docs)], repeat((0, 0)))
        for part in self.metrics.timed_each(name, self.applier.batches(batch), lambda _: next(sizes)):
            self._process(part)

    def _process(self, batch: DocumentBatch) -> None:
        if self.task.cut is not None:
            batch = self.runner.apply_cut(self.task.cut, batch)
        for bound in self.task.stages:
            if batch.num_docs == 0:
                return
            batch = self.runner.run(bound, batch)
        if self.emitted is not None and self.task.emit is not None and batch.num_docs:
            batch = self.runner.emit(self.task.emit, self.task.source, self.emitted, batch)
        self._keep(batch)

    def _keep(self, batch: DocumentBatch) -> None:
        with self.metrics.timed("write documents", batch.text_bytes, batch.num_docs):
            self.documents.add(_without_texts(batch) if self.makes_contents else batch.record)
        if self.kept is not None:
            with self.metrics.timed("write facts", num_docs=batch.num_docs) as work:
                facts = kept_facts(batch)
                work.bytes = facts.nbytes
                self.kept.add(facts)
        self.measure("kept", batch)
        self.counts.kept += batch.num_docs
        self.counts.kept_bytes += batch.text_bytes

    def finish(self) -> Outputs:
        with self.metrics.timed("write documents"):
            outputs: dict[str, Any] = {"documents": self.documents.finish()}
        with self.metrics.timed("write facts"):
            outputs["kept"] = self.kept.finish() if self.kept is not None else ()
            outputs |= {**self.drops.finish(), **self.quarantine.finish()}
        with self.metrics.timed("measure"):
            for measurement in self.measurements:
                outputs |= measurement.finish()
        self.own.searched = searched(self.task.stages)
        if self.emitted is not None and self.task.emit is not None:
            with self.metrics.timed(f"{self.task.emit.name}: exchange"):
                outputs |= self.emitted.finish("emitted.")
        self.counts.check(self.task.label)
        return outputs


def _without_texts(batch: DocumentBatch) -> pa.RecordBatch:
    """The documents with empty texts: those that they get are made of the emitted rows."""
    nothing = pa.repeat(pa.scalar("", pa.large_string()), batch.num_docs)
    return batch.record.set_column(batch.record.schema.get_field_index("text"), BASE_FIELDS[2], nothing)


def _segment(planning: Planning, name: str, number: int) -> Step:
    pipeline = planning.plan.pipeline
    step_id = pipeline.map_step(name, number)
    if step_id in planning.known:
        return planning.known[step_id]
    stages, following = pipeline.segments[name][number], pipeline.after[name][number]
    emit = following.stage if isinstance(following, GlobalStep) else None
    labels = [stage.name for stage in stages]
    common = {"uses": [*labels, *([emit.name] if emit else [])], "source": name, "stages": stages, "emit": emit}
    common["source_position"] = _source_position(planning.mixture, name, emit)
    if number == 0:
        return _read(planning, step_id, ARROW.join(["read", *labels]), common)
    before, ending = _segment(planning, name, number - 1), pipeline.after[name][number - 1]
    assert ending is not None
    if isinstance(ending, RankingStep):
        known: Decisions | BoundStage | None = find_cut(planning, name, ending, before)
    else:
        known = decisions(planning, ending, (_segment(planning, *emitting) for emitting in ending.sources))
    later = None
    if before.is_committed and known is not None:
        later = _of_later_segment(name, planning.plan.inputs[name], before.records, known)
    return planning.add(MapTask, step_id, ARROW.join([f"apply {ending.id}", *labels]), later, **common)


def _read(planning: Planning, step_id: str, label: str, common: Fields) -> Step:
    """The step that reads a source, with whole files where they cannot be cut, and with types that hold all values."""
    name, limit, plan = common["source"], planning.request.limit, planning.plan
    planned, found_by = planning.before.widened.get(name, (planning.request.sources[name], ()))
    whole = planning.before.read_whole.get(name, {})
    while True:
        now = planned.with_whole(whole) if whole else planned
        fields = now.field_names(planning.mixture.sources[name])
        step = planning.add(MapTask, step_id, label, _of_inputs(now, limit), fields=fields, limit=limit, **common)
        found = step.own(MapMetrics)
        is_odd = bool(found.unsplittable_files or found.wider_types)
        tasks = {record.fingerprint: record.metrics.of(MapMetrics) for record in step.records} if is_odd else {}
        unsplittable = {path: fingerprint for fingerprint, own in tasks.items() for path in own.unsplittable_files}
        wider = {fingerprint: own.wider_types for fingerprint, own in tasks.items() if own.wider_types}
        if not unsplittable.keys() - whole.keys() and not wider:
            plan.inputs[name], plan.read_whole[name], plan.widened[name] = now, whole, (planned, found_by)
            return step
        planning.withdraw(step)
        whole, found_by = {**whole, **unsplittable}, (*found_by, *wider)
        planned = planned.with_wider(wider.values(), planning.mixture.where("sources", name, "keep")) if wider else planned


def _of_inputs(planned: PlannedSource, limit: int | None) -> Iterator[Fields]:
    """One task per group of splits; a limited run reads everything in one task."""
    for group in planned.groups if limit is None else (planned.splits,):
        paths = [(split, split.file.path) for split in group]
        yield {"inputs": tuple(InputSplit(split, planned.readers[path], planned.reader_digests[path]) for split, path in paths)}


def _of_later_segment(
    name: str, planned: PlannedSource, before: Sequence[Record], known: Decisions | BoundStage
) -> Iterator[Fields]:
    """One task per task of the step before, with the decisions on documents of its input files
    alone, or with a filter whose cut is known."""
    groups = planned.groups if len(before) == len(planned.groups) else (planned.splits,)  # a limited run has one task
    for splits, record in zip(groups, before, strict=True):
        if isinstance(known, BoundStage):
            yield {**documents_of(record), "cut": known}
        else:
            hashes = {file_hash(name, split.file.path) for split in splits}
            yield {**documents_of(record), "decisions": replace(known, tables=_of_files(known.tables, hashes))}


def _source_position(mixture: Mixture, name: str, emit: BoundStage | None) -> int | None:
    order = cast(Global, emit.stage).source_order() if emit is not None else None
    if order is None:
        return None
    order = order or tuple(mixture.sources)
    return order.index(name) if name in order else len(order)


def _of_files(tables: Tables, hashes: Collection[int]) -> Tables:
    """The files that may have rows about documents of these input files."""
    listed = sorted(hashes)

    def overlaps(file: ExchangeFile) -> bool:
        number = bisect_left(listed, file.first)
        return number < len(listed) and listed[number] <= file.last

    return {name: tuple(file for file in files if file.rows and overlaps(file)) for name, files in tables.items()}
