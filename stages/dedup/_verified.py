"""The exchanges of `dedup.minhash`: candidate pairs from bands, verified by signatures, joined to clusters.

Rows hold keys, hashes and what a step needs: a band row is 24 bytes, a pair 40. A signature is exchanged once with its
document, and once for each pair whose first document it belongs to. A pair that matches in several bands is compared once.

**Which pairs are compared.** In each bucket every document is paired with the document of least key and with the document
before it; never with all others. So a document that is unlike the center of this star is compared with another document in
each of its buckets. 100,000 copies in a bucket give 200,000 pairs. On adversarial corpora (families that drift, mixed by a
common template) up to 1.4 % of the documents that all pairs of every bucket would drop are kept; stars alone keep up to 4 %.
An order by bytes of the signature instead of the key did no better (`tests/stages/dedup/test_minhash.py`).

Two documents of earlier runs are never joined: a new document that is joined to one of them is dropped either way, and the
survivor that it names is one that it was compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe import columns
from datapipe.columns import KEY_TYPE
from datapipe.stage import clusters
from datapipe.stage.keep import KeepingOne
from datapipe.stage.tables import DROP_SCHEMA, SIZE_SCHEMA, Bucket, Exchange, is_new, key_hash, new_bit

_HASH = pa.field("hash", pa.uint64(), nullable=False)
_KEY, _OTHER = pa.field("key", KEY_TYPE, nullable=False), pa.field("other", KEY_TYPE, nullable=False)
_RANK = pa.field("rank", pa.uint64(), nullable=False)

BANDS = pa.schema([_HASH, _KEY])
PAIRS = pa.schema([_HASH, _KEY, _OTHER])
"""Two documents that match in a band; `key` is the lesser key."""
LIKENESS = pa.schema([_HASH, _KEY, pa.field("differing", pa.uint16(), nullable=False)])
"""In how many permutations a document differs from a similar document. Rows are sorted, so the least is the first."""


class VerifiedPairs(KeepingOne):
    """A stage that drops documents by pairs which match in a band and, by default, have similar signatures."""

    verify: Literal["signature", "none"] = Field(
        default="signature",
        description="signature: a pair that matches in a band counts if its signatures are similar enough. none: every match "
        "counts, and no similarity is measured.",
    )
    min_similarity: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="Estimated Jaccard similarity from which a pair counts. Default: the threshold, or without one "
        "(1 / bands)^(1 / rows), which is 0.719 for 14 bands of 8 rows.",
    )
    components_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Most bytes of edges that one task joins in memory, which takes about four times as much; more edges are "
        "joined by an exchange in rounds, with the same result. Default: half of execution.bucket_bytes. 0: always in rounds.",
    )

    by_key: ClassVar[tuple[str, ...]] = ("signatures",)
    apply_options = ("min_similarity", "components_bytes")

    def check_options(self) -> None:
        if self.verify == "none" and self.min_similarity is not None:
            raise ValueError(
                "min_similarity has no effect with `verify: none`, where every match counts: leave out one of them"
            )

    def banding(self) -> tuple[int, int]:
        """Bands and rows."""
        raise NotImplementedError

    def least_similarity(self) -> float:
        """The estimated similarity from which a pair counts."""
        raise NotImplementedError

    @property
    def _num_perm(self) -> int:
        """Permutations of a signature; 0 where pairs are not verified."""
        bands, rows = self.banding()
        return bands * rows if self.verify == "signature" else 0

    @property
    def signatures(self) -> pa.Schema:
        """Schema of the table with one row a document."""
        return pa.schema([_HASH, _KEY, _RANK, *self._signature])

    @property
    def halves(self) -> pa.Schema:
        """Schema of pairs that are exchanged by their second document, with rank and signature of the first."""
        return pa.schema([_HASH, _KEY, _OTHER, _RANK, *self._signature])

    @property
    def _signature(self) -> list[pa.Field]:
        return [pa.field("signature", pa.binary(4 * self._num_perm), nullable=False)] if self._num_perm else []

    def emits(self) -> Mapping[str, pa.Schema]:
        return {"bands": BANDS, "signatures": self.signatures}

    def rows_of(
        self, keys: pa.Array, hashes: np.ndarray, documents: np.ndarray, signed: np.ndarray, ranks: np.ndarray
    ) -> Mapping[str, pa.RecordBatch]:
        """The band rows and signatures of a batch.

        Args:
            keys: (num_docs,).
            hashes: (num_rows,) uint64, of the bands.
            documents: (num_rows,) int64, the document of each band row.
            signed: (num_docs, num_perm) uint32.
            ranks: (num_docs,) uint64.
        """
        bands = [pa.array(hashes), keys.take(pa.array(documents))]
        with_rows = np.unique(documents)
        own = keys.take(pa.array(with_rows))
        known = [pa.array(key_hash(own)), own, pa.array(ranks[with_rows])] + (
            [_binary(signed[with_rows])] if self._num_perm else []
        )
        return {
            "bands": pa.RecordBatch.from_arrays(bands, schema=BANDS),
            "signatures": pa.RecordBatch.from_arrays(known, schema=self.signatures),
        }

    def exchanges(self) -> Sequence[Exchange]:
        halves, edges = {"halves": self.halves}, {clusters.WIDE: clusters.EDGE_SCHEMA, "likeness": LIKENESS}
        exchanges = [
            Exchange(name="match-bands", inputs=("bands",), outputs={"pairs": PAIRS}, old_beside=("bands",), neighbours=True),
            Exchange(name="fetch-signatures", inputs=("pairs", "signatures"), outputs=halves, old_beside=("pairs",)),
            Exchange(name="compare", inputs=("halves", "signatures"), outputs=edges, old_beside=("halves",)),
            clusters.components_exchange(self.components_bytes),
            Exchange(name="decide", inputs=(clusters.NARROW, "likeness"), outputs={"drops": DROP_SCHEMA}),
        ]
        sizes = Exchange(name="count-sizes", inputs=(clusters.NARROW,), outputs={"sizes": SIZE_SCHEMA})
        return exchanges if self.size_column is None else [*exchanges, sizes]

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
                return {"drops": self._gather(_edges_of_this_run(bucket[clusters.NARROW]), bucket["likeness"])}
            case _:
                return {"sizes": clusters.size_rows(_edges_of_this_run(bucket[clusters.NARROW]).column("other"))}

    def reduce_at_once(self, exchange: str, tables: Bucket) -> Mapping[str, pa.RecordBatch]:
        return clusters.join_at_once(tables)

    def _first(self, pairs: pa.RecordBatch, signatures: pa.RecordBatch) -> pa.RecordBatch:
        pairs = pairs.take(pa.array(_distinct(pairs, "key", "other")))
        known_rows = pa.array(_rows_of_same_key(pairs, signatures))
        seconds = pairs.column("other")
        arrays = [pa.array(key_hash(seconds)), seconds, pairs.column("key")]
        known = [signatures.column(name).take(known_rows) for name in self.halves.names[3:]]
        return pa.RecordBatch.from_arrays([*arrays, *known], schema=self.halves)

    def _second(self, halves: pa.RecordBatch, signatures: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        halves = halves.take(pa.array(_distinct(halves, "key", "other")))
        known_rows = _rows_of_same_key(halves, signatures)
        ranks, other_ranks = columns.numbers(signatures.column("rank"))[known_rows], columns.numbers(halves.column("rank"))
        counts = np.maximum(ranks, other_ranks) >= new_bit(np.uint64)
        differing = np.zeros(len(known_rows), np.int64)
        if self._num_perm:
            differing = _differing(self._signed(halves), self._signed(signatures), known_rows)
            counts &= np.round(1 - differing / self._num_perm, 6) >= self.least_similarity()
        chosen = np.flatnonzero(counts)
        differing, halves = differing[chosen], halves.take(pa.array(chosen))
        keys, others = halves.column("key"), halves.column("other")
        nodes = (ranks[chosen], *columns.key_halves(keys))
        rest = (other_ranks[chosen], *columns.key_halves(others))
        both = pa.concat_arrays([keys, others])
        likeness = [pa.array(key_hash(both)), both, pa.array(np.tile(differing.astype(np.uint16), 2))]
        return {
            clusters.WIDE: clusters.both_ways(nodes, rest),
            "likeness": pa.RecordBatch.from_arrays(likeness, schema=LIKENESS),
        }

    def _gather(self, narrow: pa.RecordBatch, likeness: pa.RecordBatch) -> pa.RecordBatch:
        best = likeness.take(pa.array(_distinct(likeness, "key")))
        differing = columns.numbers(best.column("differing"))[_rows_of_same_key(narrow, best)]
        values = np.round(1 - differing / self._num_perm, 4) if self._num_perm else np.full(len(differing), np.nan)
        return clusters.drop_rows(narrow.column("key"), narrow.column("other"), values)

    def _signed(self, rows: pa.RecordBatch) -> np.ndarray:
        """The signatures of rows, (num_rows, num_perm) uint32."""
        column = rows.column("signature")
        data = column.buffers()[1]
        if data is None or not len(column):
            return np.zeros((0, self._num_perm), np.uint32)
        signed = np.frombuffer(data, np.uint32, len(column) * self._num_perm, column.offset * 4 * self._num_perm)
        return signed.reshape(-1, self._num_perm)


def _pairs(bands: pa.RecordBatch) -> pa.RecordBatch:
    """Pairs of each document of a bucket with the first document and with the document before it."""
    firsts = clusters.first_of_group(columns.numbers(bands.column("hash")))
    rows = np.arange(len(firsts))
    rays, chained = np.flatnonzero(firsts != rows), np.flatnonzero(firsts < rows - 1)
    lesser, greater = np.concatenate([firsts[rays], chained - 1]), np.concatenate([rays, chained])
    lesser_keys, greater_keys = (bands.column("key").take(pa.array(ends)) for ends in (lesser, greater))
    return pa.RecordBatch.from_arrays([pa.array(key_hash(lesser_keys)), lesser_keys, greater_keys], schema=PAIRS)


def _edges_of_this_run(narrow: pa.RecordBatch) -> pa.RecordBatch:
    """The edges from documents of this run to their survivors, each once."""
    rows = _distinct(narrow, "key")
    return narrow.take(pa.array(rows[is_new(narrow)[rows]]))


def _distinct(rows: pa.RecordBatch, *names: str) -> np.ndarray:
    """The first row of each run of rows that are equal in the key columns `names`; the rows are sorted."""
    halves = [half for name in names for half in columns.key_halves(rows.column(name))]
    firsts = clusters.first_of_group(*halves)
    return np.flatnonzero(firsts == np.arange(len(firsts)))


def _rows_of_same_key(rows: pa.RecordBatch, known: pa.RecordBatch) -> np.ndarray:
    """For each row the row of `known` with its key. Both are sorted by (hash, key), and `known` has every key."""
    ends = [np.concatenate(halves) for halves in zip(*(columns.key_halves(table.column("key")) for table in (known, rows)))]
    order = np.lexsort((np.arange(len(ends[0])), *reversed(ends)))  # the row of `known` before the rows with its key
    firsts = clusters.first_of_group(*(end[order] for end in ends))
    known_rows = np.empty(len(order), np.int64)
    known_rows[order] = order[firsts]
    own = known_rows[known.num_rows :]
    assert not len(own) or own.max() < known.num_rows, "a document without a signature"
    return own


def _differing(signed: np.ndarray, known: np.ndarray, known_rows: np.ndarray) -> np.ndarray:
    """In how many permutations each row of `signed` differs from row `known_rows[row]` of `known`: (num_rows,) int64."""
    differing = np.empty(len(signed), np.int64)
    for start in range(0, len(signed), 4096):
        part = slice(start, start + 4096)
        differing[part] = np.count_nonzero(signed[part] != known[known_rows[part]], axis=1)
    return differing


def _binary(signed: np.ndarray) -> pa.Array:
    """Signatures, (num_docs, num_perm) uint32, as a column of binary values."""
    width = 4 * signed.shape[1]
    return pa.Array.from_buffers(pa.binary(width), len(signed), [None, pa.py_buffer(np.ascontiguousarray(signed))])
