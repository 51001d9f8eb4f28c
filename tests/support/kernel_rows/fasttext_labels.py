"""Rows of `datapipe/kernels/learned/fasttext_labels.py`: random trees and output matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.learned import fasttext_labels as kernels
from datapipe.kernels.types import input_record
from tests.oracles import fasttext as oracle
from tests.support.kernel_table import Case, Row

NUM_LABELS, _DIM = 9, 21


def means_of(case: Case) -> list[np.ndarray]:
    """Means of the case's texts, some of them without a row."""
    rng, num_docs = case.generator, len(case.texts)
    return [rng.standard_normal((num_docs, _DIM)).astype(np.float32), rng.integers(0, 3, num_docs)]


def _outputs(case: Case, k: int) -> list[np.ndarray]:
    return [np.empty(k, np.float32), np.empty((len(case.texts), k), np.int32), np.empty((len(case.texts), k))]


def _norms(case: Case) -> np.ndarray:
    return case.generator.random(NUM_LABELS).astype(np.float32)


def tree_layer(case: Case) -> kernels.TreeLayer:
    """A random tree."""
    children, free = np.full((2, 2 * NUM_LABELS - 1), -1, np.int32), list(range(NUM_LABELS))
    for node in range(NUM_LABELS, 2 * NUM_LABELS - 1):
        children[:, node] = [free.pop(int(case.generator.integers(len(free)))) for _ in range(2)]
        free.append(node)
    output = case.generator.standard_normal((NUM_LABELS, _DIM)).astype(np.float32)
    return input_record(kernels.TreeLayer, (output, _norms(case), *children))


def flat_layer(case: Case, kind: int) -> kernels.FlatLayer:
    """A random row for each label."""
    output = case.generator.standard_normal((_DIM, NUM_LABELS)).astype(np.float32)
    return input_record(kernels.FlatLayer, (output, _norms(case), kind, np.linspace(0, 1, 513).astype(np.float32)))


def _tree_row(k: int) -> Row:
    def arguments(case: Case) -> list[Any]:
        means, layer = means_of(case), tree_layer(case)
        scratch = kernels.TreeScratch(np.empty(NUM_LABELS + 1, np.int32), np.empty(NUM_LABELS + 1, np.float32))
        return [*means, layer, scratch, *_outputs(case, k)]

    return Row(kernel=kernels.tree_labels, arguments=arguments, oracle=_of_tree, num_outputs=2, variant=f"{k} best")


def _of_tree(*inputs: Any) -> tuple[None, list[Any]]:
    means, num_rows, (output, norms, left, right), _, best = inputs
    root = len(left) - 1
    scored = [
        oracle.leaves(root, np.float32(0), mean, output, norms, left, right) if any_row else []
        for mean, any_row in zip(means, num_rows)
    ]
    return None, _best_of_all(scored, len(best))


def _flat_row(kind: int, k: int) -> Row:
    def arguments(case: Case) -> list[Any]:
        return [*means_of(case), flat_layer(case, kind), np.empty(NUM_LABELS, np.float32), *_outputs(case, k)]

    variant = f"{'softmax' if kind == kernels.SOFTMAX else 'sigmoid'} {k} best"
    return Row(kernel=kernels.flat_labels, arguments=arguments, oracle=_of_flat, num_outputs=2, variant=variant)


def _of_flat(*inputs: Any) -> tuple[None, list[Any]]:
    means, num_rows, (output, norms, kind, sigmoids), _, best = inputs
    scored = []
    for mean, any_row in zip(means, num_rows):
        products = np.array([oracle.dot(output[:, label], mean) * norms[label] for label in range(NUM_LABELS)])
        is_softmax = kind == kernels.SOFTMAX
        chances = oracle.softmax(products) if is_softmax else [oracle.sigmoid(product, sigmoids) for product in products]
        scored.append([(oracle.log(float(chance)), label) for label, chance in enumerate(chances)] if any_row else [])
    return None, _best_of_all(scored, len(best))


def _best_of_all(scored: list[list[tuple[np.float32, int]]], k: int) -> list[Any]:
    best = [oracle.best(scores_of_text, k) for scores_of_text in scored]
    return [[labels for labels, _ in best], [scores for _, scores in best]]


ROWS = [
    *map(_tree_row, (1, 4, 20)),
    *[_flat_row(kind, k) for kind in (kernels.SOFTMAX, kernels.SIGMOID) for k in (1, 4, 20)],
]
