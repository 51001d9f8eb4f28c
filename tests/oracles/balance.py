"""Dealing rows, written plainly."""

from __future__ import annotations


def deal_rows(costs: list[int], order: list[int], room: list[int]) -> tuple[list[int], list[int], list[int]]:
    """The rest of `room`, the load of each rank, and the rank of each row."""
    hands: list[list[int]] = [[] for _ in room]
    for row in order:
        open_ranks = [rank for rank, hand in enumerate(hands) if len(hand) < room[rank]]
        hands[min(open_ranks, key=lambda rank: sum(costs[held] for held in hands[rank]))].append(row)
    rank_of = {row: rank for rank, hand in enumerate(hands) for row in hand}
    loads = [sum(costs[row] for row in hand) for hand in hands]
    return [0] * len(room), loads, [rank_of[row] for row in range(len(costs))]
