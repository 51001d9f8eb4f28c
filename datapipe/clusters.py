"""From documents found alike to verdicts: who survives, and who is dropped in its favour.

    rows of equal hash  ->  stars (edges)  ->  clusters  ->  one survivor each, a verdict for every other document
         star_edges                      cluster_verdicts

The survivor of a cluster is its document of lowest (rank, key). A rank is a number that a policy gives a document from the
document alone, so the survivor does not depend on workers, buckets or the order of edges.
"""

from __future__ import annotations

from typing import Literal, assert_never

import numpy as np
import pyarrow as pa

from datapipe import columns, rng
from datapipe.documents import DocumentBatch
from datapipe.kernels import buckets, components
from datapipe.stage import EDGE_SCHEMA, VERDICT_SCHEMA

Keep = Literal["first", "longest", "shortest", "random"]
"""Which document of a cluster survives: the one of lowest key (within a file: the first), the longest or shortest by bytes,
or one by keyed hash. Ties go to the lowest key."""


def survivor_ranks(keep: Keep, batch: DocumentBatch, seed: int) -> np.ndarray:
    """The rank of each document, (num_docs,) uint64: the lowest survives.

    Args:
        keep: the policy.
        batch: the documents.
        seed: from `rng.seed_for`; used by "random" alone.
    """
    match keep:
        case "first":
            return np.zeros(batch.num_docs, np.uint64)
        case "shortest":
            return columns.text_lengths(batch.texts).astype(np.uint64)
        case "longest":
            return np.uint64(2**64 - 1) - columns.text_lengths(batch.texts).astype(np.uint64)
        case "random":
            return rng.keyed_hash(columns.key_halves(batch.keys), seed)
        case _:
            assert_never(keep)


def star_edges(bucket: pa.RecordBatch, digests: np.ndarray, value: float) -> pa.RecordBatch:
    """A star for every group of equal (hash, digest), around its document of lowest (rank, key); `EDGE_SCHEMA`.

    Args:
        bucket: columns `hash`, `key` and `rank`, sorted by (hash, digest, key).
        digests: (num_rows,) uint64.
        value: the likeness that every edge carries.
    """
    hashes, ranks = (columns.numbers(bucket.column(name)) for name in ("hash", "rank"))
    centers, others = np.empty(len(hashes), np.int64), np.empty(len(hashes), np.int64)
    num_edges = buckets.find_stars(hashes, digests, ranks, centers, others)
    centers, others = centers[:num_edges], others[:num_edges]
    keys = columns.key_matrix(bucket.column("key"))
    arrays = [
        columns.keys_from(keys[centers]),
        columns.keys_from(keys[others]),
        pa.array(ranks[centers]),
        pa.array(ranks[others]),
        pa.array(np.full(num_edges, value)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EDGE_SCHEMA)


def cluster_verdicts(edges: pa.Table | pa.RecordBatch) -> pa.RecordBatch:
    """One verdict for every document of a cluster but its survivor, sorted by key; `VERDICT_SCHEMA`.

    A verdict's value is the greatest value of the edges that touch the document. Memory is about 100 bytes per edge.

    Args:
        edges: `EDGE_SCHEMA`, in any order; all edges of a cluster must be here.
    """
    if edges.num_rows == 0:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in VERDICT_SCHEMA], schema=VERDICT_SCHEMA)
    ends = np.concatenate([columns.key_matrix(edges.column("key")), columns.key_matrix(edges.column("other"))])
    order, starts, nodes = _number_keys(ends)  # nodes: (2 * num_edges,), in the order of their keys
    values = np.tile(columns.numbers(edges.column("value")), 2)
    ranks = np.concatenate([columns.numbers(edges.column("rank")), columns.numbers(edges.column("other_rank"))])
    best = np.maximum.reduceat(values[order], starts)
    rank_of = np.minimum.reduceat(ranks[order], starts)
    labels = components.connected_components(len(starts), *np.split(nodes, 2))
    survivors = _survivors(labels, rank_of)
    dropped = np.flatnonzero(survivors != np.arange(len(starts)))
    unique = ends[order[starts]]
    arrays = [columns.keys_from(unique[dropped]), columns.keys_from(unique[survivors[dropped]]), pa.array(best[dropped])]
    return pa.RecordBatch.from_arrays(arrays, schema=VERDICT_SCHEMA)


def cluster_sizes(verdicts: pa.RecordBatch) -> tuple[pa.Array, np.ndarray]:
    """The survivors of clusters, in the order of their keys, and how many documents each cluster holds: (num_clusters,) int64.

    Args:
        verdicts: `VERDICT_SCHEMA`, all of every cluster.
    """
    survivors = columns.key_matrix(verdicts.column("survivor"))
    if len(survivors) == 0:
        return columns.keys_from(survivors), np.zeros(0, np.int64)
    order, starts, _ = _number_keys(survivors)
    return columns.keys_from(survivors[order[starts]]), np.diff(starts, append=len(survivors)) + 1


def _number_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers the distinct keys of (n, 16) uint8 in their order.

    Returns:
        order: (n,) int64, which sorts the keys.
        starts: (num_distinct,) int64, where each distinct key starts in that order.
        numbers: (n,) int64, the number of each key.
    """
    halves = keys.view(">u8")
    high, low = halves[:, 0].astype(np.uint64), halves[:, 1].astype(np.uint64)
    order = np.lexsort((low, high))
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_new) - 1
    return order, np.flatnonzero(is_new), numbers


def _survivors(labels: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """The node of lowest (rank, node) in the component of each node: (num_nodes,) int64."""
    order = np.lexsort((ranks, labels))  # stable: the lower node comes first among equals
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = np.diff(labels[order]) != 0
    survivors = np.empty(len(order), np.int64)
    survivors[order] = order[is_first][np.cumsum(is_first) - 1]
    return survivors
