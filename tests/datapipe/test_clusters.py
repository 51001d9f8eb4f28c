"""Verdicts from edges: who survives does not depend on how the edges came."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.clusters import cluster_sizes, cluster_verdicts
from datapipe.stage import EDGE_SCHEMA, VERDICT_SCHEMA
from tests.oracles import components as oracle

Edge = tuple[bytes, bytes, int, int, float]


def _key(number: int) -> bytes:
    """Spread over both halves, with the high bit set in some."""
    return ((number * 0x9E3779B97F4A7C15) % 2**64 >> 62 << 62).to_bytes(8, "big") + number.to_bytes(8, "big")


def _table(edges: list[Edge]) -> pa.Table:
    names = [field.name for field in EDGE_SCHEMA]
    return pa.Table.from_pylist([dict(zip(names, edge, strict=True)) for edge in edges], schema=EDGE_SCHEMA)


def _rows(verdicts: pa.RecordBatch) -> list[tuple[bytes, bytes, float]]:
    assert verdicts.schema == VERDICT_SCHEMA
    return [(row["key"], row["survivor"], row["value"]) for row in verdicts.to_pylist()]


def _random_edges(seed: int) -> list[Edge]:
    generator = np.random.default_rng(seed)
    ranks = generator.integers(0, 3, 60).tolist()
    ends = generator.integers(0, 60, (40, 2)).tolist()
    values = generator.integers(1, 5, 40) / 4
    return [(_key(a), _key(b), ranks[a], ranks[b], value) for (a, b), value in zip(ends, values.tolist(), strict=True)]


@pytest.mark.parametrize("seed", range(8))
def test_cluster_verdicts_random_edges_equal_the_oracle(seed: int) -> None:
    edges = _random_edges(seed)
    assert _rows(cluster_verdicts(_table(edges))) == oracle.verdicts(edges)


def test_cluster_verdicts_any_order_and_chunking_are_the_same() -> None:
    edges = _random_edges(99)
    expected = cluster_verdicts(_table(edges))
    turned = [(b, a, rank_b, rank_a, value) for a, b, rank_a, rank_b, value in reversed(edges)]
    chunked = pa.concat_tables([_table(turned[:7]), _table(turned[7:8]), _table(turned[8:])])
    assert cluster_verdicts(chunked).equals(expected)


def test_cluster_verdicts_stars_drop_every_ray() -> None:
    edges = [(_key(1), _key(number), 0, number, 1.0) for number in (5, 3, 4)]
    survivor = _key(1)
    expected = sorted((_key(number), survivor, 1.0) for number in (5, 3, 4))
    assert _rows(cluster_verdicts(_table(edges))) == expected


def test_cluster_verdicts_lowest_rank_wins_over_lowest_key() -> None:
    low, middle, high = sorted(map(_key, (1, 2, 3)))
    edges = [(low, middle, 9, 7, 0.5), (middle, high, 7, 2, 0.75)]
    assert _rows(cluster_verdicts(_table(edges))) == [(low, high, 0.5), (middle, high, 0.75)]


def test_cluster_verdicts_no_edges_are_no_verdicts() -> None:
    assert _rows(cluster_verdicts(_table([]))) == []
    assert _rows(cluster_verdicts(pa.RecordBatch.from_pylist([], schema=EDGE_SCHEMA))) == []


def test_cluster_verdicts_long_chain_has_one_survivor() -> None:
    keys = columns.make_keys(7, np.arange(100_000, dtype=np.uint64))
    order = np.random.default_rng(0).permutation(99_999)
    ranks = pa.array(np.zeros(99_999, np.uint64))
    ends = [keys.take(pa.array(order)), keys.take(pa.array(order + 1))]
    edges = pa.RecordBatch.from_arrays([*ends, ranks, ranks, pa.array(np.ones(99_999))], schema=EDGE_SCHEMA)
    verdicts = cluster_verdicts(edges)
    assert verdicts.column("key").equals(keys.slice(1))
    assert verdicts.column("survivor").unique().to_pylist() == [keys[0].as_py()]


@pytest.mark.parametrize("seed", range(3))
def test_cluster_sizes_count_survivors_and_all_they_stand_for(seed: int) -> None:
    verdicts = cluster_verdicts(_table(_random_edges(seed)))
    survivors, sizes = cluster_sizes(verdicts)
    counts = Counter(verdicts.column("survivor").to_pylist())
    assert list(zip(survivors.to_pylist(), sizes.tolist(), strict=True)) == [(key, n + 1) for key, n in sorted(counts.items())]
    assert len(cluster_sizes(verdicts.slice(0, 0))[0]) == 0
