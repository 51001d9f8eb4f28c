"""From documents found alike to one survivor each: stars, and connected components by exchange.

    rows of equal hash ─▶ stars ─▶ edges ─▶ components ─▶ (document, survivor)

Documents are compared by (rank, key): a rank is a number that a policy gives a document from the document alone
(`stage/keep.py`), so that the least document of a component is its survivor, and it depends on no worker, bucket or order of
edges.

Components by exchange are alternating large-star and small-star (Kiveris, Lattanzi, Mirrokni, Rastogi, Vassilvitskii,
"Connected components in MapReduce and beyond", SoCC 2014):

    large-star   at each document u, of all its neighbours: those greater than u are joined to the least of them and u
    small-star   at each document u, of those less than u: they and u are joined to the least of them

Neither adds edges or parts what was joined. The end is proven, not guessed: large-star sees all neighbours of a document, and
where none has both a lesser neighbour and another one, every edge leads from a document to the least of its component. A
chain of n documents takes about 2 log2(n) rounds. Memory is that of a bucket. Where the edges fit one task, union-find does
all at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import KEY_TYPE
from datapipe.kernels.dedup import components
from datapipe.stage.tables import DROP_SCHEMA, OPEN, OPEN_SCHEMA, SIZE_SCHEMA, Bucket, Exchange, key_hash

EDGE_SCHEMA = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("rank", pa.uint64(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("other_rank", pa.uint64(), nullable=False),
        pa.field("other", KEY_TYPE, nullable=False),
    ]
)
"""Two documents of one component; `hash` is the `key_hash` of `key`. Sorted, the edges of a document are together, and that to
its least neighbour is the first of them."""

WIDE, NARROW = "wide", "narrow"
"""The tables of edges: with a row for both ends, which large-star reads; from the greater document to the lesser one."""

_MAX_ROUNDS = 200


# ---------------------------------------------------------------------------------------------------- stars


def first_of_group(*values: np.ndarray) -> np.ndarray:
    """The row where the group of each row begins, (num_rows,) int64: rows side by side that agree in all values are a group."""
    begins = np.zeros(len(values[0]), np.int64)
    for value in values:
        changes = np.flatnonzero(value[1:] != value[:-1]) + 1
        begins[changes] = changes
    return np.maximum.accumulate(begins)


def star_drops(keys: pa.Array, new: np.ndarray, centers: np.ndarray, value: float) -> pa.RecordBatch:
    """The drops (`DROP_SCHEMA`) of finished clusters: every document of this run but the one in the middle.

    Args:
        keys: (num_rows,) documents.
        new: (num_rows,) bool, `exchanges.is_new`.
        centers: (num_rows,) int64, the row of each one's survivor.
        value: their likeness.
    """
    dropped = np.flatnonzero((centers != np.arange(len(centers))) & new)
    found = keys.take(pa.array(dropped))
    survivors = keys.take(pa.array(centers[dropped]))
    return drop_rows(found, survivors, np.full(len(dropped), value))


def drop_rows(keys: pa.Array, survivors: pa.Array, values: np.ndarray) -> pa.RecordBatch:
    """Rows of the table `drops`."""
    arrays = [pa.array(columns.key_halves(keys)[0]), keys, survivors, pa.array(values)]
    return pa.RecordBatch.from_arrays(arrays, schema=DROP_SCHEMA)


def size_rows(survivors: pa.Array) -> pa.RecordBatch:
    """Rows of the table `sizes`: how often each survivor stands here."""
    counted = pa.table({"key": survivors}).group_by("key").aggregate([([], "count_all")])
    keys = columns.keys_from(columns.key_matrix(counted.column("key")))
    arrays = [pa.array(columns.key_halves(keys)[0]), keys, pa.array(columns.numbers(counted.column("count_all")))]
    return pa.RecordBatch.from_arrays(arrays, schema=SIZE_SCHEMA)


# ---------------------------------------------------------------------------------------------------- components


def components_exchange(at_once_bytes: int | None) -> Exchange:
    """The exchange that makes of the table `wide` (every edge from both its ends) the table `narrow`: each document of a
    component once, with its survivor.

    Args:
        at_once_bytes: as `Exchange` has it.
    """
    return Exchange(
        name="cluster",
        inputs=(WIDE, NARROW),
        outputs={WIDE: EDGE_SCHEMA, NARROW: EDGE_SCHEMA, OPEN: OPEN_SCHEMA},
        rounds=_MAX_ROUNDS,
        group=("hash", "rank", "key"),
        at_once_bytes=at_once_bytes,
    )


def reduce_components(bucket: Bucket) -> Mapping[str, pa.RecordBatch]:
    """One round: large-star of the edges in `wide`, or small-star of those in `narrow`; one of the two is empty."""
    wide, narrow = bucket[WIDE], bucket[NARROW]
    if wide.num_rows:
        return large_star(wide)
    return {WIDE: small_star(narrow), OPEN: _open(narrow.num_rows > 0)}


def large_star(wide: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    """Of the neighbours of each document those greater than it, joined to the least of them and it: `narrow`, and `open`
    where a document has both a lesser neighbour and another one."""
    nodes, others = _ends(wide)
    firsts = first_of_group(*nodes)
    is_again = _equal(others, _at(others, firsts))  # the least neighbour, however often it stands here
    least = _where(_less(_at(others, firsts), nodes), _at(others, firsts), nodes)
    greater = np.flatnonzero(_less(nodes, others))
    unfinished = (_less(_at(others, firsts), nodes) & ~is_again).any()
    return {NARROW: edge_rows(_at(others, greater), _at(least, greater)), OPEN: _open(bool(unfinished))}


def small_star(narrow: pa.RecordBatch) -> pa.RecordBatch:
    """Each document and those less than it that it is joined to, joined to the least of them: `wide`."""
    nodes, others = _ends(narrow)
    firsts = first_of_group(*nodes)
    least = _at(others, firsts)
    joined = np.flatnonzero(~_equal(others, least))
    begins = np.flatnonzero(firsts == np.arange(len(firsts)))
    greater = tuple(np.concatenate([other[joined], node[begins]]) for other, node in zip(others, nodes))
    lesser = tuple(np.concatenate([one[joined], one[begins]]) for one in least)
    return both_ways(greater, lesser)


def join_at_once(bucket: Bucket) -> dict[str, pa.RecordBatch]:
    """All components of the edges in `wide` and `narrow` by union-find: `narrow`, each document with its survivor.

    Memory is about 400 bytes for an edge, with which `wide` has two rows of 56 bytes.
    """
    parts = [_ends(bucket[name]) for name in (WIDE, NARROW)]
    nodes, others = ([np.concatenate(words) for words in zip(*(part[end] for part in parts))] for end in (0, 1))
    greater = np.flatnonzero(_less(tuple(others), tuple(nodes)))
    ends = tuple(np.concatenate([node[greater], other[greater]]) for node, other in zip(nodes, others))
    order = np.lexsort(ends[::-1])
    firsts = first_of_group(*(one[order] for one in ends))
    is_first = firsts == np.arange(len(firsts))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_first) - 1
    distinct = tuple(one[order][is_first] for one in ends)
    labels = components.connected_components(int(is_first.sum()), *np.split(numbers, 2))
    joined = np.flatnonzero(labels != np.arange(len(labels)))
    return {NARROW: edge_rows(_at(distinct, joined), _at(distinct, labels[joined]))}


Nodes = tuple[np.ndarray, ...]
"""Documents as they are compared: rank, and the two halves of the key, (num,) uint64 each."""


def edge_rows(nodes: Nodes, others: Nodes) -> pa.RecordBatch:
    """Edges (`EDGE_SCHEMA`) that meet at `nodes`."""
    keys, other_keys = columns.make_keys(*nodes[1:]), columns.make_keys(*others[1:])
    arrays = [pa.array(key_hash(keys)), pa.array(nodes[0]), keys, pa.array(others[0]), other_keys]
    return pa.RecordBatch.from_arrays(arrays, schema=EDGE_SCHEMA)


def both_ways(nodes: Nodes, others: Nodes) -> pa.RecordBatch:
    """Every edge from both of its ends: `wide`."""
    ends = [np.concatenate([node, other]) for node, other in zip(nodes, others)]
    rest = [np.concatenate([other, node]) for node, other in zip(nodes, others)]
    return edge_rows(tuple(ends), tuple(rest))


def _open(is_open: bool) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(np.zeros(int(is_open), np.uint64))], schema=OPEN_SCHEMA)


def _ends(rows: pa.RecordBatch) -> tuple[Nodes, Nodes]:
    """Both ends of sorted edges, each edge once."""
    nodes: Nodes = (columns.numbers(rows.column("rank")), *columns.key_halves(rows.column("key")))
    others: Nodes = (columns.numbers(rows.column("other_rank")), *columns.key_halves(rows.column("other")))
    distinct = np.flatnonzero(first_of_group(*nodes, *others) == np.arange(rows.num_rows))
    return _at(nodes, distinct), _at(others, distinct)


def _less(one: Nodes, other: Nodes) -> np.ndarray:
    """Where a document comes before another: (num,) bool."""
    (rank, high, low), (other_rank, other_high, other_low) = one, other
    by_key = (high < other_high) | ((high == other_high) & (low < other_low))
    return (rank < other_rank) | ((rank == other_rank) & by_key)


def _equal(one: Nodes, other: Nodes) -> np.ndarray:
    return np.logical_and.reduce([a == b for a, b in zip(one, other)])


def _at(nodes: Nodes, rows: np.ndarray) -> Nodes:
    return tuple(one[rows] for one in nodes)


def _where(condition: np.ndarray, one: Nodes, other: Nodes) -> Nodes:
    return tuple(np.where(condition, a, b) for a, b in zip(one, other))
