"""Clusters of duplicates and their survivors: stars, and connected components by exchange.

    rows of equal hash ─▶ stars ─▶ edges ─▶ connected components ─▶ (document, survivor)

A star joins every row of a group to its first row. Documents are ordered by (rank, key), and the
least document of a component survives, whatever the workers, buckets and order of edges.

Components are computed by alternating large-star and small-star (Kiveris, Lattanzi, Mirrokni,
Rastogi, Vassilvitskii, "Connected components in MapReduce and beyond", SoCC 2014):

    large-star   for each document u: join all neighbours greater than u to the least of u and its neighbours
    small-star   for each document u: join u and all neighbours less than u to the least of them

It ends when no document has both a lesser neighbour and another neighbour. A chain of n documents
takes about 2 log2(n) rounds. Memory is that of one bucket. Edges that fit into one task are joined
by union-find in one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import KEY_TYPE, first_of_group, full_schema, is_first
from datapipe.kernels.dedup import components
from datapipe.stage.tables import DROP_SCHEMA, OPEN, OPEN_SCHEMA, SIZE_SCHEMA, Bucket, Exchange, key_hash

EDGE_SCHEMA = full_schema(hash=pa.uint64(), rank=pa.uint64(), key=KEY_TYPE, other_rank=pa.uint64(), other=KEY_TYPE)
"""An edge between two documents of one component; `hash` is the `key_hash` of `key`. In sorted order the edges of a document
are consecutive, and the edge to its least neighbour is the first of them."""

WIDE, NARROW = "wide", "narrow"
"""The tables of edges. `wide` holds each edge from both ends; large-star reads it. `narrow` holds each edge once, from the
greater document to the lesser; small-star reads it."""

_MAX_ROUNDS = 200
_SLICE_ROWS = 1 << 17
"""Rows of edges that are taken apart at a time where all edges are joined at once."""


def star_drops(keys: pa.Array, new: np.ndarray, centers: np.ndarray, value: float) -> pa.RecordBatch:
    """The drops (`DROP_SCHEMA`) of finished clusters: every document that is `new` (`tables.is_new`), except the centers of
    stars. `centers`: (num_rows,) int64, the row of each document's survivor; `value`: the similarity to write."""
    dropped = np.flatnonzero((centers != np.arange(len(centers))) & new)
    survivors = keys.take(pa.array(centers[dropped]))
    return drop_rows(keys.take(pa.array(dropped)), survivors, np.full(len(dropped), value))


def drop_rows(keys: pa.Array, survivors: pa.Array, values: np.ndarray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns.key_halves(keys)[0], keys, survivors, values], schema=DROP_SCHEMA)


def size_rows(survivors: pa.Array) -> pa.RecordBatch:
    """Rows of the table `sizes`: the number of occurrences of each survivor."""
    counted = pa.table({"key": survivors}).group_by("key").aggregate([([], "count_all")])
    keys = columns.keys_from(columns.key_matrix(counted.column("key")))
    sizes = columns.numbers(counted.column("count_all"))
    return pa.RecordBatch.from_arrays([columns.key_halves(keys)[0], keys, sizes], schema=SIZE_SCHEMA)


def components_exchange(at_once_bytes: int | None) -> Exchange:
    """The exchange from `wide` (each edge from both ends) to `narrow` (each document with its survivor)."""
    return Exchange(
        name="cluster",
        inputs=(WIDE, NARROW),
        outputs={WIDE: EDGE_SCHEMA, NARROW: EDGE_SCHEMA, OPEN: OPEN_SCHEMA},
        rounds=_MAX_ROUNDS,
        group=("hash", "rank", "key"),
        at_once_bytes=at_once_bytes,
    )


def reduce_components(bucket: Bucket) -> Mapping[str, pa.RecordBatch]:
    """One round: large-star of the edges in `wide`, or small-star of the edges in `narrow`. One of the tables is empty."""
    wide, narrow = bucket[WIDE], bucket[NARROW]
    if wide.num_rows:
        return large_star(wide)
    return {WIDE: small_star(narrow), OPEN: _open(narrow.num_rows > 0)}


def large_star(wide: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    """Joins the neighbours greater than each document to the least of the document and its neighbours."""
    nodes, others = _ends(wide)
    least_neighbours = _take(others, first_of_group(*nodes))
    is_least = _equal(others, least_neighbours)  # hot keys may repeat the edge to the least neighbour
    has_lesser = _less(least_neighbours, nodes)
    least = tuple(np.where(has_lesser, lesser, node) for lesser, node in zip(least_neighbours, nodes))
    greater = np.flatnonzero(_less(nodes, others))
    unfinished = (has_lesser & ~is_least).any()
    return {NARROW: edge_rows(_take(others, greater), _take(least, greater)), OPEN: _open(bool(unfinished))}


def small_star(narrow: pa.RecordBatch) -> pa.RecordBatch:
    """Joins each document and its lesser neighbours to the least of them. Writes `wide`."""
    nodes, others = _ends(narrow)
    least = _take(others, first_of_group(*nodes))
    joined = np.flatnonzero(~_equal(others, least))
    begins = np.flatnonzero(is_first(*nodes))
    greater = tuple(np.concatenate([other[joined], node[begins]]) for other, node in zip(others, nodes))
    lesser = tuple(np.concatenate([values[joined], values[begins]]) for values in least)
    return both_ways(greater, lesser)


def join_at_once(bucket: Bucket) -> dict[str, pa.RecordBatch]:
    """All components of the edges in `wide` and `narrow` by union-find: `narrow`, each document with its
    survivor. Memory is about 150 bytes an edge beside the bucket, where an edge takes 112."""
    words = _ends_of_edges([bucket[WIDE], bucket[NARROW]])
    numbers, distinct = _numbered(words)
    del words
    labels = components.connected_components(len(distinct[0]), *np.split(numbers, 2))
    joined = np.flatnonzero(labels != np.arange(len(labels)))
    return {NARROW: edge_rows(_take(distinct, joined), _take(distinct, labels[joined]))}


def _ends_of_edges(tables: Sequence[pa.RecordBatch]) -> Nodes:
    """The greater ends of all edges, then the lesser ends: (2 * num_edges,) each. Every edge counts from its greater end."""
    greater: list[Nodes] = []
    lesser: list[Nodes] = []
    for rows in tables:
        for start in range(0, rows.num_rows, _SLICE_ROWS):
            nodes, others = _ends(rows.slice(start, _SLICE_ROWS))
            chosen = np.flatnonzero(_less(others, nodes))
            greater.append(_take(nodes, chosen))
            lesser.append(_take(others, chosen))
    ends = [[end[word] for end in (*greater, *lesser)] for word in range(3)]
    greater.clear()
    lesser.clear()
    return tuple(np.concatenate([np.zeros(0, np.uint64), *ends.pop(0)]) for _ in range(3))


def _numbered(nodes: Nodes) -> tuple[np.ndarray, Nodes]:
    """The number of each node among the distinct nodes, (num_nodes,) int64, and the distinct nodes in order."""
    order = np.lexsort(nodes[::-1])
    is_new = is_first(*_take(nodes, order))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_new) - 1
    return numbers, _take(nodes, order[is_new])


Nodes = tuple[np.ndarray, ...]
"""Documents in the form that is compared: the rank and the two halves of the key, (num_rows,) uint64 each."""


def edge_rows(nodes: Nodes, others: Nodes) -> pa.RecordBatch:
    """Edges (`EDGE_SCHEMA`) from `nodes` to `others`, hashed by `nodes`."""
    keys, other_keys = columns.make_keys(*nodes[1:]), columns.make_keys(*others[1:])
    return pa.RecordBatch.from_arrays([key_hash(keys), nodes[0], keys, others[0], other_keys], schema=EDGE_SCHEMA)


def both_ways(nodes: Nodes, others: Nodes) -> pa.RecordBatch:
    """Each edge from both ends: rows of `wide`."""
    ends = tuple(np.concatenate([node, other]) for node, other in zip(nodes, others))
    rest = tuple(np.concatenate([other, node]) for node, other in zip(nodes, others))
    return edge_rows(ends, rest)


def _open(is_open: bool) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([np.zeros(int(is_open), np.uint64)], schema=OPEN_SCHEMA)


def _ends(rows: pa.RecordBatch) -> tuple[Nodes, Nodes]:
    """Both ends of sorted edges, without repeated edges."""
    nodes: Nodes = (columns.numbers(rows.column("rank")), *columns.key_halves(rows.column("key")))
    others: Nodes = (columns.numbers(rows.column("other_rank")), *columns.key_halves(rows.column("other")))
    distinct = np.flatnonzero(is_first(*nodes, *others))
    return _take(nodes, distinct), _take(others, distinct)


def _less(first: Nodes, second: Nodes) -> np.ndarray:
    (rank, high, low), (second_rank, second_high, second_low) = first, second
    by_key = (high < second_high) | ((high == second_high) & (low < second_low))
    return (rank < second_rank) | ((rank == second_rank) & by_key)


def _equal(first: Nodes, second: Nodes) -> np.ndarray:
    return np.logical_and.reduce([a == b for a, b in zip(first, second)])


def _take(nodes: Nodes, rows: np.ndarray) -> Nodes:
    return tuple(values[rows] for values in nodes)
