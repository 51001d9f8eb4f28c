"""Clusters of documents that are alike."""

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.exchange.files import sorted_rows
from datapipe.stage.clusters import (
    EDGE_SCHEMA,
    NARROW,
    WIDE,
    Nodes,
    both_ways,
    components_exchange,
    join_at_once,
    reduce_components,
    size_rows,
    star_drops,
)
from datapipe.stage.tables import OPEN
from tests.oracles import components as oracle

Edges = list[tuple[int, int]]


def _nodes(numbers: np.ndarray, ranks: np.ndarray) -> Nodes:
    """Keys spread over both halves, in the order of the numbers, with the high bit set in some."""
    numbers = numbers.astype(np.uint64)
    return ranks[numbers.astype(np.int64)], (numbers >> np.uint64(2)) << np.uint64(50), numbers


def _wide(edges: Edges, ranks: np.ndarray) -> pa.RecordBatch:
    ends = np.array(edges, np.int64).reshape(-1, 2)
    return both_ways(_nodes(ends[:, 0], ranks), _nodes(ends[:, 1], ranks))


def _survivors(narrow: pa.RecordBatch) -> dict[int, int]:
    ends = (columns.key_halves(narrow.column(name))[1].tolist() for name in ("key", "other"))
    return dict(zip(*ends))


def _at_once(wide: pa.RecordBatch) -> dict[int, int]:
    return _survivors(join_at_once({WIDE: _sorted(wide), NARROW: wide.slice(0, 0)})[NARROW])


def _in_rounds(wide: pa.RecordBatch, num_buckets: int = 1) -> tuple[dict[int, int], int]:
    """The survivors, and how many rounds it took."""
    tables = {WIDE: _sorted(wide), NARROW: wide.slice(0, 0)}
    for number in range(1, components_exchange(0).rounds + 1):
        found: dict[str, list[pa.RecordBatch]] = {WIDE: [], NARROW: [], OPEN: []}
        for bucket in _buckets(tables, num_buckets):
            for name, rows in reduce_components(bucket).items():
                found[name].append(rows)
        tables = {name: _sorted(*found[name]) for name in (WIDE, NARROW)}
        if not sum(rows.num_rows for rows in found[OPEN]):
            return _survivors(tables[NARROW]), number
    raise AssertionError("not finished")


def _buckets(tables: dict[str, pa.RecordBatch], count: int) -> list[dict[str, pa.RecordBatch]]:
    def part(rows: pa.RecordBatch, number: int) -> pa.RecordBatch:
        numbers = columns.numbers(rows.column("hash")) >> np.uint64(32)
        return rows.filter(pa.array(numbers * np.uint64(count) >> np.uint64(32) == np.uint64(number)))

    return [{name: part(rows, number) for name, rows in tables.items()} for number in range(count)]


def _sorted(*rows: pa.RecordBatch) -> pa.RecordBatch:
    return sorted_rows(pa.Table.from_batches(rows, EDGE_SCHEMA))


def _expected(edges: Edges, ranks: np.ndarray) -> dict[int, int]:
    return oracle.survivors(len(ranks), edges, ranks.tolist())


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(12))
def test_components_random_graphs_equal_the_oracle_either_way(seed: int) -> None:
    generator = np.random.default_rng(seed)
    num_nodes = int(generator.integers(2, 120))
    edges = [(a, b) for a, b in generator.integers(0, num_nodes, (int(generator.integers(1, 150)), 2)).tolist() if a != b]
    ranks = generator.integers(0, 3, num_nodes).astype(np.uint64)
    expected = _expected(edges, ranks)
    wide = _wide(edges, ranks)
    assert _at_once(wide) == expected
    assert _in_rounds(wide)[0] == expected
    assert _in_rounds(wide, 7)[0] == expected


@pytest.mark.slow
@pytest.mark.parametrize(("count", "is_shuffled"), [(100_000, False), (10_000, True)])
def test_components_chain_is_one_in_few_rounds(count: int, is_shuffled: bool) -> None:
    numbers = np.random.default_rng(1).permutation(count) if is_shuffled else np.arange(count)
    wide = _wide(np.column_stack([numbers[:-1], numbers[1:]]).tolist(), np.zeros(count, np.uint64))
    expected = dict.fromkeys(range(1, count), 0)
    assert _at_once(wide) == expected
    found, num_rounds = _in_rounds(wide, 3)
    assert found == expected
    assert num_rounds <= 2 * 17 + 1


@pytest.mark.parametrize("center", [0, 500, 999])
def test_components_star_takes_few_rounds_wherever_its_middle_is(center: int) -> None:
    edges = [(center, other) for other in range(1000) if other != center]
    found, num_rounds = _in_rounds(_wide(edges, np.zeros(1000, np.uint64)))
    assert found == dict.fromkeys(range(1, 1000), 0)
    assert num_rounds <= 3


def test_components_round_in_chunks_of_a_hot_key_is_the_same() -> None:
    """Chunks as the engine cuts them: every chunk begins with the group's first row."""
    wide = _sorted(_wide([(500, other) for other in range(1000) if other != 500], np.zeros(1000, np.uint64)))
    start = int(np.flatnonzero(columns.key_halves(wide.column("key"))[1] == 500)[0])
    group = wide.slice(start, 999)
    chunks = [group.slice(0, 400), pa.concat_batches([group.slice(0, 1), group.slice(400)])]
    whole = reduce_components({WIDE: group, NARROW: group.slice(0, 0)})
    parts = [reduce_components({WIDE: chunk, NARROW: chunk.slice(0, 0)}) for chunk in chunks]
    assert _survivors(_sorted(*(part[NARROW] for part in parts))) == _survivors(whole[NARROW])
    assert whole[OPEN].num_rows == 1
    assert [part[OPEN].num_rows for part in parts] == [1, 1]


def test_components_no_edges_are_none() -> None:
    nothing = pa.RecordBatch.from_pylist([], schema=EDGE_SCHEMA)
    assert join_at_once({WIDE: nothing, NARROW: nothing})[NARROW].num_rows == 0
    assert _in_rounds(nothing) == ({}, 1)


def test_star_drops_and_sizes_leave_out_the_middle() -> None:
    keys = columns.make_keys(3, np.arange(5, dtype=np.uint64))
    new = np.arange(5) < 4  # the last row is a reference row
    drops = star_drops(keys, new, np.array([0, 0, 2, 2, 2]), 0.5)
    rows = [(row["hash"], row["key"][-1], row["survivor"][-1], row["value"]) for row in drops.to_pylist()]
    assert rows == [(3, 1, 0, 0.5), (3, 3, 2, 0.5)]
    sizes = size_rows(drops.column("survivor")).to_pylist()
    assert sorted((row["key"][-1], row["size"]) for row in sizes) == [(0, 1), (2, 1)]
