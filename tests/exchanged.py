"""A global stage without the engine: its exchanges over batches in memory, met in so many buckets and pieces.

    Exchanged(stage, batches).cuts  ->  {key: spans that go, united}

What the engine promises (`datapipe.exchanges`, `stage.Global`) is done here in the plainest way, giant groups cut into pieces
of `piece_rows` included, so that a stage can be held against brute force without a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import KEY_TYPE
from datapipe.documents import DocumentBatch
from datapipe.exchanges import FINAL_SCHEMAS, Bucket, Exchange
from datapipe.stage import Global

Tables = dict[str, list[pa.RecordBatch]]


def batch_of(texts: Sequence[str], first: int = 0, file: int = 1) -> DocumentBatch:
    """Documents whose keys are their places, from `first` on, in one file."""
    keys = columns.make_keys(file, np.arange(first, first + len(texts), dtype=np.uint64))
    ids = pa.array([str(number) for number in range(len(texts))], pa.large_string())
    return DocumentBatch(pa.record_batch({"key": keys, "id": ids, "text": pa.array(texts, pa.large_string())}))


class Exchanged:
    """All tables of a stage once everything has met.

    Args:
        stage: opened.
        batches: the corpus.
        num_buckets: ranges of hashes that meet apart.
        piece_rows: most rows of one hash that meet at once; 0: all.
    """

    def __init__(self, stage: Global, batches: Sequence[DocumentBatch], num_buckets: int = 1, piece_rows: int = 0) -> None:
        self.stage, self.num_buckets, self.piece_rows = stage, num_buckets, piece_rows
        self.schemas = {**stage.emits(), **FINAL_SCHEMAS}
        self.rows: Tables = {name: [] for name in self.schemas}
        for batch in batches:
            self._add(stage.emit(batch))
        for exchange in stage.exchanges():
            self._exchange(exchange)

    def table(self, name: str) -> pa.RecordBatch:
        return _sorted(pa.Table.from_batches(self.rows[name], self.schemas[name]))

    @property
    def cuts(self) -> dict[bytes, list[tuple[int, int]]]:
        """Spans that go, by key, united and in order."""
        found: dict[bytes, list[tuple[int, int]]] = {}
        rows = [(row["key"], row["start"], row["stop"]) for row in self.table("cuts").to_pylist()]
        for key, start, stop in sorted(rows):
            spans = found.setdefault(key, [])
            if spans and start <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(stop, spans[-1][1]))
            else:
                spans.append((start, stop))
        return found

    def kept(self, batch: DocumentBatch) -> list[list[str]]:
        """What is left of each text of a batch, between the seams."""
        cuts, left = self.cuts, []
        for key, text in zip(batch.keys.to_pylist(), batch.texts.to_pylist()):
            data, at, parts = text.encode(), 0, []
            for start, stop in cuts.get(key, []):
                parts.append(data[at:start].decode())
                at = stop
            left.append([part for part in [*parts, data[at:].decode()] if part])
        return left

    def _add(self, tables: Mapping[str, pa.RecordBatch]) -> None:
        for name, rows in tables.items():
            assert rows.schema == self.schemas[name], name
            self.rows[name].append(rows)

    def _exchange(self, exchange: Exchange) -> None:
        self.schemas |= exchange.outputs
        self.rows |= {name: self.rows.get(name, []) for name in exchange.outputs}
        tables = {name: self.table(name) for name in exchange.inputs}
        whole = max(1, sum(rows.nbytes for rows in tables.values()))
        if exchange.at_once_bytes is None or 0 < whole <= exchange.at_once_bytes:
            self._add(self.stage.meet_at_once(exchange.name, tables))
            return
        bounds = [number * 2**64 // self.num_buckets for number in range(self.num_buckets + 1)]
        for start, stop in zip(bounds, bounds[1:]):
            for bucket in self._pieces(exchange, {name: _range(rows, start, stop) for name, rows in tables.items()}):
                self._add(self.stage.meet(exchange.name, bucket))

    def _pieces(self, exchange: Exchange, bucket: Bucket) -> list[Bucket]:
        if not self.piece_rows:
            return [bucket]
        hashes = np.unique(np.concatenate([columns.numbers(rows.column("hash")) for rows in bucket.values()]))
        found = []
        for one in hashes.tolist():
            tables = {name: _range(rows, one, one + 1) for name, rows in bucket.items()}
            longest = max(tables, key=lambda name: tables[name].num_rows)
            rows = tables[longest]
            group = [rows.column(name).to_pylist() for name in exchange.group]
            for start in range(0, rows.num_rows, self.piece_rows):
                piece, first = rows.slice(start, self.piece_rows), start
                while first and all(column[first - 1] == column[start] for column in group):
                    first -= 1
                if first < start:
                    piece = pa.Table.from_batches([rows.slice(first, 1), piece]).combine_chunks().to_batches()[0]
                found.append({**tables, longest: piece})
        return found


def _range(rows: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
    hashes = columns.numbers(rows.column("hash"))
    low = int(np.searchsorted(hashes, np.uint64(start)))
    high = len(hashes) if stop >= 2**64 else int(np.searchsorted(hashes, np.uint64(stop)))
    return rows.slice(low, high - low)


def _sorted(table: pa.Table) -> pa.RecordBatch:
    """By all columns of integers and keys, from left to right."""
    table = table.combine_chunks()
    if not table.num_rows:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    order: list[np.ndarray] = []
    for field in table.schema:
        if pa.types.is_integer(field.type):
            order.append(columns.numbers(table.column(field.name)))
        elif field.type == KEY_TYPE:
            order.extend(columns.key_halves(table.column(field.name)))
    return table.take(pa.array(np.lexsort(order[::-1]))).combine_chunks().to_batches()[0]
