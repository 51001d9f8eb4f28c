"""The kinds of task of a global stage: rows are reduced by hash, and the decisions are sorted by document.

    tables ─▶ reduce, one task a hash range ─▶ tables ─▶ reduce ─▶ … ─▶ drops, cuts, sizes ─▶ gather, by key ─▶ decisions

Tables in too many sorted runs are merged first, one task a hash range. All tasks stream: they hold `limit_bytes` of rows, and a
run of each table that they write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pyarrow as pa

from datapipe.columns import is_first, numbers
from datapipe.exchange.chunks import read_bucket, read_chunks
from datapipe.exchange.files import RUN_BYTES, TableWriters, sort_words
from datapipe.exchange.ranges import read_slices
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import Outputs
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import FINAL_SCHEMAS, OPEN, OPEN_SCHEMA, Bucket
from datapipe.steps.contract.breaches import error_without_document
from datapipe.steps.contract.results import checked_tables
from datapipe.steps.work import GatherTask, MergeTask, ReduceTask
from datapipe.storage.root import Root

_KEY_WORDS = 3  # of a final table: hash, and the two halves of the key


def run_reduce(task: ReduceTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """One hash range of one round of an exchange."""
    stage, metrics = cast(Global, task.stage.stage), TaskMetrics()
    exchange = next(exchange for exchange in stage.exchanges() if exchange.name == task.exchange)
    schemas = table_schemas(stage)
    writers = TableWriters(root, folder, {name: schemas[name] for name in exchange.outputs}, RUN_BYTES // 2)  # beside a bucket
    name, moving = f"{task.stage.name}: {exchange.label}", f"{task.stage.name}: exchange"
    if task.at_once:
        buckets = iter([read_bucket(root, task.tables, schemas, task.start, task.stop)])
        reduce = stage.reduce_at_once
    else:
        buckets = read_chunks(root, task.tables, schemas, exchange, task.start, task.stop, task.limit_bytes)
        reduce = stage.reduce
    for bucket in metrics.timed_each(moving, buckets, lambda bucket: (_row_bytes(bucket), 0)):
        with metrics.timed(name, _row_bytes(bucket)):
            reduced = _reduced(task, reduce, bucket, writers.schemas)
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


def table_schemas(stage: Global) -> dict[str, pa.Schema]:
    """The schema of every table of a stage; the engine knows those of the final ones and of `open`."""
    schemas = dict(stage.emits())
    for exchange in stage.exchanges():
        schemas.update(exchange.outputs)
    known = {**FINAL_SCHEMAS, OPEN: OPEN_SCHEMA}
    return {name: known.get(name, schema) for name, schema in schemas.items()}


def run_merge(task: MergeTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """The rows of some files in one hash range, unchanged, as one sorted run a table that is written portion after portion.

    Ranks of reference rows lose the bit that marks new documents as they are read. The merged file belongs to this run, so no
    reader clears ranks in it again, and it may hold rows of both kinds.
    """
    metrics, schemas = TaskMetrics(), table_schemas(cast(Global, task.stage.stage))
    writers = TableWriters(root, folder, {table: schemas[table] for table in task.tables}, task.limit_bytes)
    name = f"{task.stage.name}: merge"
    with metrics.timed(name) as work:
        for table, files in task.tables.items():
            for rows in read_slices(root, files, (task.start,), (task.stop,), task.limit_bytes):
                work.bytes += writers.add({table: rows}, name)
        outputs = writers.finish()
    return outputs, metrics


def run_gather(task: GatherTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """The decisions of a range of documents: one drop a document, its cuts, and the sum of its sizes."""
    metrics = TaskMetrics()
    writers = TableWriters(root, folder, {name: FINAL_SCHEMAS[name] for name in task.tables})
    with metrics.timed(f"{task.stage.name}: decisions") as work:
        for name, files in task.tables.items():
            for rows in read_slices(root, files, (task.start,), (task.stop,), task.limit_bytes, _KEY_WORDS):
                work.bytes += writers.add({name: _of_each_document(name, rows)}, task.stage.name)
        outputs = writers.finish()
    return outputs, metrics


def _of_each_document(table: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The first drop of each document, or one row with the sum of its sizes; all rows of `cuts`."""
    if table == "cuts":
        return rows
    firsts = np.flatnonzero(is_first(*sort_words(rows, _KEY_WORDS)))
    kept = rows.take(pa.array(firsts))
    if table == "drops":
        return kept
    sums = np.add.reduceat(numbers(rows.column("size")), firsts)
    return kept.set_column(rows.schema.get_field_index("size"), rows.schema.field("size"), pa.array(sums))
