"""Connected components of the graph of similar documents, by union-find.

    edges (0, 3) (3, 5) (1, 2)   ->   labels 0 1 1 0 4 0: the smallest node of each component

The order of the edges does not matter. A root is the smallest node of its tree, and every search
halves its path, so a chain of n nodes costs O(n log n).
"""

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.types import Int64s, Int64sOut


def connected_components(num_nodes: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The smallest node of each node's component, (num_nodes,) int64. `a`, `b`: (num_edges,) int64, the ends of each edge."""
    labels = np.empty(num_nodes, np.int64)
    join(np.ascontiguousarray(a, np.int64), np.ascontiguousarray(b, np.int64), labels)
    return labels


@inline
def _find(parents, node):
    """The root of `node`. Path halving: every node on the way gets its grandparent as parent."""
    while parents[node] != node:
        parents[node] = parents[parents[node]]
        node = parents[node]
    return node


@kernel
def join(a: Int64s, b: Int64s, labels: Int64sOut) -> None:
    """Labels every node with the smallest node of its component; see `connected_components`."""
    for node in range(len(labels)):
        labels[node] = node
    for edge in range(len(a)):
        first, second = _find(labels, a[edge]), _find(labels, b[edge])
        if first < second:
            labels[second] = first
        else:
            labels[first] = second
    for node in range(len(labels)):  # a parent is never greater than its child, so its label is final
        labels[node] = labels[labels[node]]
