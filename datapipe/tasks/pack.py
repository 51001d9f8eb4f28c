"""The pack task: one hash range of a source's token rows becomes shards.

    rows of the range, sorted by hash ─▶ pools of documents ─▶ best fit, concat or buckets ─▶ rows of S in keyed order ─▶ shards

The sort by keyed hash is the global shuffle. Best fit leaves the rows of a pool sorted by length, so they are put in the
order of a keyed hash, as are the rows of each bucket; concat keeps the order of the documents. The rows of each bucket go to
shards of their own, named and marked with the length of their packed documents. Each stratum has tasks of its own, and its
shards are named and marked with its number. Memory: one range, about `target_bytes`, and a few MiB for every open shard.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from datapipe.columns import key_matrix
from datapipe.exchange.files import read_range
from datapipe.metrics import Packing, TaskMetrics
from datapipe.plan.outputs import Outputs, ShardFile
from datapipe.plan.work import PackTask
from datapipe.rng import mix64, seed_for
from datapipe.shards import schemas
from datapipe.shards.writer import BATCH_BYTES, ShardWriter, WrittenShard, shard_name, shard_schema
from datapipe.storage import Root
from datapipe.tokens.packing import PackedRows, assemble, count, pack


def run_pack(task: PackTask, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
    """Packs one range into shards below `folder`, named as they will be published."""
    metrics = TaskMetrics()
    with metrics.timed("read tokens") as work:
        rows = read_range(root, task.files, task.start, task.stop)
        if rows is None or rows.num_rows == 0:
            return {"shards": ()}, metrics
        work.bytes, work.documents = rows.nbytes, rows.num_rows
    writers = _Writers(task, root, folder)
    try:
        for number, (start, stop) in enumerate(_pools(task, rows)):
            _write_pool(task, rows.slice(start, stop - start), number, writers, metrics)
        with metrics.timed("write shards", num_docs=rows.num_rows):
            outputs = writers.finish()
    except BaseException:
        writers.abort()
        raise
    metrics.tokens = sum(packing.tokens for packing in metrics.packing.values())
    metrics.sequences = sum(packing.rows for packing in metrics.packing.values())
    return {"shards": outputs}, metrics


def _pools(task: PackTask, rows: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Document ranges that are packed together: `pool_documents` for best fit, else all of them."""
    size = task.pool_documents if task.method == "best_fit" else rows.num_rows
    for start in range(0, rows.num_rows, size):
        yield start, min(start + size, rows.num_rows)


def _write_pool(task: PackTask, pool: pa.RecordBatch, number: int, writers: _Writers, metrics: TaskMetrics) -> None:
    with metrics.timed("pack", pool.nbytes, pool.num_rows):
        lists = pool.column("tokens")
        # offsets: (num_docs + 1,) int64 into the flat ids of the pool
        offsets, flat = lists.offsets.to_numpy(), lists.values.to_numpy()
        lengths, keys = np.diff(offsets), key_matrix(pool.column("key"))
        packed = pack(lengths, task.sequence_length, task.method, task.min_piece)
        metrics.packing.setdefault(task.sequence_length, Packing()).add(count(packed, lengths, task.sequence_length))
    rows_per_batch = max(1, BATCH_BYTES // (task.sequence_length * flat.itemsize))
    for piece_length, order in _groups(task, packed, number):
        writer = writers.of(piece_length)
        for first in range(0, len(order), rows_per_batch):
            with metrics.timed("pack"):
                part = order[first : first + rows_per_batch]
                batch = assemble(packed, part, flat, offsets, keys, task.eos_id, task.sequence_length)
            with metrics.timed("write shards", batch.nbytes):
                writer.append(batch)


def _groups(task: PackTask, packed: PackedRows, number: int) -> Iterator[tuple[int | None, np.ndarray]]:
    """Rows of the same shards in the order they are written, with the length of their packed documents where it is one."""
    rows = np.arange(packed.num_rows, dtype=np.int64)
    if task.method == "concat":
        yield None, rows
    elif task.method == "best_fit":
        stratum = () if task.stratum is None else ("stratum", task.stratum)
        yield None, _keyed(rows, seed_for(task.seed, "pack", task.source, task.split, *stratum, task.start, number))
    else:
        bucket = packed.piece_length[packed.row_offsets[:-1]]  # (num_rows,) length of a row's packed documents
        for piece_length in np.unique(bucket)[::-1].tolist():
            seed = seed_for(task.seed, "pack", task.source, task.split, task.start, "pieces", piece_length)
            yield piece_length, _keyed(rows[bucket == piece_length], seed)


def _keyed(rows: np.ndarray, seed: int) -> np.ndarray:
    """Rows (n,) int64 in the order of a keyed hash."""
    return rows[np.argsort(mix64(mix64(rows.astype(np.uint64)) ^ np.uint64(seed)), kind="stable")]


class _Writers:
    """The shard writers of one task: one for each length of packed documents with `buckets`, else one."""

    def __init__(self, task: PackTask, root: Root, folder: str) -> None:
        self._task, self._root, self._folder = task, root, folder
        self._open: dict[int | None, ShardWriter] = {}

    def of(self, piece_length: int | None) -> ShardWriter:
        if piece_length not in self._open:
            task = self._task
            id_type = schemas.token_type(task.vocab_size)
            schema = shard_schema(
                id_type, task.sequence_length, task.tokenizer_fingerprint, task.source, piece_length, task.stratum
            )
            prefix = f"{self._folder}/{shard_name(task.split, task.bucket, piece_length, task.stratum)}"
            self._open[piece_length] = ShardWriter(self._root, prefix, task.format, schema, task.target_bytes)
        return self._open[piece_length]

    def finish(self) -> tuple[ShardFile, ...]:
        """Every shard, in the order in which the writers were opened."""
        return tuple(_output(shard, length) for length, writer in self._open.items() for shard in writer.finish())

    def abort(self) -> None:
        for writer in self._open.values():
            writer.abort()


def _output(shard: WrittenShard, piece_length: int | None) -> ShardFile:
    return ShardFile(
        path=shard.path,
        rows=shard.sequences,
        bytes=shard.bytes,
        checksum=shard.checksum,
        documents=shard.documents,
        tokens=shard.tokens,
        piece_length=piece_length,
    )
