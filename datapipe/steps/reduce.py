"""The exchanges of a global stage: tasks on hash ranges of tables, down to the decisions that map tasks apply.

    tables ─▶ (merge) ─▶ reduce, one task a hash range ─▶ tables ─▶ (merge) ─▶ reduce ─▶ … ─▶ drops, cuts, sizes
    drops, cuts, sizes ─▶ (merge) ─▶ gather, one task a range of document keys ─▶ decisions

Tables in more sorted runs than a bucket should read are merged first (`merge.py`). An exchange is
repeated as long as its last round asks for another one. All tasks stream: they hold `limit_bytes`
of rows, and a run of each table that they write.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa

from datapipe.columns import is_first, numbers
from datapipe.dataclass import dataclass, field, replace
from datapipe.errors import DatapipeError
from datapipe.exchange.chunks import read_bucket, read_chunks
from datapipe.exchange.files import RUN_BYTES, TableWriters, sort_words
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import ExchangeFile, Outputs, Tables
from datapipe.records.versions import UNICODE
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import FINAL_SCHEMAS, FINAL_TABLES, OPEN, OPEN_SCHEMA, Bucket, Exchange
from datapipe.steps.decisions import Decisions
from datapipe.steps.growth import Files, Growth, Reads, StepSize
from datapipe.steps.guard import breaches_raised
from datapipe.steps.kind import LEFT_OUT, OpenStage, Planning, Step, entering
from datapipe.steps.merge import RangeTask, by_range, grow_merged, hash_ranges, merged, num_ranges, row_bytes
from datapipe.steps.pipeline import BoundStage, GlobalStep
from datapipe.steps.results import checked_tables
from datapipe.storage.root import Root

_KEY_WORDS = 3  # of a final table: hash, and the two halves of the key


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeTask(RangeTask):
    stage: BoundStage = field(metadata=LEFT_OUT)  # the global stage whose tables they are

    @property
    def stages_run(self) -> tuple[BoundStage, ...]:
        return (self.stage,)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReduceTask(ExchangeTask):
    """Reduces the rows of one hash range in one round of an exchange, in chunks where they exceed `limit_bytes`."""

    kind, version, libraries = "reduce", 2, (UNICODE,)

    stage: BoundStage = field(metadata=entering(lambda bound: bound.digest))
    exchange: str  # its name
    at_once: bool = False  # whether all rows go to `Global.reduce_at_once`

    @property
    def libraries_used(self) -> tuple[str, ...]:
        return (*self.libraries, *self.stage.libraries)

    def with_open_stages(self, open_stage: OpenStage) -> Self:
        return replace(self, stage=open_stage(self.stage, None))

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        stage, metrics = cast(Global, self.stage.stage), TaskMetrics()
        exchange = next(exchange for exchange in stage.exchanges() if exchange.name == self.exchange)
        schemas = table_schemas(stage)
        declared = {name: schemas[name] for name in exchange.outputs}
        writers = TableWriters(root, folder, declared, RUN_BYTES // 2)  # beside a bucket
        name, moving = f"{self.stage.name}: {exchange.label}", f"{self.stage.name}: exchange"
        if exchange.in_slices:
            return self._of_slices(root, stage, exchange, writers)
        if self.at_once:
            buckets = iter([read_bucket(root, self.tables, schemas, self.start, self.stop)])
            reduce = stage.reduce_at_once
        else:
            buckets = read_chunks(root, self.tables, schemas, exchange, self.start, self.stop, self.limit_bytes)
            reduce = stage.reduce
        for bucket in metrics.timed_each(moving, buckets, lambda bucket: (_memory_bytes(bucket), 0)):
            with metrics.timed(name, _memory_bytes(bucket)):
                reduced = self._reduced(reduce, bucket, declared)
            with metrics.timed(moving) as work:
                work.bytes = writers.add(reduced)
        with metrics.timed(moving):
            outputs = writers.finish()
        return outputs, metrics

    def _of_slices(self, root: Root, stage: Global, exchange: Exchange, writers: TableWriters) -> tuple[Outputs, TaskMetrics]:
        name, metrics, (table,) = f"{self.stage.name}: {exchange.label}", TaskMetrics(), exchange.inputs
        reduced = self._checked(stage, exchange, self.slices(root, table))
        for tables in metrics.timed_each(name, reduced, lambda tables: (_memory_bytes(tables), 0)):
            with metrics.timed(f"{self.stage.name}: exchange") as work:
                work.bytes = writers.add(tables)
        return writers.finish(), metrics

    def _checked(self, stage: Global, exchange: Exchange, slices: Iterator[pa.RecordBatch]) -> Iterator[Bucket]:
        with breaches_raised(self.stage.name, stage, stage.reduce_slices):
            for tables in stage.reduce_slices(exchange.name, slices):
                yield checked_tables(tables, {name: table_schemas(stage)[name] for name in exchange.outputs})

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        """As many rounds as the step has had."""
        group, tables = _growing(growth, step)
        names = {each.name: each for each in cast(Global, group.stage.stage).exchanges()}
        name = step.id.removeprefix(f"{group.id}/")
        exchange = names.get(name) or names[name.rpartition("-")[0]]
        own = {table: tables.get(table, Files()) for table in exchange.inputs}
        tables |= _grow_ranges(growth, step, own, exchange.at_once_bytes)
        tables |= dict.fromkeys(set(exchange.outputs) & set(exchange.inputs), Files())
        written = growth.steps[step.id].writes
        tables |= {table: tables.get(table, Files()) + written.get(table, Files()) for table in exchange.outputs}
        tables.pop(OPEN, None)

    def _reduced(
        self, reduce: Callable[..., Any], bucket: Bucket, declared: Mapping[str, pa.Schema]
    ) -> dict[str, pa.RecordBatch]:
        with breaches_raised(self.stage.name, self.stage.stage, reduce):
            return checked_tables(reduce(self.exchange, bucket), declared)


@dataclass(frozen=True, kw_only=True, slots=True)
class GatherTask(ExchangeTask):
    """Sorts the final tables by document key, in one range of the first halves of keys: one drop a
    document, its cuts, and the sum of its sizes."""

    kind, version = "gather", 2

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        tables = {name: map(partial(_of_each_document, name), self.slices(root, name, _KEY_WORDS)) for name in self.tables}
        writers = TableWriters(root, folder, {**table_schemas(cast(Global, self.stage.stage)), **FINAL_SCHEMAS})
        return self.rewritten(f"{self.stage.name}: decisions", writers, tables)

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        _, tables = _growing(growth, step)
        _grow_ranges(growth, step, {name: tables[name] for name in FINAL_TABLES if name in tables}, 0)


def _of_each_document(table: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The first drop of each document, its content, or one row with the sum of its sizes; all rows of `cuts`."""
    if table == "cuts":
        return rows
    firsts = np.flatnonzero(is_first(*sort_words(rows, _KEY_WORDS)))
    kept = rows.take(pa.array(firsts))
    if table != "sizes":
        return kept
    sums = np.add.reduceat(numbers(rows.column("size")), firsts)
    return kept.set_column(rows.schema.get_field_index("size"), rows.schema.field("size"), pa.array(sums))


def _memory_bytes(bucket: Bucket) -> int:
    return sum(rows.nbytes for rows in bucket.values())


def table_schemas(stage: Global) -> dict[str, pa.Schema]:
    """The schema of every table of a stage; the engine knows those of the final ones and of `open`."""
    schemas = dict(stage.emits())
    for exchange in stage.exchanges():
        schemas.update(exchange.outputs)
    known = {**FINAL_SCHEMAS, OPEN: OPEN_SCHEMA}
    return {name: known.get(name, schema) for name, schema in schemas.items()}


def decisions(planning: Planning, global_step: GlobalStep, emitting: Iterable[Step]) -> Decisions | None:
    """The decisions of a global stage, or None while they are not committed. `emitting`: the steps
    that emit its rows, only read while the decisions are not planned."""
    step_id = f"{global_step.id}/decisions"
    step = planning.known.get(step_id) or _gather(planning, step_id, global_step, emitting)
    if not step.is_committed:
        return None
    stage = cast(Global, global_step.stage.stage)
    tables = {*stage.emits(), *(name for exchange in stage.exchanges() for name in exchange.outputs)}
    names = tables if stage.size_column is not None else tables - {"sizes"}
    return Decisions(
        name=global_step.id,
        rule=global_step.rule,
        tables={name: step.outputs(name, ExchangeFile) for name in FINAL_TABLES if name in names},
        size_column=stage.size_column,
        cluster_column=stage.cluster_column,
        removed_share=stage.removed_share_limit(),
    )


def _gather(planning: Planning, step_id: str, global_step: GlobalStep, emitting: Iterable[Step]) -> Step:
    stage = cast(Global, global_step.stage.stage)
    tables: Tables | None = None
    emitting = list(emitting)
    if all(step.is_committed for step in emitting):
        reference_rows = planning.request.reference_rows.get((global_step.stage.name, global_step.stage.digest), {})
        tables = {name: _with_rows(emitting, f"emitted.{name}") + reference_rows.get(name, ()) for name in stage.emits()}
    for exchange in stage.exchanges():
        tables = _exchanged(planning, global_step, exchange, tables)
    final = None if tables is None else {name: tables[name] for name in FINAL_TABLES if name in tables}
    if final is not None and not is_reduced_in_one_task(row_bytes(final), 0, planning.bucket_bytes):
        final = _merged(planning, step_id, global_step, final)
    ranges = None if final is None else by_range(final, planning.bucket_bytes)
    label = f"{global_step.id}: collect decisions by document"
    common = {"stage": global_step.stage, "limit_bytes": planning.bucket_bytes}
    return planning.add(GatherTask, step_id, label, ranges, [global_step.stage.name], **common)


def _exchanged(planning: Planning, global_step: GlobalStep, exchange: Exchange, tables: Tables | None) -> Tables | None:
    """The tables after an exchange, or None while they are not known."""
    name = f"{global_step.id}/{exchange.name}"
    for number in range(1, exchange.rounds + 1):
        step_id = name if exchange.rounds == 1 else f"{name}-{number}"
        own = None if tables is None else {table: tables.get(table, ()) for table in exchange.inputs}
        if own is not None and not is_reduced_in_one_task(row_bytes(own), exchange.at_once_bytes, planning.bucket_bytes):
            own = _merged(planning, step_id, global_step, own)
        at_once = own is not None and _fits_one_call(row_bytes(own), exchange.at_once_bytes, planning.bucket_bytes)
        ranges = None if own is None else by_range(own, None if at_once else planning.bucket_bytes)
        common = {"stage": global_step.stage, "limit_bytes": planning.bucket_bytes * 5 // 4, "exchange": exchange.name}
        label = f"{global_step.id}: {exchange.label}" + (f", round {number}" if exchange.rounds > 1 else "")
        step = planning.add(ReduceTask, step_id, label, ranges, [global_step.stage.name], at_once=at_once, **common)
        if tables is None or own is None or not step.is_committed:
            return None
        replaced = set(exchange.outputs) & set(exchange.inputs)
        tables = {table: () if table in replaced else files for table, files in {**tables, **own}.items()}
        tables |= {table: tables.get(table, ()) + _with_rows([step], table) for table in exchange.outputs}
        if not tables.pop(OPEN, ()):
            return tables
    if exchange.rounds == 1:
        return tables
    raise DatapipeError(
        f"{name}: not finished after {exchange.rounds} rounds. This is a defect of datapipe or of a stage of yours: "
        "the exchange must stop asking for rounds."
    )


def _merged(planning: Planning, before: str, global_step: GlobalStep, tables: Tables) -> Tables | None:
    name, label = global_step.stage.name, f"{global_step.id}: merge sorted runs of"
    num_buckets = dict.fromkeys(tables, len(hash_ranges(row_bytes(tables), planning.bucket_bytes)))
    return merged(planning, before, label, tables, num_buckets, planning.bucket_bytes, name, work_name=f"{name}: merge")


def _with_rows(steps: Sequence[Step], kind: str) -> tuple[ExchangeFile, ...]:
    return tuple(output for step in steps for output in step.outputs(kind, ExchangeFile) if output.rows)


def is_reduced_in_one_task(total_bytes: float, at_once_bytes: int | None, bucket_bytes: int) -> bool:
    """Whether one task reads all rows of an exchange, so that no block is read twice."""
    return total_bytes <= bucket_bytes or _fits_one_call(total_bytes, at_once_bytes, bucket_bytes)


def _fits_one_call(total_bytes: float, at_once_bytes: int | None, bucket_bytes: int) -> bool:
    """Whether an exchange is done in one call; see `Exchange.at_once_bytes`."""
    budget = bucket_bytes // 2 if at_once_bytes is None else at_once_bytes
    return 0 < total_bytes <= budget


def _grow_ranges(growth: Growth, step: StepSize, tables: dict[str, Files], at_once_bytes: int | None) -> dict[str, Files]:
    """Adds a step on ranges of tables, and those that merge them; returns the tables as it reads them."""
    total, bucket_bytes = sum(files.row_bytes for files in tables.values()), growth.bucket_bytes
    count = num_ranges(total, bucket_bytes)
    if not is_reduced_in_one_task(total, at_once_bytes, bucket_bytes):
        tables = grow_merged(growth, step, tables, dict.fromkeys(tables, count), bucket_bytes)
    tasks = 1 if _fits_one_call(total, at_once_bytes, bucket_bytes) else count
    growth.add(step, tasks, *(Reads.by_range(files, tasks) for files in tables.values()))
    return tables


def _growing(growth: Growth, step: StepSize) -> tuple[GlobalStep, dict[str, Files]]:
    """The global step of an exchange, and its tables so far: at first the emitted ones."""
    group = next(each for each in growth.pipeline.global_steps if step.id.startswith(f"{each.id}/"))
    if group.id not in growth.tables:
        stage = cast(Global, group.stage.stage)
        emitting = [growth.steps[growth.pipeline.map_step(*segment)].writes for segment in group.sources]
        reference_rows = growth.request.reference_rows.get((group.stage.name, group.stage.digest), {})
        growth.tables[group.id] = {
            name: sum((of.get(f"emitted.{name}", Files()) for of in emitting), Files.of(reference_rows.get(name, ())))
            for name in stage.emits()
        }
    return group, growth.tables[group.id]
