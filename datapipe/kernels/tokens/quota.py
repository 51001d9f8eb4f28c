"""Maps sample numbers to sources by a tree of two-way splits; see `loader/order/mixing.py`."""

from typing import Any

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.types import Int64Matrix, Int64s, Int64sOut


@inline
def _left_count(count: Any, left: Any, total: Any) -> Any:
    """floor((count * left + floor(total / 2)) / total) and the remainder, exactly, for 0 <= left <= total < 2^62 and any count.

    The quotient of count by total is taken out first, so only a product of two numbers below total remains. Below 2^31 the
    product fits; above, it is multiplied and divided bit by bit, and the remainder stays below total.
    """
    whole, rest = count // total, count % total
    half = total // np.int64(2)
    if total < np.int64(1) << np.int64(31):
        product = rest * left + half
        quotient = product // total
        return whole * left + quotient, product - quotient * total
    quotient, remainder = np.int64(0), np.int64(0)
    for bit in range(61, -1, -1):
        quotient, remainder = quotient * np.int64(2), remainder * np.int64(2)
        if remainder >= total:
            quotient, remainder = quotient + np.int64(1), remainder - total
        if (left >> np.int64(bit)) & np.int64(1):
            remainder += rest
            if remainder >= total:
                quotient, remainder = quotient + np.int64(1), remainder - total
    remainder += half
    if remainder >= total:
        quotient, remainder = quotient + np.int64(1), remainder - total
    return whole * left + quotient, remainder


@kernel
def assign(
    samples: Int64s, start: int, stop: int, nodes: Int64Matrix, leaves: Int64Matrix, sources: Int64sOut, ordinals: Int64sOut
) -> int:
    """The source of each sample of a segment, and its ordinal among the samples of that source.

    Args:
        samples: (n,) int64, sample numbers.
        start, stop: of the segment. Other samples are left alone; their number is returned.
        nodes: (num_nodes, 4) int64, of each node the weight below its left child, the weight below both children, and the
            children: nodes, or ~leaf. Node 0 is the root; without nodes leaf 0 is the only one.
        leaves: (num_leaves, 2) int64, the source of each leaf and its samples before the segment.
        sources, ordinals: (n,) int64, the result.
    """
    others = 0
    for i in range(len(samples)):
        if not start <= samples[i] < stop:
            others += 1
            continue
        number = samples[i] - start
        node = np.int64(0) if len(nodes) > 0 else np.int64(-1)
        while node >= 0:
            left, total = nodes[node, 0], nodes[node, 1]
            before, remainder = _left_count(number, left, total)
            if remainder >= total - left:  # the left child's count rises with the next sample
                number, node = before, nodes[node, 2]
            else:
                number, node = number - before, nodes[node, 3]
        sources[i] = leaves[~node, 0]
        ordinals[i] = number + leaves[~node, 1]
    return others
