"""The amounts of room that the open rows of a packer have: a binary tree that finds the nearest amount in O(log S).

`tree` is (2 * leaves,) uint8, leaves a power of two above S. Leaf r says whether some open row has
room r, and every node whether a leaf below it does. Room 0 is never put in.
"""

from typing import Any

from datapipe.kernels import inline


@inline
def least_room(tree: Any, wanted: Any) -> Any:
    """The least room >= `wanted` of an open row, or -1."""
    leaves = tree.shape[0] // 2
    node = leaves + wanted
    if tree[node] != 0:
        return wanted
    while node > 1 and (node % 2 == 1 or tree[node + 1] == 0):
        node //= 2
    if node <= 1:
        return -1
    node += 1
    while node < leaves:
        node = 2 * node if tree[2 * node] != 0 else 2 * node + 1
    return node - leaves


@inline
def most_room(tree: Any, allowed: Any) -> Any:
    """The most room <= `allowed` of an open row, or -1."""
    leaves = tree.shape[0] // 2
    node = leaves + allowed
    if tree[node] != 0:
        return allowed
    while node > 1 and (node % 2 == 0 or tree[node - 1] == 0):
        node //= 2
    if node <= 1:
        return -1
    node -= 1
    while node < leaves:
        node = 2 * node + 1 if tree[2 * node + 1] != 0 else 2 * node
    return node - leaves


@inline
def put_room(tree: Any, room: Any) -> None:
    node = tree.shape[0] // 2 + room
    while node > 0 and tree[node] == 0:
        tree[node] = 1
        node //= 2


@inline
def take_room(tree: Any, room: Any) -> None:
    node = tree.shape[0] // 2 + room
    tree[node] = 0
    while node > 1 and tree[node ^ 1] == 0:
        node //= 2
        tree[node] = 0
