"""Rows of `datapipe/kernels/tokens/quota.py`: a tree with a leaf per document of a case, some of enormous weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.tokens import quota as kernels
from tests.oracles import quota as oracle
from tests.support.kernel_table import Case, Row


def _nodes(weights: list[int]) -> np.ndarray:
    """A chain: each node's left child is a leaf, the right one the rest. Leaves are ~leaf."""
    nodes = max(0, len(weights) - 1)
    totals = [sum(weights[node:]) for node in range(nodes)]
    rights = [node + 1 if node + 1 < nodes else ~(node + 1) for node in range(nodes)]
    lines = [[weights[node], totals[node], ~node, rights[node]] for node in range(nodes)]
    return np.array(lines, np.int64).reshape(-1, 4)


def _arguments(case: Case) -> list[Any]:
    generator = case.generator
    exponents = generator.integers(0, 50, max(1, len(case.texts)))
    weights = [int(2**exponent + generator.integers(0, 100)) for exponent in exponents[:500]]
    samples = np.concatenate([np.arange(100), generator.integers(0, 1 << 40, 100)])
    start, stop = int(generator.integers(0, 50)), int(generator.integers(60, 1 << 40))
    leaves = np.stack([generator.permutation(len(weights)), generator.integers(0, 1000, len(weights))], axis=1)
    return [samples, start, stop, _nodes(weights), leaves, np.full_like(samples, -5), np.full_like(samples, -5)]


def _expected(samples: np.ndarray, start: int, stop: int, nodes: np.ndarray, leaves: np.ndarray) -> tuple[int, list[Any]]:
    inside = [sample if start <= sample < stop else None for sample in samples.tolist()]
    tree, held, drawn = nodes.T.tolist(), leaves.tolist(), list[tuple[int, int]]()
    for sample in inside:
        leaf, ordinal = (-1, 0) if sample is None else oracle.descend(sample - start, *tree)
        drawn.append((-5, -5) if sample is None else (held[leaf][0], held[leaf][1] + ordinal))
    return inside.count(None), [[source for source, _ in drawn], [ordinal for _, ordinal in drawn]]


ROWS = [Row(kernel=kernels.assign, arguments=_arguments, oracle=_expected, num_outputs=2)]
