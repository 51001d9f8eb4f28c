"""Runs a global stage in memory as the engine does: exchanges in order, buckets by hash, rounds until the last."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.exchange.files import sorted_rows
from datapipe.stage import StageContext
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import FINAL_TABLES, OPEN, Exchange
from datapipe.steps.reduce import table_schemas


def batch_of(texts: Sequence[str], source: int = 1, first: int = 0, **extra: pa.Array) -> DocumentBatch:
    """Documents with keys (source, first), (source, first + 1), …"""
    keys = columns.make_keys(source, np.arange(first, first + len(texts), dtype=np.uint64))
    ids = pa.array([str(number) for number in range(len(texts))], pa.large_string())
    return DocumentBatch(pa.record_batch({"key": keys, "id": ids, "text": pa.array(texts, pa.large_string()), **extra}))


def row_of(key: bytes) -> int:
    """The row of a document in its file, which is the second half of its key."""
    return int.from_bytes(key[8:], "big")


def opened(stage: Global, name: str = "stage", seed: int = 1) -> Any:
    stage.open(StageContext(name=name, seed=seed))
    return stage


def reduce_all(
    stage: Global, batches: Sequence[DocumentBatch], num_buckets: int = 1, at_once: bool = True, chunk_rows: int = 0
) -> dict[str, pa.RecordBatch]:
    """The final tables of an opened stage, sorted.

    Args:
        num_buckets: ranges of hashes in each exchange.
        at_once: whether exchanges with `at_once_bytes` are reduced in one call.
        chunk_rows: most rows of a hash in one call of `reduce`; 0: all.
    """
    tables: dict[str, list[pa.RecordBatch]] = {name: [] for name in stage.emits()}
    for batch in batches:
        for name, rows in stage.emit(batch).items():
            tables[name].append(rows)
    return exchanged(stage, tables, num_buckets, at_once, chunk_rows)


def exchanged(
    stage: Global,
    tables: Mapping[str, Sequence[pa.RecordBatch]],
    num_buckets: int = 1,
    at_once: bool = True,
    chunk_rows: int = 0,
) -> dict[str, pa.RecordBatch]:
    """The final tables of emitted tables; options as for `reduce_all`."""
    schemas = table_schemas(stage)
    held = {name: list(rows) for name, rows in tables.items()}
    for exchange in stage.exchanges():
        for number in range(exchange.rounds):
            inputs = {name: sorted_rows(pa.Table.from_batches(held.get(name, []), schemas[name])) for name in exchange.inputs}
            is_last = at_once and exchange.at_once_bytes != 0
            calls = [inputs] if is_last else _buckets(inputs, num_buckets)
            if chunk_rows and not is_last and not exchange.in_slices:
                calls = [chunk for bucket in calls for chunk in _chunks(exchange, bucket, chunk_rows)]
            reduce = stage.reduce_at_once if is_last else stage.reduce
            if exchange.in_slices:
                reduced = _of_slices(stage, exchange, calls, chunk_rows)
            else:
                reduced = (reduce(exchange.name, bucket) for bucket in calls)
            for name in set(exchange.inputs) & set(exchange.outputs):
                held[name] = []
            held[OPEN] = []
            for tables_of_call in reduced:
                for name, rows in tables_of_call.items():
                    assert rows.schema.equals(exchange.outputs[name]), f"{exchange.name}: {name}"
                    held.setdefault(name, []).append(rows)
            if not sum(rows.num_rows for rows in held.pop(OPEN)):
                break
            assert number + 1 < exchange.rounds, f"{exchange.name}: not finished after {exchange.rounds} rounds"
    names = [name for name in FINAL_TABLES if name in schemas]
    return {name: sorted_rows(pa.Table.from_batches(held.get(name, []), schemas[name])) for name in names}


def _of_slices(
    stage: Global, exchange: Exchange, calls: Iterable[Mapping[str, pa.RecordBatch]], chunk_rows: int
) -> Iterator[Mapping[str, pa.RecordBatch]]:
    """As the engine hands out rows slice by slice: at most `chunk_rows` in each, or all."""
    (table,) = exchange.inputs
    for bucket in calls:
        rows = bucket[table]
        size = chunk_rows or max(1, rows.num_rows)
        slices = (rows.slice(start, size) for start in range(0, rows.num_rows, size))
        yield from stage.reduce_slices(exchange.name, slices)


def _buckets(inputs: Mapping[str, pa.RecordBatch], num_buckets: int) -> list[dict[str, pa.RecordBatch]]:
    borders = [(number << 64) // num_buckets for number in range(num_buckets)]
    buckets = []
    for number, start in enumerate(borders):
        bucket = {}
        for name, rows in inputs.items():
            hashes = columns.numbers(rows.column("hash"))
            low = int(np.searchsorted(hashes, np.uint64(start)))
            is_last = number + 1 == num_buckets
            high = len(hashes) if is_last else int(np.searchsorted(hashes, np.uint64(borders[number + 1])))
            bucket[name] = rows.slice(low, high - low)
        buckets.append(bucket)
    return buckets


def _chunks(exchange: Exchange, bucket: Mapping[str, pa.RecordBatch], chunk_rows: int) -> list[dict[str, pa.RecordBatch]]:
    """A bucket in chunks, as if every hash with more rows were a hot key. All other rows are one chunk."""
    hashes = {name: columns.numbers(rows.column("hash")) for name, rows in bucket.items()}
    counted = [np.unique(part, return_counts=True) for part in hashes.values()]
    hot_keys = np.unique(np.concatenate([values[count > chunk_rows] for values, count in counted]))
    chunks = [{name: rows.filter(pa.array(~np.isin(hashes[name], hot_keys))) for name, rows in bucket.items()}]
    for hot_key in hot_keys:
        ends = {name: np.searchsorted(part, hot_key + np.array([0, 1], np.uint64)) for name, part in hashes.items()}
        tables = {name: rows.slice(ends[name][0], ends[name][1] - ends[name][0]) for name, rows in bucket.items()}
        longest = max(tables, key=lambda name: tables[name].num_rows)
        rows = tables[longest]
        group = list(zip(*(rows.column(name).to_pylist() for name in exchange.group)))
        for start in range(0, rows.num_rows, chunk_rows):
            first = group.index(group[start])
            before = [first] * (first < start) + [start - 1] * (exchange.neighbours and first < start - 1)
            chunk = rows.take(pa.array([*before, *range(start, min(start + chunk_rows, rows.num_rows))]))
            chunks.append({**tables, longest: chunk})
    return chunks


def dropped(stage: Global, texts: Sequence[str], **options: Any) -> dict[int, int]:
    """Row of each dropped document -> row of its survivor."""
    rows = reduce_all(stage, [batch_of(texts)], **options)["drops"].to_pylist()
    return {row_of(row["key"]): row_of(row["survivor"]) for row in rows}
