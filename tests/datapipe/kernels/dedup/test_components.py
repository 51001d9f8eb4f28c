"""Components against repainting, whatever the order of the edges."""

from __future__ import annotations

import numpy as np
import pytest

from datapipe.kernels.dedup.components import connected_components


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled", "halves"])
def test_connected_components_chain_of_100_000_is_one(order: str) -> None:
    links = np.arange(99_999)
    if order == "descending":
        links = links[::-1]
    elif order == "shuffled":
        links = np.random.default_rng(1).permutation(links)
    elif order == "halves":  # joins runs of 2, then of 4, then of 8, ...: the deepest trees that a union can make
        links = links[np.argsort([(number + 1) & -(number + 1) for number in links.tolist()], kind="stable")]
    assert not connected_components(100_000, links, links + 1).any()


def test_connected_components_chain_over_shuffled_nodes_is_one() -> None:
    nodes = np.random.default_rng(2).permutation(100_000)
    assert not connected_components(100_000, nodes[:-1], nodes[1:]).any()


def test_connected_components_order_of_edges_does_not_matter() -> None:
    generator = np.random.default_rng(3)
    edges = generator.integers(0, 2000, (1500, 2))
    expected = connected_components(2000, edges[:, 0], edges[:, 1])
    for _ in range(5):
        generator.shuffle(edges)
        turned = np.where(generator.random(1500) < 0.5, 0, 1)
        rows = np.arange(1500)
        assert np.array_equal(connected_components(2000, edges[rows, turned], edges[rows, 1 - turned]), expected)
