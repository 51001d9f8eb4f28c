"""Packing token sequences into rows of S tokens, and copying rows together.

    lengths (num_docs,) ── split_documents ── by_length ── best_fit ── by_row ──▶ which piece goes to which row
                        ├─ split_by_powers ── by_length ───────────────────────▶ the same; rows of pieces of one length
                        └─ cut_stream ──────────────────────────────────────────▶ the same, in the given order
    tokens ── fill_rows_* ──▶ (num_rows * S,) ids, padded

Best fit is best-fit-decreasing over pieces of at most S tokens (Ding et al., 2024, arXiv 2404.10830): a counting sort by
length, then for each piece the open row with the least room that still holds it. The rooms in use are the leaves of a
binary tree, so a piece costs O(log S) and a pool O(n log S). Ties go to the row last touched; all is a function of `lengths`.
"""

from __future__ import annotations

from typing import Any

from datapipe.kernels import inline, kernel


@kernel("void(Array(int64, 1, 'C', True), int64, int64[::1], int64[::1], int32[::1])")
def split_documents(lengths: Any, sequence_length: Any, piece_document: Any, piece_start: Any, piece_length: Any) -> None:
    """Cuts documents of `lengths` (num_docs,) every `sequence_length` tokens, whole rows first, into (num_pieces,) outputs."""
    piece = 0
    for document in range(lengths.shape[0]):
        start = 0
        while start < lengths[document]:
            piece_document[piece] = document
            piece_start[piece] = start
            piece_length[piece] = min(lengths[document] - start, sequence_length)
            start += sequence_length
            piece += 1


@kernel("void(Array(int64, 1, 'C', True), int64, int64, int64[::1], int64[::1], int32[::1])")
def split_by_powers(
    lengths: Any, sequence_length: Any, min_piece: Any, piece_document: Any, piece_start: Any, piece_length: Any
) -> None:
    """Cuts documents of `lengths` (num_docs,) into powers of two, the largest first; those below `min_piece` are left out.

    `sequence_length`, a power of two, is the largest piece: a document has as many of it as fit, of each smaller one at most
    one. 14 tokens and S = 4 make 4, 4, 4, 2. The outputs, (num_pieces,), are as long as there are pieces.
    """
    piece = 0
    for document in range(lengths.shape[0]):
        start = 0
        power = sequence_length
        while start < lengths[document] and power >= min_piece:
            if lengths[document] - start >= power:
                piece_document[piece] = document
                piece_start[piece] = start
                piece_length[piece] = power
                start += power
                piece += 1
            else:
                power //= 2


@kernel("int64(Array(int64, 1, 'C', True), int64, int64[::1], int64[::1], int32[::1], int64[::1])")
def cut_stream(
    lengths: Any, sequence_length: Any, piece_document: Any, piece_start: Any, piece_length: Any, row_offsets: Any
) -> Any:
    """Lays documents end to end and cuts every `sequence_length` tokens; returns the number of pieces.

    `row_offsets` (num_rows + 1,) starts as zeros; the last row may be short.
    """
    piece = 0
    row = 0
    filled = 0
    for document in range(lengths.shape[0]):
        start = 0
        while start < lengths[document]:
            taken = min(lengths[document] - start, sequence_length - filled)
            piece_document[piece] = document
            piece_start[piece] = start
            piece_length[piece] = taken
            piece += 1
            start += taken
            filled += taken
            if filled == sequence_length:
                row += 1
                row_offsets[row] = piece
                filled = 0
    if filled > 0:
        row_offsets[row + 1] = piece
    return piece


@kernel("void(int32[::1], int64[::1], int64[::1])")
def by_length(piece_length: Any, places: Any, order: Any) -> None:
    """The pieces longest first, equal ones in their order: a counting sort into `order` (num_pieces,).

    `places` (longest + 2,) is working space and starts as zeros.
    """
    for piece in range(piece_length.shape[0]):
        places[piece_length[piece]] += 1
    before = 0
    for length in range(places.shape[0] - 1, -1, -1):
        count = places[length]
        places[length] = before
        before += count
    for piece in range(piece_length.shape[0]):
        order[places[piece_length[piece]]] = piece
        places[piece_length[piece]] += 1


@inline
def _least_room(tree: Any, wanted: Any) -> Any:
    """The least room >= `wanted` that some open row has, or -1. `tree`: (2 * leaves,), leaf r says whether room r is in use."""
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
def _put_room(tree: Any, room: Any) -> None:
    node = tree.shape[0] // 2 + room
    while node > 0 and tree[node] == 0:
        tree[node] = 1
        node //= 2


@inline
def _take_room(tree: Any, room: Any) -> None:
    node = tree.shape[0] // 2 + room
    tree[node] = 0
    while node > 1 and tree[node ^ 1] == 0:
        node //= 2
        tree[node] = 0


@kernel("int64(int32[::1], int64[::1], int64, uint8[::1], int64[::1], int64[::1], int64[::1])")
def best_fit(
    piece_length: Any, order: Any, sequence_length: Any, tree: Any, newest_row: Any, older_row: Any, piece_row: Any
) -> Any:
    """Gives each piece, in `order`, the open row with the least room that holds it; returns the number of rows.

    Args:
        tree: (2 * leaves,) uint8 zeros, leaves a power of two above `sequence_length`.
        newest_row: (sequence_length + 1,) int64, all -1: the row last left with that much room.
        older_row: (num_pieces,) int64: the next row with the same room, a linked list.
        piece_row: (num_pieces,) int64, the result.
    """
    num_rows = 0
    for place in range(order.shape[0]):
        piece = order[place]
        length = piece_length[piece]
        room = _least_room(tree, length)
        if room < 0:
            row = num_rows
            num_rows += 1
            room = sequence_length
        else:
            row = newest_row[room]
            newest_row[room] = older_row[row]
            if newest_row[room] < 0:
                _take_room(tree, room)
        piece_row[piece] = row
        left = room - length
        if left > 0:
            older_row[row] = newest_row[left]
            newest_row[left] = row
            _put_room(tree, left)
    return num_rows


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1])")
def by_row(piece_row: Any, places: Any, row_offsets: Any, order: Any) -> None:
    """Groups pieces by row, in a row by their number: `order` (num_pieces,), cut at `row_offsets` (num_rows + 1,).

    `row_offsets` starts as zeros; `places` (num_rows,) is working space.
    """
    for piece in range(piece_row.shape[0]):
        row_offsets[piece_row[piece] + 1] += 1
    for row in range(places.shape[0]):
        places[row] = row_offsets[row]
        row_offsets[row + 1] += row_offsets[row]
    for piece in range(piece_row.shape[0]):
        order[places[piece_row[piece]]] = piece
        places[piece_row[piece]] += 1


@inline
def _fill_rows(
    tokens: Any, piece_at: Any, piece_length: Any, row_offsets: Any, pad: Any, sequence_length: Any, out: Any
) -> None:
    for row in range(row_offsets.shape[0] - 1):
        at = row * sequence_length
        for piece in range(row_offsets[row], row_offsets[row + 1]):
            length = piece_length[piece]
            source = piece_at[piece]
            for token in range(length):
                out[at + token] = tokens[source + token]
            at += length
        for token in range(at, (row + 1) * sequence_length):
            out[token] = pad


@kernel("void(Array(uint16, 1, 'C', True), int64[::1], int32[::1], int64[::1], int64, int64, uint16[::1])")
def fill_rows_16(
    tokens: Any, piece_at: Any, piece_length: Any, row_offsets: Any, pad: Any, sequence_length: Any, out: Any
) -> None:
    """Copies pieces, at `piece_at` in `tokens`, one after another into rows of `out` (num_rows * S,); the rest is `pad`."""
    _fill_rows(tokens, piece_at, piece_length, row_offsets, pad, sequence_length, out)


@kernel("void(Array(uint32, 1, 'C', True), int64[::1], int32[::1], int64[::1], int64, int64, uint32[::1])")
def fill_rows_32(
    tokens: Any, piece_at: Any, piece_length: Any, row_offsets: Any, pad: Any, sequence_length: Any, out: Any
) -> None:
    """`fill_rows_16` for ids of 32 bits."""
    _fill_rows(tokens, piece_at, piece_length, row_offsets, pad, sequence_length, out)
