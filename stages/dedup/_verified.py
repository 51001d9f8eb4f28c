"""Pairs of documents from bands, verified by signatures, and joined: the exchanges of `dedup.minhash`.

Only keys, hashes and what is needed travel: a band row is 24 bytes, a pair 40, and a signature goes once with its document and
once for each pair that it is the first of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import KEY_TYPE
from datapipe.stage import clusters
from datapipe.stage.tables import DROP_SCHEMA, SIZE_SCHEMA, Bucket, Exchange, is_new, key_hash

_HASH = pa.field("hash", pa.uint64(), nullable=False)
_KEY, _OTHER = pa.field("key", KEY_TYPE, nullable=False), pa.field("other", KEY_TYPE, nullable=False)
_RANK = pa.field("rank", pa.uint64(), nullable=False)

BANDS = pa.schema([_HASH, _KEY])
PAIRS = pa.schema([_HASH, _KEY, _OTHER])
"""Two documents that met; `key` is the lesser one."""
LIKENESS = pa.schema([_HASH, _KEY, pa.field("differing", pa.uint16(), nullable=False)])
"""How many permutations a document differs in from one that it is alike: sorted, the least is the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedPairs:
    """The tables and meetings.

    Attributes:
        num_perm: permutations of a signature; 0 where meetings are not verified.
        least: the similarity from which a pair counts, where it is verified.
        at_once_bytes: as `Exchange` has it, for the components.
    """

    num_perm: int
    least: float
    at_once_bytes: int | None

    @property
    def signatures(self) -> pa.Schema:
        """One row a document."""
        return pa.schema([_HASH, _KEY, _RANK, *self._signature])

    @property
    def halves(self) -> pa.Schema:
        """Pairs by their second document, with what is known of the first."""
        return pa.schema([_HASH, _KEY, _OTHER, _RANK, *self._signature])

    @property
    def _signature(self) -> list[pa.Field]:
        return [pa.field("signature", pa.binary(4 * self.num_perm), nullable=False)] if self.num_perm else []

    def emits(self) -> Mapping[str, pa.Schema]:
        return {"bands": BANDS, "signatures": self.signatures}

    def emit(
        self, keys: pa.Array, hashes: np.ndarray, documents: np.ndarray, signed: np.ndarray, ranks: np.ndarray
    ) -> Mapping[str, pa.RecordBatch]:
        """The rows of a batch.

        Args:
            keys: (num_docs,).
            hashes: (num_rows,) uint64, of bands.
            documents: (num_rows,) int64, the document of each band row.
            signed: (num_docs, num_perm) uint32.
            ranks: (num_docs,) uint64.
        """
        bands = [pa.array(hashes), keys.take(pa.array(documents))]
        there = np.unique(documents)
        own = keys.take(pa.array(there))
        known = [pa.array(key_hash(own)), own, pa.array(ranks[there])] + ([_binary(signed[there])] if self.num_perm else [])
        return {
            "bands": pa.RecordBatch.from_arrays(bands, schema=BANDS),
            "signatures": pa.RecordBatch.from_arrays(known, schema=self.signatures),
        }

    def exchanges(self, with_sizes: bool) -> Sequence[Exchange]:
        edges = {clusters.WIDE: clusters.EDGE_SCHEMA, "likeness": LIKENESS}
        found = [
            Exchange(name="match-bands", inputs=("bands",), outputs={"pairs": PAIRS}, neighbours=True),
            Exchange(name="fetch-signatures", inputs=("pairs", "signatures"), outputs={"halves": self.halves}),
            Exchange(name="compare", inputs=("halves", "signatures"), outputs=edges),
            clusters.components_exchange(self.at_once_bytes),
            Exchange(name="decide", inputs=(clusters.NARROW, "likeness"), outputs={"drops": DROP_SCHEMA}),
        ]
        sizes = Exchange(name="count-sizes", inputs=(clusters.NARROW,), outputs={"sizes": SIZE_SCHEMA})
        return [*found, sizes] if with_sizes else found

    def reduce(self, exchange: str, bucket: Bucket) -> Mapping[str, pa.RecordBatch]:
        match exchange:
            case "match-bands":
                return {"pairs": _pairs(bucket["bands"])}
            case "fetch-signatures":
                return {"halves": self._first(bucket["pairs"], bucket["signatures"])}
            case "compare":
                return self._second(bucket["halves"], bucket["signatures"])
            case "cluster":
                return clusters.reduce_components(bucket)
            case "decide":
                return {"drops": self._gather(_judged(bucket[clusters.NARROW]), bucket["likeness"])}
            case _:
                return {"sizes": clusters.size_rows(_judged(bucket[clusters.NARROW]).column("other"))}

    def _first(self, pairs: pa.RecordBatch, signatures: pa.RecordBatch) -> pa.RecordBatch:
        pairs = pairs.take(pa.array(_distinct(pairs, "key", "other")))
        at = pa.array(_found(pairs, signatures))
        seconds = pairs.column("other")
        arrays = [pa.array(key_hash(seconds)), seconds, pairs.column("key")]
        known = [signatures.column(name).take(at) for name in self.halves.names[3:]]
        return pa.RecordBatch.from_arrays([*arrays, *known], schema=self.halves)

    def _second(self, halves: pa.RecordBatch, signatures: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        halves = halves.take(pa.array(_distinct(halves, "key", "other")))
        at = _found(halves, signatures)
        differing = np.zeros(len(at), np.int64)
        if self.num_perm:
            differing = _differing(self._signed(halves), self._signed(signatures), at)
            alike = np.flatnonzero(np.round(1 - differing / self.num_perm, 6) >= self.least)
            halves, at, differing = halves.take(pa.array(alike)), at[alike], differing[alike]
        keys, others = halves.column("key"), halves.column("other")
        nodes = (columns.numbers(signatures.column("rank"))[at], *columns.key_halves(keys))
        rest = (columns.numbers(halves.column("rank")), *columns.key_halves(others))
        both = pa.concat_arrays([keys, others])
        likeness = [pa.array(key_hash(both)), both, pa.array(np.tile(differing.astype(np.uint16), 2))]
        return {
            clusters.WIDE: clusters.both_ways(nodes, rest),
            "likeness": pa.RecordBatch.from_arrays(likeness, schema=LIKENESS),
        }

    def _gather(self, narrow: pa.RecordBatch, likeness: pa.RecordBatch) -> pa.RecordBatch:
        best = likeness.take(pa.array(_distinct(likeness, "key")))
        differing = columns.numbers(best.column("differing"))[_found(narrow, best)]
        values = np.round(1 - differing / self.num_perm, 4) if self.num_perm else np.full(len(differing), np.nan)
        return clusters.drop_rows(narrow.column("key"), narrow.column("other"), values)

    def _signed(self, rows: pa.RecordBatch) -> np.ndarray:
        """(num_rows, num_perm) uint32."""
        column = rows.column("signature")
        data = column.buffers()[1]
        if data is None or not len(column):
            return np.zeros((0, self.num_perm), np.uint32)
        signed = np.frombuffer(data, np.uint32, len(column) * self.num_perm, column.offset * 4 * self.num_perm)
        return signed.reshape(-1, self.num_perm)


def _pairs(bands: pa.RecordBatch) -> pa.RecordBatch:
    """Each document of a bucket with the first one, and with the one before it; a document gives one row to a bucket."""
    firsts = clusters.first_of_group(columns.numbers(bands.column("hash")))
    rows = np.arange(len(firsts))
    rays, chained = np.flatnonzero(firsts != rows), np.flatnonzero(firsts < rows - 1)
    lesser, greater = np.concatenate([firsts[rays], chained - 1]), np.concatenate([rays, chained])
    found, others = (bands.column("key").take(pa.array(ends)) for ends in (lesser, greater))
    return pa.RecordBatch.from_arrays([pa.array(key_hash(found)), found, others], schema=PAIRS)


def _judged(narrow: pa.RecordBatch) -> pa.RecordBatch:
    """Of the edges to survivors those of this run's documents, each once."""
    rows = _distinct(narrow, "key")
    return narrow.take(pa.array(rows[is_new(narrow)[rows]]))


def _distinct(rows: pa.RecordBatch, *names: str) -> np.ndarray:
    """The first of sorted rows that agree in these key columns."""
    halves = [half for name in names for half in columns.key_halves(rows.column(name))]
    firsts = clusters.first_of_group(*halves)
    return np.flatnonzero(firsts == np.arange(len(firsts)))


def _found(rows: pa.RecordBatch, known: pa.RecordBatch) -> np.ndarray:
    """For each row the row of `known` that is of its document; both are sorted by (hash, key), and every document is known."""
    ends = [np.concatenate(halves) for halves in zip(*(columns.key_halves(one.column("key")) for one in (known, rows)))]
    order = np.lexsort((np.arange(len(ends[0])), *reversed(ends)))  # each document of `known` before the rows about it
    firsts = clusters.first_of_group(*(end[order] for end in ends))
    at = np.empty(len(order), np.int64)
    at[order] = order[firsts]
    numbers = at[known.num_rows :]
    assert not len(numbers) or numbers.max() < known.num_rows, "a document without a signature"
    return numbers


def _differing(one: np.ndarray, other: np.ndarray, at: np.ndarray) -> np.ndarray:
    """In how many permutations each row of `one` differs from row `at` of `other`: (num_rows,) int64."""
    found = np.empty(len(one), np.int64)
    for start in range(0, len(one), 4096):
        part = slice(start, start + 4096)
        found[part] = np.count_nonzero(one[part] != other[at[part]], axis=1)
    return found


def _binary(signed: np.ndarray) -> pa.Array:
    """(num_docs, num_perm) uint32 as a column."""
    width = 4 * signed.shape[1]
    return pa.Array.from_buffers(pa.binary(width), len(signed), [None, pa.py_buffer(np.ascontiguousarray(signed))])
