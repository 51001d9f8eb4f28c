"""The tables of `dedup.minhash` and their reductions: candidate pairs from bands, verified by signatures.

A band row is 24 bytes, a pair 40. A signature is exchanged with its document, and for each pair whose first document it belongs
to. In each bucket every document is paired with the document of least key and with the document before it: 100,000 copies give
200,000 pairs. On adversarial corpora (families that drift, mixed by a common template) up to 1.4 % of the documents that all
pairs would drop are kept; stars alone keep up to 4 %. Two reference documents are never joined: a new document that is joined
to one of them is dropped either way.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import KEY_TYPE, full_schema, is_first
from datapipe.stage import clusters
from datapipe.stage.tables import is_new, key_hash, new_bit

BANDS = full_schema(hash=pa.uint64(), key=KEY_TYPE)
PAIRS = full_schema(hash=pa.uint64(), key=KEY_TYPE, other=KEY_TYPE)
"""Two documents that match in a band; `key` is the lesser key."""
LIKENESS = full_schema(hash=pa.uint64(), key=KEY_TYPE, differing=pa.uint16())
"""In how many permutations a document differs from a similar document. Rows are sorted, so the least is the first."""


def signatures_schema(num_perm: int) -> pa.Schema:
    """Schema of the table with one row a document; without signatures for 0 permutations."""
    signature = {"signature": pa.binary(4 * num_perm)} if num_perm else {}
    return full_schema(hash=pa.uint64(), key=KEY_TYPE, rank=pa.uint64(), **signature)


def halves_schema(num_perm: int) -> pa.Schema:
    """Schema of pairs that are exchanged by their second document, with rank and signature of the first."""
    return pa.schema([*PAIRS, *list(signatures_schema(num_perm))[2:]])


def matched_pairs(bands: pa.RecordBatch) -> pa.RecordBatch:
    """Pairs of each document of a bucket with the first one and with the one before it."""
    firsts = columns.first_of_group(columns.numbers(bands.column("hash")))
    rows = np.arange(len(firsts))
    rays, chained = np.flatnonzero(firsts != rows), np.flatnonzero(firsts < rows - 1)
    lesser, greater = np.concatenate([firsts[rays], chained - 1]), np.concatenate([rays, chained])
    lesser_keys, greater_keys = (bands.column("key").take(pa.array(ends)) for ends in (lesser, greater))
    return pa.RecordBatch.from_arrays([key_hash(lesser_keys), lesser_keys, greater_keys], schema=PAIRS)


def with_first(pairs: pa.RecordBatch, signatures: pa.RecordBatch, num_perm: int) -> pa.RecordBatch:
    """Pairs, each once, with rank and signature of their first document."""
    pairs = pairs.take(pa.array(_distinct(pairs, "key", "other")))
    known_rows = pa.array(_rows_of_same_key(pairs, signatures))
    seconds, schema = pairs.column("other"), halves_schema(num_perm)
    known = [signatures.column(name).take(known_rows) for name in schema.names[3:]]
    return pa.RecordBatch.from_arrays([key_hash(seconds), seconds, pairs.column("key"), *known], schema=schema)


def edges_of_pairs(
    halves: pa.RecordBatch, signatures: pa.RecordBatch, num_perm: int, least: float
) -> Mapping[str, pa.RecordBatch]:
    """The pairs that count as edges from both ends, and how similar they are: from `least` on, and
    all with a document of this run where signatures have no permutations (`num_perm` 0)."""
    halves = halves.take(pa.array(_distinct(halves, "key", "other")))
    known_rows = _rows_of_same_key(halves, signatures)
    ranks, other_ranks = columns.numbers(signatures.column("rank"))[known_rows], columns.numbers(halves.column("rank"))
    counts = np.maximum(ranks, other_ranks) >= new_bit(np.uint64)
    differing = np.zeros(len(known_rows), np.int64)
    if num_perm:
        differing = _differing(_signed(halves, num_perm), _signed(signatures, num_perm), known_rows)
        counts &= np.round(1 - differing / num_perm, 6) >= least
    chosen = np.flatnonzero(counts)
    differing, halves = differing[chosen], halves.take(pa.array(chosen))
    keys, others = halves.column("key"), halves.column("other")
    nodes = (ranks[chosen], *columns.key_halves(keys))
    rest = (other_ranks[chosen], *columns.key_halves(others))
    both = pa.concat_arrays([keys, others])
    likeness = pa.RecordBatch.from_arrays([key_hash(both), both, np.tile(differing, 2)], schema=LIKENESS)
    return {clusters.WIDE: clusters.both_ways(nodes, rest), "likeness": likeness}


def drops_of(narrow: pa.RecordBatch, likeness: pa.RecordBatch, num_perm: int) -> pa.RecordBatch:
    """The drops of documents with a survivor, with the greatest similarity measured."""
    narrow = edges_of_this_run(narrow)
    best = likeness.take(pa.array(_distinct(likeness, "key")))
    differing = columns.numbers(best.column("differing"))[_rows_of_same_key(narrow, best)]
    values = np.round(1 - differing / num_perm, 4) if num_perm else np.full(len(differing), np.nan)
    return clusters.drop_rows(narrow.column("key"), narrow.column("other"), values)


def edges_of_this_run(narrow: pa.RecordBatch) -> pa.RecordBatch:
    """The edges from documents of this run to their survivors, each once."""
    rows = _distinct(narrow, "key")
    return narrow.take(pa.array(rows[is_new(narrow)[rows]]))


def _signed(rows: pa.RecordBatch, num_perm: int) -> np.ndarray:
    column = rows.column("signature")
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros((0, num_perm), np.uint32)
    return np.frombuffer(data, np.uint32, len(column) * num_perm, column.offset * 4 * num_perm).reshape(-1, num_perm)


def _distinct(rows: pa.RecordBatch, *names: str) -> np.ndarray:
    """The first row of each run of rows that are equal in the key columns `names`; the rows are sorted."""
    return np.flatnonzero(is_first(*(half for name in names for half in columns.key_halves(rows.column(name)))))


def _rows_of_same_key(rows: pa.RecordBatch, known: pa.RecordBatch) -> np.ndarray:
    """For each row the row of `known` with its key. Both are sorted by (hash, key), and `known` has every key."""
    ends = [np.concatenate(halves) for halves in zip(*(columns.key_halves(table.column("key")) for table in (known, rows)))]
    order = np.lexsort((np.arange(len(ends[0])), *reversed(ends)))  # the row of `known` before the rows with its key
    firsts = columns.first_of_group(*(end[order] for end in ends))
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
