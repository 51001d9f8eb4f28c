"""The rows of an exchange in the portions that a stage gets: whole hashes in slices of a bounded size, and hot keys in chunks.

    tables + a hash range ─▶ whole hashes, as many as fit ─▶ slices ─▶ … a hash whose rows do not fit:
                                                              its largest table in chunks, each with all rows of the others

Of an exchange that is a join (`Exchange.old_beside`), rows of this run are read first, and then the
reference rows with their hashes: most rows of a large index are never held.

All tables together hold `limit_bytes`, shared in proportion to their sizes. A stage gets a slice of
that at once: it needs several times as much. Where a group of rows spans several chunks, each of
them begins with the group's first row."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from datapipe.exchange.files import Bound, num_words, sort_words, sorted_rows
from datapipe.exchange.ranges import Parts, before, in_slices, position, read_portion, read_rows, read_slices, words_at
from datapipe.records.outputs import ExchangeFile, Tables
from datapipe.stage.tables import Bucket, Exchange
from datapipe.storage.root import Root

LEAST_BYTES = 16 << 10
"""A table may always hold so much: a small table beside a large one is not read row by row."""

HOT_BYTES = 64 << 20
"""A hash of more rows than that is a hot key, even where the task may hold more."""


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
    """The rows of a range of hashes in buckets of about `limit_bytes`; `global_stage.Global` describes how hot keys are cut."""
    row_bytes = {name: sum(file.row_bytes for file in files) for name, files in tables.items()}
    total = max(1, sum(row_bytes.values()))
    limits = {name: max(LEAST_BYTES, limit_bytes * own_bytes // total) for name, own_bytes in row_bytes.items()}
    reached, end = (start,), (stop,)
    while reached < end:
        portions = _portions(root, tables, exchange, reached, end, limits)
        complete = min((bound for _, bound in portions.values()), default=end)
        if complete < end and complete[0] == reached[0]:  # not one hash is complete
            after = (reached[0] + 1,)
            del portions
            yield from _hot_key(root, tables, schemas, exchange, reached, after, limits)
            reached = after
            continue
        reached = complete[:1]
        whole = {name: before(parts, reached) for name, (parts, _) in portions.items()}
        del portions
        for spans in in_slices(whole, 1):
            yield from _slice(spans, schemas, exchange, min(limit_bytes, HOT_BYTES))


def _portions(
    root: Root, tables: Tables, exchange: Exchange, start: Bound, stop: Bound, limits: Mapping[str, int]
) -> dict[str, tuple[Parts, Bound]]:
    """The first rows of [start, stop) of each table, and the bound where they end."""
    new, old = (_of_kind(tables, is_reference=is_reference) for is_reference in (False, True))
    if not exchange.old_beside or not any(old.values()):
        return {name: read_portion(root, files, start, stop, limits[name]) for name, files in tables.items()}
    halves = {name: max(LEAST_BYTES, limit // 2) for name, limit in limits.items()}
    portions = {name: read_portion(root, files, start, stop, halves[name]) for name, files in new.items()}
    stop = min(bound for _, bound in portions.values())
    hashes = [sort_words(part, 1)[0] for name in exchange.old_beside for part in before(portions[name][0], stop)]
    wanted = np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))
    for name, files in old.items():
        parts, bound = portions[name]
        further, reached = read_portion(root, files, start, stop, halves[name], wanted=wanted)
        portions[name] = [*parts, *further], min(bound, reached)
    return portions


def _of_kind(tables: Tables, *, is_reference: bool) -> Tables:
    return {name: tuple(file for file in files if file.is_reference == is_reference) for name, files in tables.items()}


def _slice(
    spans: Mapping[str, Parts], schemas: Mapping[str, pa.Schema], exchange: Exchange, limit_bytes: int
) -> Iterator[Bucket]:
    """The rows of one slice, which are all of their hashes; in chunks where it is one hash of more than `limit_bytes`."""
    sizes = {name: sum(span.nbytes for span in parts) for name, parts in spans.items()}
    hashes = {hash for parts in spans.values() for span in parts for hash in (words_at(span, 0, 1), words_at(span, -1, 1))}
    if sum(sizes.values()) <= limit_bytes or len(hashes) > 1:
        yield {name: _sorted(parts, schemas[name]) for name, parts in spans.items()}
        return
    largest = max(sizes, key=lambda name: (sizes[name], name))
    others = {name: _sorted(parts, schemas[name]) for name, parts in spans.items() if name != largest}
    slices = (_sorted(parts[largest], schemas[largest]) for parts in in_slices({largest: spans[largest]}))
    for chunk in _with_heads(slices, exchange, schemas[largest]):
        yield {**others, largest: chunk}


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
    new = _of_kind(tables, is_reference=False)
    if exchange.old_beside and not any(_size(root, new[name], start, stop, limits[name]) for name in exchange.old_beside):
        tables = new
    sizes = {name: _size(root, files, start, stop, limits[name]) for name, files in tables.items()}
    largest = max(sizes, key=lambda name: (sizes[name], name))
    others = {name: read_rows(root, files, start, stop) for name, files in tables.items() if name != largest}
    others = {name: _empty(schemas[name]) if rows is None else rows for name, rows in others.items()}
    slices = read_slices(root, tables[largest], start, stop, limits[largest])
    for chunk in _with_heads(slices, exchange, schemas[largest]):
        yield {**others, largest: chunk}


def _with_heads(slices: Iterable[pa.RecordBatch], exchange: Exchange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The sorted rows of one hash as chunks: a slice that begins inside a group has the group's first row before it."""
    num_group = num_words(pa.schema([schema.field(name) for name in exchange.group]))
    before: tuple[pa.RecordBatch, pa.RecordBatch] | None = None  # the first row of the last group, and the last row
    for rows in slices:
        chunk, group = rows, words_at(rows, -1, num_group)
        head = rows.slice(position(rows, group), 1)
        if before is not None and words_at(before[0], 0, num_group) == words_at(rows, 0, num_group):
            first, last = before
            heads = [first, last] if exchange.neighbours and not last.equals(first) else [first]
            chunk = pa.Table.from_batches([*heads, rows]).combine_chunks().to_batches()[0]
            if words_at(first, 0, num_group) == group:
                head = first
        before = head, rows.slice(rows.num_rows - 1)
        yield chunk


def _size(root: Root, files: Sequence[ExchangeFile], start: Bound, stop: Bound, limit_bytes: int) -> int:
    total = 0
    while start < stop:
        parts, start = read_portion(root, files, start, stop, limit_bytes)
        total += sum(part.nbytes for part in parts)
    return total


def _sorted(parts: Parts, schema: pa.Schema) -> pa.RecordBatch:
    return sorted_rows(pa.Table.from_batches(parts, schema))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
