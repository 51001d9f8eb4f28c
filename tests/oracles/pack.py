"""Packing by definition: lists and linear scans, with no regard for time."""

from __future__ import annotations

from collections.abc import Sequence

Piece = tuple[int, int, int]
"""Document, first token in it, number of tokens."""


def split_documents(lengths: Sequence[int], sequence_length: int) -> list[Piece]:
    """Every document in pieces of `sequence_length` tokens and a remainder."""
    return [
        (document, start, min(length - start, sequence_length))
        for document, length in enumerate(lengths)
        for start in range(0, length, sequence_length)
    ]


def split_by_powers(lengths: Sequence[int], sequence_length: int, min_piece: int) -> list[Piece]:
    """Every document in pieces of `sequence_length` tokens, then one for each digit 1 of what is left in binary."""
    pieces: list[Piece] = []
    for document, length in enumerate(lengths):
        whole, rest = divmod(length, sequence_length)
        powers = [1 << len(digits) for digits in _after_ones(f"{rest:b}")]
        start = 0
        for size in [sequence_length] * whole + powers:
            if size >= min_piece:
                pieces.append((document, start, size))
            start += size
    return pieces


def _after_ones(binary: str) -> list[str]:
    """What follows each digit 1: "101" gives "01" and ""."""
    return [binary[place + 1 :] for place, digit in enumerate(binary) if digit == "1"]


def buckets(lengths: Sequence[int], sequence_length: int, min_piece: int) -> list[list[Piece]]:
    """Rows of pieces of one length, the longest first, pieces in the order of their documents."""
    pieces, rows = split_by_powers(lengths, sequence_length, min_piece), []
    for size in sorted({size for _, _, size in pieces}, reverse=True):
        bucket, per_row = [piece for piece in pieces if piece[2] == size], sequence_length // size
        rows += [bucket[at : at + per_row] for at in range(0, len(bucket), per_row)]
    return rows


def cut_stream(lengths: Sequence[int], sequence_length: int) -> list[list[Piece]]:
    """Rows of the documents laid end to end: one token at a time, joined into pieces again."""
    stream = [(document, token) for document, length in enumerate(lengths) for token in range(length)]
    rows: list[list[Piece]] = []
    for at in range(0, len(stream), sequence_length):
        row: list[Piece] = []
        for document, token in stream[at : at + sequence_length]:
            if row and row[-1][0] == document:
                row[-1] = (document, row[-1][1], row[-1][2] + 1)
            else:
                row.append((document, token, 1))
        rows.append(row)
    return rows


def by_length(lengths: Sequence[int]) -> list[int]:
    """Piece numbers, longest first, equal ones in their order."""
    return sorted(range(len(lengths)), key=lambda piece: -lengths[piece])


def best_fit(lengths: Sequence[int], order: Sequence[int], sequence_length: int) -> list[int]:
    """The row of each piece: of the open rows that hold it the one with least room, of those the one last touched."""
    rooms: list[int] = []
    touched: list[int] = []
    rows = [-1] * len(lengths)
    for time, piece in enumerate(order):
        fitting = [row for row, room in enumerate(rooms) if room >= lengths[piece]]
        if fitting:
            row = min(fitting, key=lambda row: (rooms[row], -touched[row]))
        else:
            row = len(rooms)
            rooms.append(sequence_length)
            touched.append(time)
        rooms[row] -= lengths[piece]
        touched[row] = time
        rows[piece] = row
    return rows


def by_row(rows: Sequence[int], num_rows: int) -> tuple[list[int], list[int]]:
    """Where each row's pieces begin, and the pieces row by row."""
    groups = [[piece for piece, found in enumerate(rows) if found == row] for row in range(num_rows)]
    return [sum(map(len, groups[:row])) for row in range(num_rows + 1)], [piece for group in groups for piece in group]


def fill_rows(
    tokens: Sequence[int], rows: Sequence[Sequence[tuple[int, int]]], pad: int, sequence_length: int
) -> list[list[int]]:
    """Rows of (place in `tokens`, number of tokens), padded to `sequence_length`."""
    filled = [[token for at, length in row for token in tokens[at : at + length]] for row in rows]
    return [row + [pad] * (sequence_length - len(row)) for row in filled]
