"""The kinds of task of a global stage: rows meet by hash, and the verdicts are put in the order of the documents.

    tables ─▶ meet, one task a range of hashes ─▶ tables ─▶ meet ─▶ … ─▶ drops, cuts, sizes ─▶ gather, by key ─▶ verdicts

                                                       tables of too many sorted runs ─▶ merge, one task a range ─▶ of fewer

All stream: what a task holds is `limit_bytes` of rows and a run of each table that it writes.
"""

from __future__ import annotations

from time import perf_counter
from typing import cast

import numpy as np
import pyarrow as pa

from datapipe.columns import numbers
from datapipe.exchange.chunks import read_bucket, read_pieces
from datapipe.exchange.files import read_portion, sort_words
from datapipe.exchange.tables import TableWriters
from datapipe.metrics import TaskMetrics
from datapipe.plan.work import GatherTask, MergeTask, OutputRef, ReduceTask
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import FINAL_SCHEMAS, OPEN, OPEN_SCHEMA
from datapipe.storage import Root

_KEY_WORDS = 3  # of a final table: hash, and the two halves of the key


def run_reduce(task: ReduceTask, root: Root, folder: str) -> tuple[dict[str, tuple[OutputRef, ...]], TaskMetrics]:
    """One hash range of one round of an exchange."""
    stage, metrics = cast(Global, task.stage.stage), TaskMetrics()
    exchange = next(one for one in stage.exchanges() if one.name == task.exchange)
    schemas = table_schemas(stage)
    writers = TableWriters(root, folder, {name: schemas[name] for name in exchange.outputs})
    where = f"{task.stage.name}: {task.exchange}"
    if task.at_once:
        buckets = iter([read_bucket(root, task.tables, schemas, task.start, task.stop)])
        reduce = stage.reduce_at_once
    else:
        buckets = read_pieces(root, task.tables, schemas, exchange, task.start, task.stop, task.limit_bytes)
        reduce = stage.reduce
    while True:
        started = perf_counter()
        bucket = next(buckets, None)
        size = 0 if bucket is None else sum(rows.nbytes for rows in bucket.values())
        metrics.spent(f"{task.stage.name}: exchange", perf_counter() - started, size)
        if bucket is None:
            break
        started = perf_counter()
        found = reduce(task.exchange, bucket)
        metrics.spent(where, perf_counter() - started, size)
        started = perf_counter()
        written = writers.add(found, where)
        metrics.spent(f"{task.stage.name}: exchange", perf_counter() - started, written)
    started = perf_counter()
    outputs = writers.finish()
    metrics.spent(f"{task.stage.name}: exchange", perf_counter() - started)
    return outputs, metrics


def table_schemas(stage: Global) -> dict[str, pa.Schema]:
    """The schema of every table of a stage; the engine knows those of the final ones and of `open`."""
    schemas = dict(stage.emits())
    for exchange in stage.exchanges():
        schemas.update(exchange.outputs)
    return {**schemas, **{name: one for name, one in (*FINAL_SCHEMAS.items(), (OPEN, OPEN_SCHEMA)) if name in schemas}}


def run_merge(task: MergeTask, root: Root, folder: str) -> tuple[dict[str, tuple[OutputRef, ...]], TaskMetrics]:
    """A range of the rows of some files, as they are, in one sorted run: portion after portion, each behind the one before.

    Ranks of an earlier run's rows are written as they are read, without the bit that makes a document new. The file is one of
    this run, so nobody clears anything in it again, and rows of both kinds may be in it.
    """
    metrics, started = TaskMetrics(), perf_counter()
    schema = table_schemas(cast(Global, task.stage.stage))[task.table]
    writers = TableWriters(root, folder, {task.table: schema}, task.limit_bytes)
    where = f"{task.stage.name}: merge"
    at, end = (task.start,), (task.stop,)
    while at < end:
        rows, at = read_portion(root, task.files, at, end, task.limit_bytes)
        if rows is not None:
            metrics.spent(where, 0.0, writers.add({task.table: rows}, where))
    outputs = writers.finish()
    metrics.spent(where, perf_counter() - started)
    return outputs, metrics


def run_gather(task: GatherTask, root: Root, folder: str) -> tuple[dict[str, tuple[OutputRef, ...]], TaskMetrics]:
    """A range of verdicts by document: one drop a document, its cuts, and the sum of its sizes."""
    metrics, started = TaskMetrics(), perf_counter()
    writers = TableWriters(root, folder, {name: FINAL_SCHEMAS[name] for name in task.tables})
    for name, files in task.tables.items():
        at, end = (task.start,), (task.stop,)
        while at < end:
            rows, at = read_portion(root, files, at, end, task.limit_bytes, _KEY_WORDS)
            if rows is not None:
                rows = _of_one_document(name, rows)
                metrics.spent(f"{task.stage.name}: by document", 0.0, rows.nbytes)
                writers.add({name: rows}, task.stage.name)
    outputs = writers.finish()
    metrics.spent(f"{task.stage.name}: by document", perf_counter() - started)
    return outputs, metrics


def _of_one_document(name: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The first drop of each document, or one row with the sum of its sizes; all rows of other tables."""
    if name == "cuts":
        return rows
    words = sort_words(rows)[:_KEY_WORDS]
    is_first = np.ones(rows.num_rows, np.bool_)
    is_first[1:] = np.any([word[1:] != word[:-1] for word in words], axis=0)
    firsts = np.flatnonzero(is_first)
    kept = rows.take(pa.array(firsts))
    if name == "drops":
        return kept
    sums = np.add.reduceat(numbers(rows.column("size")), firsts)
    return kept.set_column(rows.schema.get_field_index("size"), rows.schema.field("size"), pa.array(sums))
