"""Rows of `datapipe/kernels/loader/quota.py`: a tree with a leaf per document of a case, some of enormous weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.loader import quota as kernels
from tests.oracles import quota as oracle
from tests.support.kernel_table import Case, Row


def _tree(weights: list[int]) -> list[np.ndarray]:
    """A chain: each node's left child is a leaf, the right one the rest. Leaves are ~leaf."""
    nodes = max(0, len(weights) - 1)
    totals = [sum(weights[node:]) for node in range(nodes)]
    lefts = [~node for node in range(nodes)]
    rights = [node + 1 if node + 1 < nodes else ~(node + 1) for node in range(nodes)]
    return [np.array(column, np.int64) for column in (weights[:nodes], totals, lefts, rights)]


def _arguments(case: Case) -> list[Any]:
    generator = case.generator
    exponents = generator.integers(0, 50, max(1, len(case.texts)))
    weights = [int(2**exponent + generator.integers(0, 100)) for exponent in exponents[:500]]
    samples = np.concatenate([np.arange(100), generator.integers(0, 1 << 40, 100)])
    return [samples, *_tree(weights), np.empty_like(samples), np.empty_like(samples)]


def _expected(samples: np.ndarray, *tree: np.ndarray) -> tuple[None, list[Any]]:
    leaves = [oracle.descend(sample, *(column.tolist() for column in tree)) for sample in samples.tolist()]
    return None, [[leaf for leaf, _ in leaves], [ordinal for _, ordinal in leaves]]


ROWS = [Row(kernel=kernels.descend, arguments=_arguments, oracle=_expected, num_outputs=2)]
