"""Components by repainting, and clusters by sets: slow, and right by looking at them."""

from __future__ import annotations

Key = bytes


def labels(num_nodes: int, edges: list[tuple[int, int]]) -> list[int]:
    """The smallest node of each node's component."""
    members = [{node} for node in range(num_nodes)]
    for a, b in edges:
        joined = members[a] | members[b]
        for node in joined:
            members[node] = joined
    return [min(group) for group in members]


def verdicts(edges: list[tuple[Key, Key, int, int, float]]) -> list[tuple[Key, Key, float]]:
    """(key, survivor, value) sorted by key, for edges of (key, other, rank, other_rank, value)."""
    keys = sorted({key for edge in edges for key in edge[:2]})
    rank = {key: place for edge in edges for key, place in ((edge[0], edge[2]), (edge[1], edge[3]))}
    number = {key: place for place, key in enumerate(keys)}
    label = labels(len(keys), [(number[edge[0]], number[edge[1]]) for edge in edges])
    found = []
    for key in keys:
        cluster = [other for other in keys if label[number[other]] == label[number[key]]]
        survivor = min(cluster, key=lambda other: (rank[other], other))
        if key != survivor:
            found.append((key, survivor, max(edge[4] for edge in edges if key in edge[:2])))
    return found
