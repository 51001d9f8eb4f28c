"""The shuffle passes a battery of tests of randomness; the split tree is walked to the last integer."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from datapipe.kernels.tokens import quota
from datapipe.kernels.tokens.cells import MOST_SHUFFLED
from datapipe.kernels.tokens.permute import NUM_ROUNDS, TABLE_SIZE, invert, permute
from datapipe.rng import seed_for
from tests.oracles import loading as loading_oracle
from tests.support import kernel_table

WINDOW = 1 << 20
"""Consecutive indices that the battery looks at; larger sets are sampled by such windows."""

compiled_only = pytest.mark.skipif(kernel_table.RUNS_AS_PYTHON, reason="a million indices are for compiled kernels")


def suspicions(positions: np.ndarray, size: int) -> list[str]:
    """What is not random about consecutive positions in 0..size-1, n >= 4,096 of them; empty where nothing is.

    serial correlation      of neighbours: within five standard deviations of 0
    successive differences  the most frequent one: a random permutation's counts are Poisson of mean <= 1
    chi^2                   of (position, next position) in 16 x 16 cells: 255 degrees of freedom, six standard deviations
    parity flips            share of neighbours of unlike parity: within five standard deviations of 1/2
    """
    here, after, count = positions[:-1], positions[1:], len(positions) - 1
    found = []
    correlation = float(np.corrcoef(here.astype(np.float64), after.astype(np.float64))[0, 1])
    if abs(correlation) > 5 / np.sqrt(count):
        found.append(f"serial correlation {correlation:.3f}")
    repeated = int(np.unique(after - here, return_counts=True)[1].max())
    if repeated > 12:
        found.append(f"one difference {repeated} times")
    cells = (here // -(-size // 16)) * 16 + after // -(-size // 16)
    observed, expected = np.bincount(cells, minlength=256), count / 256
    chi_squared = float(((observed - expected) ** 2 / expected).sum())
    if abs(chi_squared - 255) > 6 * np.sqrt(2 * 255):
        found.append(f"chi squared {chi_squared:.0f}")
    flips = float(((here ^ after) & 1).mean())
    if abs(flips - 0.5) > 2.5 / np.sqrt(count):
        found.append(f"parity flips {flips:.4f}")
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, 4096, 65535, 65536, 65537, 66049])
def test_permute_every_index_gives_each_position_once(size: int) -> None:
    step = 1 if size <= 4096 or not kernel_table.RUNS_AS_PYTHON else 97
    positions = permute(12345, size, np.arange(0, size, step))
    assert len(set(positions.tolist())) == len(range(0, size, step))
    assert positions.min() >= 0
    assert positions.max() < size
    np.testing.assert_array_equal(invert(12345, size, positions), np.arange(0, size, step))


@pytest.mark.parametrize("size", [65537, 2**20, 10**9 + 7, 2**30, 2**30 + 1, 2**40 - 1, 2**62])
def test_invert_any_position_returns_its_index(size: int) -> None:
    indices = np.unique(np.array([0, 1, 2, 12345, size // 3, size // 2, size - 2, size - 1], np.int64))
    positions = permute(99, size, indices)
    assert len(np.unique(positions)) == len(indices)
    assert 0 <= positions.min() <= positions.max() < size
    np.testing.assert_array_equal(invert(99, size, positions), indices)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 251, 65_535, 65_536, 65_537, (1 << 30) + 1])
def test_permute_equals_its_definition(size: int) -> None:
    for key in (3, 1 << 61):
        indices = np.random.default_rng(size).integers(0, size, 64)
        if size <= TABLE_SIZE:
            expected = np.array(loading_oracle.shuffled(key, size))[indices].tolist()
        else:
            keys = loading_oracle.round_keys(key, NUM_ROUNDS)
            expected = [loading_oracle.feistel(index, size, keys) for index in indices.tolist()]
        assert permute(key, size, indices).tolist() == expected


def test_permute_pinned_keys_never_change() -> None:
    # A change of these is a change of every run's order, and breaks every saved state.
    assert permute(17, 10, np.arange(10)).tolist() == [4, 9, 2, 6, 7, 5, 0, 3, 8, 1]
    assert permute(17, 10**9, np.arange(4)).tolist() == [737588429, 830062151, 981065043, 529705693]


@pytest.mark.slow
@compiled_only
@pytest.mark.parametrize("key", [seed_for(17, "loader", "train", "web", epoch) for epoch in range(2)])
@pytest.mark.parametrize("size", [4096, 10007, 65536, 65537, 100_003, 10**6, 2**20, 3 * 10**8, 2**30, 2**30 + 1, 2**40 + 12345])
def test_permute_windows_of_any_size_pass_the_battery(size: int, key: int) -> None:
    for start in sorted({0, max(0, size // 2 - WINDOW // 2), max(0, size - WINDOW)}):
        window = np.arange(start, min(start + WINDOW, size))
        assert suspicions(permute(key, size, window), size) == []


@compiled_only
def test_permute_keys_of_two_epochs_are_unrelated() -> None:
    size, indices = 2**20, np.arange(2**20)
    first, second = (permute(seed_for(17, "loader", "train", "web", epoch), size, indices) for epoch in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / 1024
    assert int((first == second).sum()) <= 8  # Poisson of mean 1


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_permute_tiny_set_draws_every_permutation_equally_often(size: int) -> None:
    orders = list(permutations(range(size)))
    num_keys = 100 * len(orders)
    counts: Counter[tuple[int, ...]] = Counter()
    for epoch in range(num_keys):
        counts[tuple(permute(seed_for(17, "tiny", size, epoch), size, np.arange(size)).tolist())] += 1
    freedom = len(orders) - 1
    chi_squared = sum((counts[order] - 100) ** 2 / 100 for order in orders)
    assert abs(chi_squared - freedom) < 5 * np.sqrt(2 * freedom) + 5


@compiled_only
@pytest.mark.medium
@pytest.mark.parametrize("size", [MOST_SHUFFLED + 1, 100, 129, 257, 1000])
def test_permute_by_rounds_places_neighbours_of_small_sets_evenly(size: int) -> None:
    """Of cells: the position of an index, and the distance to that of its neighbour, are uniform over keys."""
    num_keys = 40 * size
    keys = [seed_for(17, "small", size, epoch) for epoch in range(num_keys)]
    positions = np.stack([permute(key, size, np.array([5, 6]), MOST_SHUFFLED) for key in keys])
    first, distances = positions[:, 0], (positions[:, 1] - positions[:, 0]) % size
    for counts in (np.bincount(first, minlength=size), np.bincount(distances, minlength=size)[1:]):
        expected, freedom = num_keys / len(counts), len(counts) - 1
        assert abs(((counts - expected) ** 2 / expected).sum() - freedom) < 5 * np.sqrt(2 * freedom)


totals_and_lefts = st.integers(2, 2**62 - 1).flatmap(lambda total: st.tuples(st.just(total), st.integers(1, total - 1)))


def assign(samples: np.ndarray, *columns: list[int]) -> list[tuple[int, int]]:
    """Leaf and ordinal of each sample, for a tree given by the columns of its nodes."""
    nodes = np.array(columns, np.int64).reshape(4, -1).T.copy()
    leaves = np.array([(leaf, 0) for leaf in range(len(nodes) + 1)])
    sources, ordinals = np.empty(len(samples), np.int64), np.empty(len(samples), np.int64)
    assert quota.assign(samples, 0, 1 << 62, nodes, leaves, sources, ordinals) == 0
    return list(zip(sources.tolist(), ordinals.tolist()))


@pytest.mark.medium
@given(totals_and_lefts, st.integers(0, 2**52))
@example((2**62 - 1, 2**62 - 2), 2**52)
@example((2**31, 2**31 - 1), 2**52)
@example((2**31 - 1, 1), 2**52)
def test_assign_one_split_equals_oracle(weights: tuple[int, int], start: int) -> None:
    total, left = weights
    samples = np.arange(start, start + 8, dtype=np.int64)
    expected = [loading_oracle.descend(sample, [left], [total], [~0], [~1]) for sample in samples.tolist()]
    assert assign(samples, [left], [total], [~0], [~1]) == expected
