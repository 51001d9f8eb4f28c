"""The score of every label, computed by the output layer of a fastText model from the means of the texts' features.

    mean  ->  a score for each label    tree_scores (hierarchical softmax)    flat_scores (softmax, or each label by itself)

Unlike those of `fasttext_labels.py`, scores are not rounded, so equal scores are rare and a threshold splits texts well.
Products are float32, summed from the first column to the last; the rest is float64 by `exponential.py`, the same on every
machine. They differ from fastText's by some 1e-6, and by up to 0.008 where fastText looks a sigmoid up in a table of 513
values (losses ns and ova).
"""

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.learned.exponential import exp, logistic
from datapipe.kernels.learned.fasttext_labels import SOFTMAX, FlatLayer, TreeLayer
from datapipe.kernels.types import Float32Matrix, Float32MatrixOut, Float64sOut, Int64s


@kernel
def flat_scores(
    means: Float32Matrix, num_rows: Int64s, layer: FlatLayer, raised: Float64sOut, scores: Float32MatrixOut
) -> None:
    """The scores, (num_docs, num_labels), by means from `embed`; 0 for a text without words. `raised`:
    (num_labels,) scratch."""
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
    """The scores by hierarchical softmax: the product of the chances on the path from the root to each leaf.
    `chances`: (2 * num_labels - 1,) scratch. A node has a higher number than its children, so every node
    comes after its parent."""
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
