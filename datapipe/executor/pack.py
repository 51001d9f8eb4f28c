"""The pack task: one hash range of a source's token rows becomes shards.

    rows of the range, sorted by hash ─▶ pools of documents ─▶ best fit (or concat) ─▶ rows of S in keyed order ─▶ shards

The sort by keyed hash is the global shuffle. Best fit leaves the rows of a pool sorted by length, so they are put in the
order of a keyed hash; concat keeps the order of the documents. Memory: one bucket, about `target_bytes`, and one pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import numpy as np
import pyarrow as pa

from datapipe.columns import key_matrix
from datapipe.executor.exchange import read_range
from datapipe.metrics import TaskMetrics
from datapipe.plan.tasks import OutputRef, PackTask
from datapipe.rng import mix64, seed_for
from datapipe.shards import schemas
from datapipe.shards.writer import ShardWriter, shard_schema
from datapipe.storage import Root
from datapipe.tokens.packing import assemble, pack


def run_pack(task: PackTask, root: Root, folder: str) -> tuple[dict[str, tuple[OutputRef, ...]], TaskMetrics]:
    """Packs one bucket into shards below `folder`, named as they will be published."""
    metrics, started = TaskMetrics(), perf_counter()
    bucket = read_range(root, task.files, task.start, task.stop)
    if bucket is None or bucket.num_rows == 0:
        return {"shards": ()}, metrics
    metrics.spent("read tokens", perf_counter() - started, bucket.nbytes, bucket.num_rows)
    id_type = schemas.token_type(task.vocab_size)
    schema = shard_schema(id_type, task.sequence_length, task.tokenizer_fingerprint, task.source)
    prefix = "part" if task.split == "train" else "validation"
    writer = ShardWriter(root, f"{folder}/{prefix}-{task.bucket:05d}", task.format, schema, task.target_bytes)
    try:
        for number, (start, stop) in enumerate(_pools(task, bucket)):
            pool, started = bucket.slice(start, stop - start), perf_counter()
            rows = _pack_pool(task, pool, number)
            metrics.spent("pack", perf_counter() - started, pool.nbytes, pool.num_rows)
            started = perf_counter()
            writer.append(rows)
            metrics.spent("write shards", perf_counter() - started, rows.nbytes, pool.num_rows)
        started = perf_counter()
        shards = writer.finish()
        metrics.spent("write shards", perf_counter() - started)
    except BaseException:
        writer.abort()
        raise
    metrics.tokens = sum(shard.tokens for shard in shards)
    metrics.sequences = sum(shard.sequences for shard in shards)
    outputs = tuple(
        OutputRef(
            path=shard.path,
            rows=shard.sequences,
            bytes=shard.bytes,
            weight=shard.tokens,
            checksum=shard.checksum,
            facts={"documents": shard.documents, "tokens": shard.tokens},
        )
        for shard in shards
    )
    return {"shards": outputs}, metrics


def _pools(task: PackTask, bucket: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Document ranges that are packed together: `pool_documents` for best fit, the whole bucket for concat."""
    size = task.pool_documents if task.method == "best_fit" else bucket.num_rows
    for start in range(0, bucket.num_rows, size):
        yield start, min(start + size, bucket.num_rows)


def _pack_pool(task: PackTask, pool: pa.RecordBatch, number: int) -> pa.RecordBatch:
    lists = pool.column("tokens")
    # offsets: (num_docs + 1,) int64 into the flat ids of the pool
    offsets = lists.offsets.to_numpy()
    flat = lists.values.to_numpy()
    packed = pack(np.diff(offsets), task.sequence_length, task.method)
    num_rows = len(packed.row_offsets) - 1
    order = np.arange(num_rows, dtype=np.int64)
    if task.method == "best_fit":
        seed = seed_for(task.seed, "pack", task.source, task.split, task.start, number)
        order = np.argsort(mix64(mix64(order.astype(np.uint64)) ^ np.uint64(seed)), kind="stable")
    return assemble(packed, order, flat, offsets, key_matrix(pool.column("key")), task.eos_id, task.sequence_length)
