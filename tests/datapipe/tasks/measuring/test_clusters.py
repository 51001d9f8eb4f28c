"""Samples of clusters: exact until there are too many, then uniform, and the same for any tasks."""

from __future__ import annotations

import numpy as np
import pytest

from datapipe.columns import make_keys
from datapipe.tasks.measuring.clusters import ClusterSample


def _dropped(num_clusters: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Survivors of dropped documents, in any order: file hashes and positions."""
    generator = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(num_clusters), generator.integers(1, 6, num_clusters))
    generator.shuffle(clusters)
    return (clusters % 7).astype(np.uint64), clusters.astype(np.uint64)


def _sample(halves: tuple[np.ndarray, np.ndarray], most: int, batches: int) -> ClusterSample:
    sample = ClusterSample(most)
    for files, positions in zip(*(np.array_split(half, batches) for half in halves)):
        sample.add(make_keys(files, positions), np.ones(len(files), np.int64))
    return sample


def _of(sample: ClusterSample) -> dict[bytes, int]:
    keys, dropped = sample.clusters()
    return dict(zip(keys.to_pylist(), dropped.tolist()))


def test_few_clusters_are_counted_exactly() -> None:
    halves = _dropped(300, seed=1)

    sample = _sample(halves, most=300, batches=11)

    expected: dict[bytes, int] = {}
    for key in make_keys(*halves).to_pylist():
        expected[key] = expected.get(key, 0) + 1
    assert _of(sample) == expected
    assert sample.halvings == 0


@pytest.mark.parametrize("tasks", [1, 2, 9])
def test_the_sample_of_many_clusters_does_not_depend_on_the_tasks(tasks: int) -> None:
    halves = _dropped(5_000, seed=2)
    whole = _sample(halves, most=200, batches=1)

    merged = ClusterSample(200)
    for files, positions in zip(*(np.array_split(half, tasks) for half in halves)):
        part = _sample((files, positions), most=200, batches=3)
        keys, dropped = part.clusters()
        merged.add(keys, dropped, part.halvings)

    assert _of(merged) == _of(whole)
    assert merged.halvings == whole.halvings
    assert 50 < len(_of(whole)) <= 200
    exact = _of(_sample(halves, most=10_000, batches=1))
    assert all(exact[key] == dropped for key, dropped in _of(whole).items())
