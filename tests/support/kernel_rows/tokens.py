"""Rows of `datapipe/kernels/tokens` that deal rows; those that find and copy rows are in `loading`."""

from __future__ import annotations

import numpy as np

from datapipe.kernels.tokens import quota
from tests.oracles import loading as loading_oracle
from tests.support.kernel_table import Case, Steps, row


def _tree(case: Case) -> np.ndarray:
    """A tree with a leaf per document, some of enormous weight: each node's left child is a leaf, the right one the rest."""
    exponents = case.generator.integers(0, 50, max(1, len(case.texts)))
    weights = [int(2**exponent + case.generator.integers(0, 100)) for exponent in exponents[:500]]
    last = len(weights) - 1
    lines = [[weights[node], sum(weights[node:]), ~node, node + 1 if node + 1 < last else ~last] for node in range(last)]
    return np.array(lines, np.int64).reshape(-1, 4)


@row(quota.assign)
def assign(case: Case) -> Steps:
    generator, nodes = case.generator, _tree(case)
    samples = np.concatenate([np.arange(100), generator.integers(0, 1 << 40, 100)])
    start, stop = int(generator.integers(0, 50)), int(generator.integers(60, 1 << 40))
    leaves = np.stack([generator.permutation(len(nodes) + 1), generator.integers(0, 1000, len(nodes) + 1)], axis=1)
    yield [samples, start, stop, nodes, leaves], [np.full_like(samples, -5), np.full_like(samples, -5)]
    drawn, outside = list[tuple[int, int]](), 0
    for sample in samples.tolist():
        if start <= sample < stop:
            leaf, ordinal = loading_oracle.descend(sample - start, *nodes.T.tolist())
            drawn.append((int(leaves[leaf, 0]), int(leaves[leaf, 1]) + ordinal))
        else:
            drawn.append((-5, -5))
            outside += 1
    yield outside, [[source for source, _ in drawn], [ordinal for _, ordinal in drawn]]
