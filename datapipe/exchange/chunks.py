"""The rows of an exchange in the portions that a stage gets: buckets of a bounded size, and hot keys in chunks. Streaming.

    tables + a hash range ─▶ whole hashes, as many as fit ─▶ whole hashes ─▶ … a hash whose rows do not fit:
                                                              its largest table in chunks, each with all rows of the others

All tables together hold `limit_bytes`, shared in proportion to their sizes, whatever the range holds. Where a group of rows
spans several chunks, each of them begins with the group's first row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from datapipe.exchange.files import Bound, num_words, position, read_portion, read_rows, sort_words
from datapipe.plan.outputs import ExchangeFile
from datapipe.plan.work import Tables
from datapipe.stage.tables import Bucket, Exchange
from datapipe.storage import Root

LEAST_BYTES = 16 << 10
"""A table may always hold so much, so that a small table beside a large one is not read row by row."""


def read_bucket(root: Root, tables: Tables, schemas: Mapping[str, pa.Schema], start: int, stop: int) -> Bucket:
    """All rows of a range at once, every table sorted."""
    read = {name: read_rows(root, files, (start,), (stop,)) for name, files in tables.items()}
    return {name: _empty(schemas[name]) if rows is None else rows for name, rows in read.items()}


def read_chunks(
    root: Root,
    tables: Tables,
    schemas: Mapping[str, pa.Schema],
    exchange: Exchange,
    start: int,
    stop: int,
    limit_bytes: int,
) -> Iterator[Bucket]:
    """The rows of a range in buckets of about `limit_bytes`; `global_stage.Global` says how hot keys are cut.

    Args:
        schemas: of every table.
        start, stop: hashes.
    """
    limits = _limits(tables, limit_bytes)
    reached, end = (start,), (stop,)
    while reached < end:
        portions = {name: read_portion(root, files, reached, end, limits[name]) for name, files in tables.items()}
        complete = min((bound for _, bound in portions.values()), default=end)
        if complete < end and complete[0] == reached[0]:  # not one hash is complete
            after = (reached[0] + 1,)
            yield from _hot_key(root, tables, schemas, exchange, reached, after, limits)
            reached = after
            continue
        reached = complete[:1]
        bucket = {name: _before(rows, reached, schemas[name]) for name, (rows, _) in portions.items()}
        del portions
        if any(rows.num_rows for rows in bucket.values()):
            yield bucket


def _hot_key(
    root: Root,
    tables: Tables,
    schemas: Mapping[str, pa.Schema],
    exchange: Exchange,
    start: Bound,
    stop: Bound,
    limits: Mapping[str, int],
) -> Iterator[Bucket]:
    """The rows of one hash: chunks of the table that has most of them, each with all rows of the others."""
    sizes = {name: _size(root, files, start, stop, limits[name]) for name, files in tables.items()}
    largest = max(sizes, key=lambda name: (sizes[name], name))
    others = {name: read_rows(root, files, start, stop) for name, files in tables.items() if name != largest}
    others = {name: _empty(schemas[name]) if rows is None else rows for name, rows in others.items()}
    num_group = num_words(pa.schema([schemas[largest].field(name) for name in exchange.group]))
    head: pa.RecordBatch | None = None
    last: pa.RecordBatch | None = None
    while start < stop:
        rows, start = read_portion(root, tables[largest], start, stop, limits[largest])
        if rows is None:
            continue
        chunk, next_head = rows, rows.slice(_group_start(rows, num_group), 1)
        if head is not None and last is not None and _same_group(head, rows, num_group):
            before = [head, last] if exchange.neighbours and not last.equals(head) else [head]
            chunk = pa.Table.from_batches([*before, rows]).combine_chunks().to_batches()[0]
            if _same_group(head, next_head, num_group):
                next_head = head
        head, last = next_head, rows.slice(rows.num_rows - 1)
        yield {**others, largest: chunk}


def _size(root: Root, files: Sequence[ExchangeFile], start: Bound, stop: Bound, limit_bytes: int) -> int:
    """Bytes of the rows of a range in memory; one portion is held at a time."""
    total = 0
    while start < stop:
        rows, start = read_portion(root, files, start, stop, limit_bytes)
        total += 0 if rows is None else rows.nbytes
    return total


def _limits(tables: Tables, limit_bytes: int) -> dict[str, int]:
    """The bytes that each table may hold: its share of the limit."""
    row_bytes = {name: sum(file.row_bytes for file in files) for name, files in tables.items()}
    total = max(1, sum(row_bytes.values()))
    return {name: max(LEAST_BYTES, limit_bytes * own_bytes // total) for name, own_bytes in row_bytes.items()}


def _group_start(rows: pa.RecordBatch, num_group: int) -> int:
    """The first row of the last row's group."""
    words = sort_words(rows)[:num_group]
    return position(words, tuple(int(word[-1]) for word in words))


def _same_group(rows: pa.RecordBatch, others: pa.RecordBatch, num_group: int) -> bool:
    """Whether the first rows of both are of one group."""
    pairs = zip(sort_words(rows.slice(0, 1))[:num_group], sort_words(others.slice(0, 1))[:num_group])
    return all(np.array_equal(word, other) for word, other in pairs)


def _before(rows: pa.RecordBatch | None, bound: Bound, schema: pa.Schema) -> pa.RecordBatch:
    return _empty(schema) if rows is None else rows.slice(0, position(sort_words(rows, len(bound)), bound))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
