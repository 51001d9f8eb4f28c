"""The rows of an exchange as a stage is given them: buckets of a bounded size, and giant groups in pieces. Streaming.

    tables + a range of hashes ─▶ whole hashes, as many as fit ─▶ whole hashes ─▶ … one hash that does not fit:
                                                                    its largest table piece by piece, the others whole

What is held is the limit, for all tables together in proportion to their sizes, whatever the range holds. A group that goes
through several pieces begins each of them with its first row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from datapipe.exchange.files import Bound, num_words, position, read_portion, read_rows, sort_words
from datapipe.plan.work import OutputRef, Tables
from datapipe.stage.tables import Bucket, Exchange
from datapipe.storage import Root

LEAST_BYTES = 16 << 10
"""What a table may always hold, so that a small one beside a large one is not read row by row."""


def read_bucket(root: Root, tables: Tables, schemas: Mapping[str, pa.Schema], start: int, stop: int) -> Bucket:
    """All rows of a range at once, every table sorted."""
    found = {name: read_rows(root, files, (start,), (stop,)) for name, files in tables.items()}
    return {name: _empty(schemas[name]) if rows is None else rows for name, rows in found.items()}


def read_pieces(
    root: Root,
    tables: Tables,
    schemas: Mapping[str, pa.Schema],
    exchange: Exchange,
    start: int,
    stop: int,
    limit_bytes: int,
) -> Iterator[Bucket]:
    """The rows of a range in buckets that hold about `limit_bytes`; see `global_stage.Global` for what giant groups become.

    Args:
        schemas: of every table.
    """
    limits = _limits(tables, limit_bytes)
    at, end = (start,), (stop,)
    while at < end:
        portions = {name: read_portion(root, files, at, end, limits[name]) for name, files in tables.items()}
        reached = min((where for _, where in portions.values()), default=end)
        if reached < end and reached[0] == at[0]:  # not one hash is complete
            after = (at[0] + 1,)
            yield from _hot_key(root, tables, schemas, exchange, at, after, limits)
            at = after
            continue
        at = reached[:1]
        bucket = {name: _before(rows, at, schemas[name]) for name, (rows, _) in portions.items()}
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
    """The rows of one hash: pieces of the table that has most of them, each with all rows of the others."""
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
        piece, next_head = rows, rows.slice(_group_start(rows, num_group), 1)
        if head is not None and last is not None and _same_group(head, rows, num_group):
            before = [head, last] if exchange.neighbours and not last.equals(head) else [head]
            piece = pa.Table.from_batches([*before, rows]).combine_chunks().to_batches()[0]
            if _same_group(head, next_head, num_group):
                next_head = head
        head, last = next_head, rows.slice(rows.num_rows - 1)
        yield {**others, largest: piece}


def _size(root: Root, files: Sequence[OutputRef], start: Bound, stop: Bound, limit_bytes: int) -> int:
    """Bytes of the rows of a range, read as far as there are any; nothing is held but a portion."""
    total = 0
    while start < stop:
        rows, start = read_portion(root, files, start, stop, limit_bytes)
        total += 0 if rows is None else rows.nbytes
    return total


def _limits(tables: Tables, limit_bytes: int) -> dict[str, int]:
    """What each table may hold: its share of the limit."""
    weights = {name: sum(output.weight for output in files) for name, files in tables.items()}
    total = max(1, sum(weights.values()))
    return {name: max(LEAST_BYTES, limit_bytes * weight // total) for name, weight in weights.items()}


def _group_start(rows: pa.RecordBatch, num_group: int) -> int:
    """Where the group of the last row begins."""
    words = sort_words(rows)[:num_group]
    return position(words, tuple(int(word[-1]) for word in words))


def _same_group(one: pa.RecordBatch, other: pa.RecordBatch, num_group: int) -> bool:
    """Whether the first rows of both are of one group."""
    pairs = zip(sort_words(one.slice(0, 1))[:num_group], sort_words(other.slice(0, 1))[:num_group])
    return all(np.array_equal(a, b) for a, b in pairs)


def _before(rows: pa.RecordBatch | None, bound: Bound, schema: pa.Schema) -> pa.RecordBatch:
    return _empty(schema) if rows is None else rows.slice(0, position(sort_words(rows, len(bound)), bound))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
