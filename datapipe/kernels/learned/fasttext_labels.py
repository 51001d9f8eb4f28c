"""The best labels of texts, computed by the output layer of a fastText model from the means of the texts' features.

    mean  ->  labels and scores    tree_labels (hierarchical softmax)    flat_labels (softmax, or each label by itself)

All is float32 and in fastText's order of sums: the output matrix of `flat_labels` is transposed, so that its inner loop is
vectorised over labels. Of equal scores the label visited last is the better, as in fastText's heap. Scores are rounded.

    mean  ->  a score for each label    tree_scores, flat_scores

These scores are not rounded, so equal scores are rare and a threshold splits texts well. Products are float32, summed from
the first column to the last; the rest is float64 by `exponential.py`, the same on every machine. They differ from fastText's
by some 1e-6, and by up to 0.008 where fastText takes a sigmoid from a table of 513 values (losses ns and ova).
"""

import math
from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.learned.exponential import exp, logistic
from datapipe.kernels.types import (
    Float32Matrix,
    Float32MatrixOut,
    Float32s,
    Float32sOut,
    Float64MatrixOut,
    Float64sOut,
    Int32MatrixOut,
    Int32s,
    Int32sOut,
    Int64s,
)

SCORE_DIGITS = 4  # decimal digits of scores: the last bits of a float decide nothing
SOFTMAX, SIGMOID = 0, 1
"""Scores of `flat_labels`. SOFTMAX: over all labels together. SIGMOID: of each label by itself."""

_SCALE = 10.0**SCORE_DIGITS
_SMALLEST = 1e-5  # what fastText adds before it takes a logarithm
_LEAST_SCORE = np.float32(math.log(_SMALLEST))
_ONE, _MAX_SIGMOID, _SIGMOID_STEPS = np.float32(1), np.float32(8), np.float32(512)


class TreeLayer(NamedTuple):
    """The output layer of hierarchical softmax: an input of kernels."""

    output: Float32Matrix  # (num_labels, dim); the row of an inner node is its number less `num_labels`
    norms: Float32s  # (num_labels,), the factor of the products of each row
    # left, right: (2 * num_labels - 1,), the children of each node, -1 for leaves; the root is the last
    left: Int32s
    right: Int32s


class FlatLayer(NamedTuple):
    """An output layer with a row for every label: an input of kernels."""

    output: Float32Matrix  # (dim, num_labels), transposed
    norms: Float32s  # (num_labels,), the factor of the products of each label
    kind: int  # SOFTMAX or SIGMOID
    sigmoids: Float32s  # (513,), fastText's table over -8 to 8; unused by SOFTMAX


class TreeScratch(NamedTuple):
    """The stack of a walk over a tree, an output of kernels: (num_labels + 1,) nodes and the scores of their paths."""

    nodes: Int32sOut
    paths: Float32sOut


@kernel
def tree_labels(
    # means, num_rows: from `embed`
    means: Float32Matrix,
    num_rows: Int64s,
    layer: TreeLayer,
    scratch: TreeScratch,
    best: Float32sOut,
    labels: Int32MatrixOut,  # (num_docs, k), the best first; -1 where there are fewer
    scores: Float64MatrixOut,  # (num_docs, k), rounded; 0 where there are fewer
) -> None:
    """The best labels of each text by hierarchical softmax: the leaves with the likeliest paths
    from the root. `means`, `num_rows`: from `embed`. `labels`: (num_docs, k), the best first; -1
    where there are fewer. `scores`: the same, 0 where there are fewer."""
    output, norms, left, right = layer
    nodes, paths = scratch
    num_labels = len(output)
    for doc in range(len(means)):
        labels[doc], scores[doc], num_labels_found = -1, 0, 0
        depth, nodes[0], paths[0] = 1 if num_rows[doc] else 0, len(left) - 1, 0
        while depth:
            depth -= 1
            node, path = nodes[depth], paths[depth]
            if path < _LEAST_SCORE or (num_labels_found == len(best) and path < best[num_labels_found - 1]):
                continue
            if left[node] < 0:
                num_labels_found = _insert(best, labels[doc], num_labels_found, path, node)
                continue
            product = np.float32(0)
            for column in range(output.shape[1]):
                product += output[node - num_labels, column] * means[doc, column]
            product *= norms[node - num_labels]
            chance = np.float32(1.0 / np.float64(_ONE + np.exp(-product)))
            nodes[depth], paths[depth] = right[node], path + _log(chance)
            nodes[depth + 1], paths[depth + 1] = left[node], path + _log(np.float32(1.0 - np.float64(chance)))
            depth += 2
        _round(best, num_labels_found, scores[doc])


@kernel
def flat_labels(
    means: Float32Matrix,
    num_rows: Int64s,
    layer: FlatLayer,
    chances: Float32sOut,
    best: Float32sOut,
    labels: Int32MatrixOut,
    scores: Float64MatrixOut,
) -> None:
    """`tree_labels` where every label has a row. `chances`: (num_labels,) scratch."""
    output, norms, kind, sigmoids = layer
    for doc in range(len(means)):
        labels[doc], scores[doc], num_labels_found = -1, 0, 0
        if num_rows[doc] == 0:
            continue
        chances[:] = 0
        for column in range(len(output)):
            for label in range(len(chances)):
                chances[label] += output[column, label] * means[doc, column]
        for label in range(len(chances)):
            chances[label] *= norms[label]
        if kind == SOFTMAX:
            _softmax(chances)
        for label in range(len(chances)):
            score = _log(chances[label] if kind == SOFTMAX else _sigmoid(chances[label], sigmoids))
            if not (num_labels_found == len(best) and score < best[num_labels_found - 1]):
                num_labels_found = _insert(best, labels[doc], num_labels_found, score, label)
        _round(best, num_labels_found, scores[doc])


@inline
def _softmax(chances) -> None:
    most, total = chances[0], np.float32(0)
    for label in range(len(chances)):
        most = max(most, chances[label])
    for label in range(len(chances)):
        chances[label] = np.exp(np.float32(chances[label] - most))
        total += chances[label]
    for label in range(len(chances)):
        chances[label] /= total


@inline
def _sigmoid(product, sigmoids) -> Any:
    if product < -_MAX_SIGMOID:
        return np.float32(0)
    if product > _MAX_SIGMOID:
        return _ONE
    return sigmoids[np.int64((product + _MAX_SIGMOID) * _SIGMOID_STEPS / _MAX_SIGMOID / np.float32(2))]


@inline
def _log(chance) -> Any:
    return np.float32(math.log(np.float64(chance) + _SMALLEST))


@inline
def _insert(best, labels, num_labels_found, score, label) -> Any:
    """Inserts a label among the best, before its equals; returns the number of labels held."""
    rank = min(num_labels_found, len(best) - 1)
    while rank > 0 and best[rank - 1] <= score:
        best[rank], labels[rank] = best[rank - 1], labels[rank - 1]
        rank -= 1
    best[rank], labels[rank] = score, label
    return min(num_labels_found + 1, len(best))


@inline
def _round(best, num_labels_found, scores) -> None:
    for rank in range(num_labels_found):
        scores[rank] = min(np.rint(np.float64(np.exp(best[rank])) * _SCALE) / _SCALE, 1.0)


@kernel
def flat_scores(
    means: Float32Matrix, num_rows: Int64s, layer: FlatLayer, raised: Float64sOut, scores: Float32MatrixOut
) -> None:
    """Scores (num_docs, num_labels); 0 without words. `raised`: (num_labels,) scratch."""
    output, norms, kind, _ = layer
    for doc in range(len(means)):
        scores[doc] = 0
        if num_rows[doc] == 0:
            continue
        products, total = scores[doc], 0.0
        for column in range(len(output)):
            for label in range(len(norms)):
                products[label] += output[column, label] * means[doc, column]
        for label in range(len(norms)):
            products[label] *= norms[label]
        most = np.float64(products.max())
        for label in range(len(norms)):
            raised[label] = (
                exp(np.float64(products[label]) - most) if kind == SOFTMAX else logistic(np.float64(products[label]))
            )
            total += raised[label]
        for label in range(len(norms)):
            scores[doc, label] = raised[label] / total if kind == SOFTMAX else raised[label]


@kernel
def tree_scores(
    means: Float32Matrix, num_rows: Int64s, layer: TreeLayer, chances: Float64sOut, scores: Float32MatrixOut
) -> None:
    """The scores by hierarchical softmax: the product of chances on the path from root to leaf. A
    node has a higher number than its children. `chances`: (2 * num_labels - 1,) scratch."""
    output, norms, left, right = layer
    num_labels = len(output)
    for doc in range(len(means)):
        chances[:] = 0
        chances[-1] = 1.0 if num_rows[doc] else 0.0
        for node in range(len(left) - 1, num_labels - 1, -1):
            product = np.float32(0)
            for column in range(output.shape[1]):
                product += output[node - num_labels, column] * means[doc, column]
            product *= norms[node - num_labels]
            chances[right[node]] = chances[node] * logistic(np.float64(product))
            chances[left[node]] = chances[node] * logistic(-np.float64(product))
        for label in range(num_labels):
            scores[doc, label] = chances[label]
