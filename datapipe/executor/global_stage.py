"""The two tasks of a global stage: meet by hash, and name the survivors.

emitted rows of every source ─▶ reduce, one task a bucket ─▶ edges ─▶ cluster ─▶ verdicts, and sizes of clusters, by key
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import cast

import pyarrow as pa

from datapipe.clusters import cluster_sizes, cluster_verdicts
from datapipe.columns import KEY_TYPE, key_halves
from datapipe.executor.exchange import ExchangeWriter, read_range
from datapipe.executor.partitions import TableWriter, read_table
from datapipe.metrics import TaskMetrics
from datapipe.plan.tasks import ClusterTask, OutputRef, ReduceTask
from datapipe.stage import EDGE_SCHEMA, VERDICT_SCHEMA, Global
from datapipe.storage import Root

_VERDICT_ROWS = pa.schema([pa.field("hash", pa.uint64(), nullable=False), *VERDICT_SCHEMA])
_SIZE_ROWS = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("size", pa.int64(), nullable=False),
    ]
)


def run_reduce(task: ReduceTask, root: Root, folder: str) -> tuple[dict[str, tuple[OutputRef, ...]], TaskMetrics]:
    """Meets all rows of a hash range; memory is one bucket."""
    metrics, started = TaskMetrics(), perf_counter()
    bucket = read_range(root, task.files, task.start, task.stop)
    size = bucket.nbytes if bucket is not None else 0
    metrics.spent(f"{task.stage.name}: exchange", perf_counter() - started, size)
    started = perf_counter()
    edges = TableWriter(root, f"{folder}/edges.arrow", EDGE_SCHEMA)
    if bucket is not None and bucket.num_rows:
        edges.add(cast(Global, task.stage.stage).reduce(bucket))
    written = edges.finish()
    metrics.spent(f"{task.stage.name}: meet", perf_counter() - started, size)
    return {"edges": (written,)}, metrics


def run_cluster(task: ClusterTask, root: Root, folder: str) -> tuple[dict[str, tuple[OutputRef, ...]], TaskMetrics]:
    """Joins edges into clusters.

    Holds all edges of its files: 56 bytes each, and as many as there are near duplicates among the documents, not documents.
    """
    metrics, started = TaskMetrics(), perf_counter()
    batches = [batch for output in task.files for batch in read_table(root, output)]
    edges = pa.Table.from_batches(batches, EDGE_SCHEMA).combine_chunks()
    verdicts = cluster_verdicts(edges)
    written = _write(root, f"{folder}/verdicts.exchange", _VERDICT_ROWS, verdicts.columns)
    survivors, sizes = cluster_sizes(verdicts)
    sized = _write(root, f"{folder}/sizes.exchange", _SIZE_ROWS, [survivors, pa.array(sizes)])
    metrics.spent(f"{task.step.rpartition('/')[0]}: cluster", perf_counter() - started, edges.nbytes, 0)
    return {"verdicts": (written,), "sizes": (sized,)}, metrics


def _write(root: Root, path: str, schema: pa.Schema, arrays: Sequence[pa.Array]) -> OutputRef:
    """Writes rows whose first column is a key, by the first half of it."""
    writer = ExchangeWriter(root, path, schema)
    writer.add(pa.record_batch([pa.array(key_halves(arrays[0])[0]), *arrays], schema=schema))
    return writer.finish()
