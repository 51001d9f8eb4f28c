"""Rows of `datapipe/kernels/learned/fasttext_scores.py`: the random layers of the rows of labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.learned import fasttext_labels, fasttext_scores
from tests.oracles import fasttext as oracle
from tests.support.kernel_rows.fasttext_labels import NUM_LABELS, flat_layer, means_of, tree_layer
from tests.support.kernel_table import Case, Row


def _row(kind: int | None) -> Row:
    def arguments(case: Case) -> list[Any]:
        means, scores = means_of(case), np.empty((len(case.texts), NUM_LABELS), np.float32)
        if kind is None:
            return [*means, tree_layer(case), np.empty(2 * NUM_LABELS - 1), scores]
        return [*means, flat_layer(case, kind), np.empty(NUM_LABELS), scores]

    if kind is None:
        return Row(kernel=fasttext_scores.tree_scores, arguments=arguments, oracle=_of_tree)
    variant = "softmax" if kind == fasttext_labels.SOFTMAX else "sigmoid"
    return Row(kernel=fasttext_scores.flat_scores, arguments=arguments, oracle=_of_flat, variant=variant)


def _of_tree(means: np.ndarray, num_rows: np.ndarray, layer: fasttext_labels.TreeLayer, _: Any) -> tuple[None, list[Any]]:
    scores = np.zeros((len(means), NUM_LABELS))
    for doc in np.flatnonzero(num_rows):
        products = [oracle.dot(row, means[doc]) * norm for row, norm in zip(layer.output, layer.norms)]
        found = oracle.chances(len(layer.left) - 1, 1.0, np.array(products), layer.left, layer.right)
        scores[doc, list(found)] = list(found.values())
    return None, [scores]


def _of_flat(means: np.ndarray, num_rows: np.ndarray, layer: fasttext_labels.FlatLayer, _: Any) -> tuple[None, list[Any]]:
    scores = np.zeros((len(means), NUM_LABELS))
    for doc in np.flatnonzero(num_rows):
        products = np.array([oracle.dot(row, means[doc]) * norm for row, norm in zip(layer.output.T, layer.norms)])
        is_softmax = layer.kind == fasttext_labels.SOFTMAX
        scores[doc] = oracle.softmax_scores(products) if is_softmax else [oracle.logistic(float(each)) for each in products]
    return None, [scores]


ROWS = [_row(fasttext_labels.SOFTMAX), _row(fasttext_labels.SIGMOID), _row(None)]
