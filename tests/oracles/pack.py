"""Packing by definition: lists and linear scans, regardless of time."""

from __future__ import annotations

from collections.abc import Sequence

Chunk = tuple[int, int, int]
"""Document, first token in it, number of tokens."""


def split_documents(lengths: Sequence[int], sequence_length: int) -> list[Chunk]:
    """Every document in chunks of `sequence_length` tokens and a remainder."""
    return [
        (document, start, min(length - start, sequence_length))
        for document, length in enumerate(lengths)
        for start in range(0, length, sequence_length)
    ]


def split_by_powers(lengths: Sequence[int], sequence_length: int, min_chunk: int) -> list[Chunk]:
    """Every document in chunks of `sequence_length` tokens, then one for each digit 1 of the remainder in binary."""
    chunks: list[Chunk] = []
    for document, length in enumerate(lengths):
        whole, rest = divmod(length, sequence_length)
        powers = [1 << len(digits) for digits in _after_ones(f"{rest:b}")]
        start = 0
        for size in [sequence_length] * whole + powers:
            if size >= min_chunk:
                chunks.append((document, start, size))
            start += size
    return chunks


def _after_ones(binary: str) -> list[str]:
    """The digits after each digit 1: "101" gives "01" and ""."""
    return [binary[index + 1 :] for index, digit in enumerate(binary) if digit == "1"]


def buckets(lengths: Sequence[int], sequence_length: int, min_chunk: int) -> list[list[Chunk]]:
    """Rows of chunks of one length, the longest first; chunks in the order of their documents."""
    chunks, rows = split_by_powers(lengths, sequence_length, min_chunk), []
    for size in sorted({size for _, _, size in chunks}, reverse=True):
        bucket, per_row = [chunk for chunk in chunks if chunk[2] == size], sequence_length // size
        rows += [bucket[index : index + per_row] for index in range(0, len(bucket), per_row)]
    return rows


def cut_stream(lengths: Sequence[int], sequence_length: int) -> list[list[Chunk]]:
    """Rows of the documents laid end to end, one token at a time; neighbouring tokens of a document then form a chunk."""
    stream = [(document, token) for document, length in enumerate(lengths) for token in range(length)]
    rows: list[list[Chunk]] = []
    for index in range(0, len(stream), sequence_length):
        row: list[Chunk] = []
        for document, token in stream[index : index + sequence_length]:
            if row and row[-1][0] == document:
                row[-1] = (document, row[-1][1], row[-1][2] + 1)
            else:
                row.append((document, token, 1))
        rows.append(row)
    return rows


def by_length(lengths: Sequence[int]) -> list[int]:
    """Chunk numbers, longest first, equal ones in their order."""
    return sorted(range(len(lengths)), key=lambda chunk: -lengths[chunk])


def best_fit(lengths: Sequence[int], order: Sequence[int], sequence_length: int) -> list[int]:
    """The row of each chunk: the open row with least room that holds it, of several the row last touched."""
    rooms: list[int] = []
    touched: list[int] = []
    rows = [-1] * len(lengths)
    for time, chunk in enumerate(order):
        fitting = [row for row, room in enumerate(rooms) if room >= lengths[chunk]]
        if fitting:
            row = min(fitting, key=lambda row: (rooms[row], -touched[row]))
        else:
            row = len(rooms)
            rooms.append(sequence_length)
            touched.append(time)
        rooms[row] -= lengths[chunk]
        touched[row] = time
        rows[chunk] = row
    return rows


def by_row(rows: Sequence[int], num_rows: int) -> tuple[list[int], list[int]]:
    """The start of each row's chunks, and the chunks row by row."""
    groups = [[chunk for chunk, order in enumerate(rows) if order == row] for row in range(num_rows)]
    return [sum(map(len, groups[:row])) for row in range(num_rows + 1)], [chunk for group in groups for chunk in group]


def fill_rows(
    tokens: Sequence[int], rows: Sequence[Sequence[tuple[int, int]]], pad: int, sequence_length: int
) -> list[list[int]]:
    """Rows of (offset in `tokens`, number of tokens), padded to `sequence_length`."""
    filled = [[token for position, length in row for token in tokens[position : position + length]] for row in rows]
    return [row + [pad] * (sequence_length - len(row)) for row in filled]
