"""Walking the split tree with Python's own integers."""

from __future__ import annotations


def descend(number: int, left_weights: list[int], totals: list[int], lefts: list[int], rights: list[int]) -> tuple[int, int]:
    """Leaf and ordinal of sample `number`: at each node it takes the left child where the child's count rises."""
    node = 0 if totals else -1
    while node >= 0:
        before, after = ((count * left_weights[node] + totals[node] // 2) // totals[node] for count in (number, number + 1))
        node, number = (lefts[node], before) if after > before else (rights[node], number - before)
    return ~node, number
