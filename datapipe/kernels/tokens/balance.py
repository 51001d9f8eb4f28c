"""Deals the rows of a global batch to ranks so that the ranks' work in attention is even.

    costs 9 1 5 4 3 2, two ranks of three rows    heaviest first to the least loaded rank with room: 9 2 1 | 5 4 3

Graham's longest-first rule (1969); every rank keeps its number of rows.
"""

from __future__ import annotations

from datapipe.kernels import kernel
from datapipe.kernels.types import Int64s, Int64sOut


@kernel
def deal_rows(costs: Int64s, order: Int64s, room: Int64sOut, loads: Int64sOut, out: Int64sOut) -> None:
    """The rank of each row.

    Args:
        costs: (num_rows,) int64, at least 0 each.
        order: (num_rows,) int64, rows in the order in which they are dealt.
        room: (num_ranks,) int64, rows for each rank; they sum to num_rows. Counted down to 0.
        loads: (num_ranks,) int64, zeros; becomes the sum of costs of each rank.
        out: (num_rows,) int64, the result.
    """
    for row in order:
        chosen = -1
        for rank in range(room.shape[0]):
            if room[rank] > 0 and (chosen < 0 or loads[rank] < loads[chosen]):
                chosen = rank
        out[row] = chosen
        room[chosen] -= 1
        loads[chosen] += costs[row]
