"""Packs token sequences into rows of S tokens, and copies rows together.

    chunks, longest first ── best_fit ── by_row ──▶ the row of each chunk
    lengths (num_docs,) ── split_by_powers ───────▶ chunks of powers of two
    tokens ── fill_rows ──▶ (num_rows * S,) ids, padded

A chunk is the part of a document that goes to one row, at most S tokens. Best fit is best-fit-decreasing over chunks (Ding et
al., 2024, arXiv 2404.10830): the chunks are sorted by length, then each goes to the open row with the least room that still
holds it, which is found in O(log S), so a pool costs O(n log S). Ties go to the row last touched. The result is a
function of `lengths` alone. `split_to_fill.py` goes on where that leaves too much padding.

The amounts of room of the open rows are a binary tree, (2 * leaves,) uint8, leaves a power of two above S: leaf r is whether
some open row has room r, and every node whether a leaf below it does. Room 0 is never put in.
"""

from typing import Any

from datapipe.kernels import inline, kernel
from datapipe.kernels.types import Int32s, Int32sOut, Int64s, Int64sOut, UInt8sOut, UInt16s, UInt16sOut, UInt32s, UInt32sOut


@kernel
def split_by_powers(
    lengths: Int64s,
    sequence_length: int,
    min_chunk: int,
    chunk_documents: Int64sOut,
    chunk_starts: Int64sOut,
    chunk_lengths: Int32sOut,
) -> None:
    """Cuts documents of `lengths` (num_docs,) into powers of two, the largest first; chunks below `min_chunk` are left out.

    `sequence_length`, a power of two, is the largest chunk. A document has as many of it as fit, and of each smaller power at
    most one: 14 tokens and S = 4 make 4, 4, 4, 2. The outputs are (num_chunks,).
    """
    chunk = 0
    for document in range(lengths.shape[0]):
        start = 0
        power = sequence_length
        while start < lengths[document] and power >= min_chunk:
            if lengths[document] - start >= power:
                chunk_documents[chunk] = document
                chunk_starts[chunk] = start
                chunk_lengths[chunk] = power
                start += power
                chunk += 1
            else:
                power //= 2


@kernel
def best_fit(
    chunk_lengths: Int32s,
    order: Int64s,
    sequence_length: int,
    tree: UInt8sOut,  # (2 * leaves,) zeros, leaves a power of two above `sequence_length`
    newest_row: Int64sOut,  # (sequence_length + 1,), all -1: the row that was last left with that much room
    older_row: Int64sOut,  # (num_chunks,): the next row with the same room, a linked list
    chunk_rows: Int64sOut,  # (num_chunks,), the result
) -> int:
    """Assigns each chunk, in `order`, to the open row with the least room that holds it; returns the number of rows."""
    num_rows = 0
    for chunk in order:
        length = chunk_lengths[chunk]
        room = least_room(tree, length)
        if room < 0:
            row = num_rows
            num_rows += 1
            room = sequence_length
        else:
            row = newest_row[room]
            newest_row[room] = older_row[row]
            if newest_row[room] < 0:
                take_room(tree, room)
        chunk_rows[chunk] = row
        left = room - length
        if left > 0:
            older_row[row] = newest_row[left]
            newest_row[left] = row
            put_room(tree, left)
    return num_rows


@kernel
def by_row(chunk_rows: Int64s, positions: Int64sOut, row_offsets: Int64sOut, order: Int64sOut) -> None:
    """Groups chunks by row, in order of their number: `order` (num_chunks,), cut at `row_offsets` (num_rows + 1,).

    `row_offsets` starts as zeros; `positions` (num_rows,) is scratch.
    """
    for chunk in range(chunk_rows.shape[0]):
        row_offsets[chunk_rows[chunk] + 1] += 1
    for row in range(positions.shape[0]):
        positions[row] = row_offsets[row]
        row_offsets[row + 1] += row_offsets[row]
    for chunk in range(chunk_rows.shape[0]):
        order[positions[chunk_rows[chunk]]] = chunk
        positions[chunk_rows[chunk]] += 1


@kernel
def fill_rows(
    tokens: UInt16s | UInt32s,
    chunk_offsets: Int64s,
    chunk_lengths: Int32s,
    row_offsets: Int64s,
    pad: int,
    sequence_length: int,
    out: UInt16sOut | UInt32sOut,
) -> None:
    """Copies chunks, which start at `chunk_offsets` in `tokens`, to rows of `out` (num_rows * S,); the rest is `pad`."""
    for row in range(row_offsets.shape[0] - 1):
        position = row * sequence_length
        for chunk in range(row_offsets[row], row_offsets[row + 1]):
            length = chunk_lengths[chunk]
            source = chunk_offsets[chunk]
            for token in range(length):
                out[position + token] = tokens[source + token]
            position += length
        for token in range(position, (row + 1) * sequence_length):
            out[token] = pad


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
