"""Maps sample numbers to sources by walking down a tree of two-way splits; `loader/order/mixing.py` has the method and its
bound.
"""

from __future__ import annotations

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.types import Int64s, Int64sOut


@inline
def left_count(count: np.int64, left: np.int64, total: np.int64) -> np.int64:
    """floor((count * left + floor(total / 2)) / total), exactly, for 0 <= left <= total < 2^62 and any count.

    The quotient of count by total is taken out first, so only a product of two numbers below total remains. Below 2^31 the
    product fits; above, it is multiplied and divided bit by bit, and the remainder stays below total.
    """
    whole, rest = count // total, count % total
    half = total // np.int64(2)
    if total < np.int64(1) << np.int64(31):
        return whole * left + (rest * left + half) // total
    quotient, remainder = np.int64(0), np.int64(0)
    for bit in range(61, -1, -1):
        quotient, remainder = quotient * np.int64(2), remainder * np.int64(2)
        if remainder >= total:
            quotient, remainder = quotient + np.int64(1), remainder - total
        if (left >> np.int64(bit)) & np.int64(1):
            remainder += rest
            if remainder >= total:
                quotient, remainder = quotient + np.int64(1), remainder - total
    if remainder + half >= total:
        quotient += np.int64(1)
    return whole * left + quotient


@kernel
def descend(
    samples: Int64s, left_weights: Int64s, totals: Int64s, lefts: Int64s, rights: Int64s, leaves: Int64sOut, ordinals: Int64sOut
) -> None:
    """The leaf of each sample, and its ordinal among the samples of that leaf.

    Args:
        samples: (n,) int64, sample numbers from 0.
        left_weights: (num_nodes,) int64, the weight below the left child; node 0 is the root. Without nodes leaf 0 is the only
            one.
        totals: (num_nodes,) int64, the weight below both children.
        lefts: (num_nodes,) int64, a node, or ~leaf.
        rights: (num_nodes,) int64, likewise.
        leaves: (n,) int64, the result.
        ordinals: (n,) int64, the result.
    """
    for i in range(len(samples)):
        number = samples[i]
        node = np.int64(0) if len(totals) > 0 else np.int64(-1)
        while node >= 0:
            before = left_count(number, left_weights[node], totals[node])
            if left_count(number + 1, left_weights[node], totals[node]) > before:
                number = before
                node = lefts[node]
            else:
                number = number - before
                node = rights[node]
        leaves[i] = ~node
        ordinals[i] = number
