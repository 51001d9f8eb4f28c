"""The exchanges of a global stage: rows are reduced by hash.

    tables ─▶ reduce, one task a hash range ─▶ tables ─▶ reduce ─▶ … ─▶ drops, cuts, sizes ─▶ `gather.py`

Tables in too many sorted runs are merged first (`merge.py`). An exchange is repeated as long as its last round asks for another
one. All tasks stream: they hold `limit_bytes` of rows, and a run of each table that they write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import pyarrow as pa

from datapipe.errors import DatapipeError
from datapipe.exchange.chunks import read_bucket, read_chunks
from datapipe.exchange.files import RUN_BYTES, TableWriters
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import ExchangeFile, Outputs, Tables
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import OPEN, Bucket, Exchange
from datapipe.steps.contract.breaches import error_without_document
from datapipe.steps.contract.results import checked_tables
from datapipe.steps.hash_range import RangeTask, by_range, fits_one_call, is_reduced_in_one_task, table_schemas
from datapipe.steps.kind import OpenStage, Planning, Step, entering
from datapipe.steps.merge import merged
from datapipe.steps.pipeline import BoundStage, GlobalStep
from datapipe.storage.root import Root


@dataclass(frozen=True, kw_only=True, slots=True)
class ReduceTask(RangeTask):
    """Reduces the rows of one hash range in one round of an exchange. A range that has more than `limit_bytes` comes in chunks.

    Attributes:
        exchange: its name.
        at_once: whether all rows go to `Global.reduce_at_once`.
    """

    kind, version = "reduce", 1

    stage: BoundStage = field(metadata=entering(lambda bound: bound.digest))
    exchange: str
    at_once: bool = False

    def with_open_stages(self, open_stage: OpenStage) -> Self:
        return replace(self, stage=open_stage(self.stage, None))

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        """One hash range of one round of an exchange."""
        stage, metrics = cast(Global, self.stage.stage), TaskMetrics()
        exchange = next(exchange for exchange in stage.exchanges() if exchange.name == self.exchange)
        schemas = table_schemas(stage)
        declared = {name: schemas[name] for name in exchange.outputs}
        writers = TableWriters(root, folder, declared, RUN_BYTES // 2)  # beside a bucket
        name, moving = f"{self.stage.name}: {exchange.label}", f"{self.stage.name}: exchange"
        if self.at_once:
            buckets = iter([read_bucket(root, self.tables, schemas, self.start, self.stop)])
            reduce = stage.reduce_at_once
        else:
            buckets = read_chunks(root, self.tables, schemas, exchange, self.start, self.stop, self.limit_bytes)
            reduce = stage.reduce
        for bucket in metrics.timed_each(moving, buckets, lambda bucket: (_row_bytes(bucket), 0)):
            with metrics.timed(name, _row_bytes(bucket)):
                reduced = _reduced(self, reduce, bucket, declared)
            with metrics.timed(moving) as work:
                work.bytes = writers.add(reduced, name)
        with metrics.timed(moving):
            outputs = writers.finish()
        return outputs, metrics


def _row_bytes(bucket: Bucket) -> int:
    return sum(rows.nbytes for rows in bucket.values())


def _reduced(
    task: ReduceTask, reduce: Callable[..., Any], bucket: Bucket, declared: Mapping[str, pa.Schema]
) -> dict[str, pa.RecordBatch]:
    """What the stage makes of the rows. Raises StageError where its code fails or returns other tables than it declares."""
    try:
        return checked_tables(reduce(task.exchange, bucket), declared)
    except BaseException as error:
        told = error_without_document(task.stage.name, task.stage.stage, reduce, error)
        if told is None:
            raise
        raise told from error


# ---------------------------------------------------------------------------------------------------- planning


def exchanged(planning: Planning, global_step: GlobalStep, exchange: Exchange, tables: Tables | None) -> Tables | None:
    """The tables after an exchange, or None while they are not known."""
    name = f"{global_step.id}/{exchange.name}"
    for number in range(1, exchange.rounds + 1):
        step_id = name if exchange.rounds == 1 else f"{name}-{number}"
        own = None if tables is None else {table: tables.get(table, ()) for table in exchange.inputs}
        if own is not None and not is_reduced_in_one_task(own, exchange.at_once_bytes, planning.bucket_bytes):
            own = merged(planning, step_id, global_step, own)
        at_once = own is not None and fits_one_call(own, exchange.at_once_bytes, planning.bucket_bytes)
        ranges = None if own is None else by_range(own, None if at_once else planning.bucket_bytes)
        common = {"stage": global_step.stage, "limit_bytes": planning.bucket_bytes * 5 // 4, "exchange": exchange.name}
        label = f"{global_step.id}: {exchange.label}" + (f", round {number}" if exchange.rounds > 1 else "")
        step = planning.add(ReduceTask, step_id, label, ranges, [global_step.stage.name], at_once=at_once, **common)
        if tables is None or own is None or not step.is_committed:
            return None
        replaced = set(exchange.outputs) & set(exchange.inputs)
        tables = {table: () if table in replaced else files for table, files in {**tables, **own}.items()}
        tables |= {table: tables.get(table, ()) + files_with_rows([step], table) for table in exchange.outputs}
        if not tables.pop(OPEN, ()):
            return tables
    if exchange.rounds == 1:
        return tables
    raise DatapipeError(
        f"{name}: not finished after {exchange.rounds} rounds. This is a defect of datapipe or of a stage of yours: "
        "the exchange must stop asking for rounds."
    )


def files_with_rows(steps: Sequence[Step], kind: str) -> tuple[ExchangeFile, ...]:
    """The outputs of a kind that have rows."""
    return tuple(output for step in steps for output in step.outputs(kind, ExchangeFile) if output.rows)
