"""Components and their survivors by repainting: slow and obviously right."""


def groups(num_nodes: int, edges: list[tuple[int, int]]) -> list[set[int]]:
    """The component of each node."""
    members = [{node} for node in range(num_nodes)]
    for a, b in edges:
        joined = members[a] | members[b]
        for node in joined:
            members[node] = joined
    return members


def labels(num_nodes: int, edges: list[tuple[int, int]]) -> list[int]:
    """The smallest node of each node's component."""
    return list(map(min, groups(num_nodes, edges)))


def survivors(num_nodes: int, edges: list[tuple[int, int]], ranks: list[int]) -> dict[int, int]:
    """Each node but the survivors -> the node of lowest (rank, node) in its component."""
    best = {node: min(group, key=lambda one: (ranks[one], one)) for node, group in enumerate(groups(num_nodes, edges))}
    return {node: survivor for node, survivor in best.items() if node != survivor}
