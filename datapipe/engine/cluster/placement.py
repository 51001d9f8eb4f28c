"""Whether any node of a cluster can run a task: what the task reserves, against all that each node has.

A task that waits for busy nodes is placed in the end. One that reserves more than any node has waits for ever, unless the
cluster grows: the driver tells of it, and ends the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def lack_of(reserved: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> str:
    """What no node has, in words; empty where a node has all of it. A cluster has nodes as long as it lives.

    Args:
        reserved: by resource: {"CPU": 1.0, "GPU": 1.0, "memory": 2e9}.
        nodes: the resources that each node has when nothing runs.
    """
    if not nodes:
        return "a node: none of the cluster is alive"
    if any(all(node.get(name, 0.0) >= amount for name, amount in reserved.items()) for node in nodes):
        return ""
    wanted = ", ".join(_amount(name, amount) for name, amount in reserved.items() if amount)
    listed = sorted({", ".join(_amount(name, node.get(name, 0.0)) for name in reserved) for node in nodes})
    return f"a node with {wanted}: the cluster has nodes with {' and '.join(listed)}"


def _amount(name: str, amount: float) -> str:
    return f"{amount / 1e9:.1f} GB of memory" if name == "memory" else f"{amount:g} {name}"
