"""Splitting documents to fill rows, by definition: lists and linear scans, regardless of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from tests.oracles.pack import Chunk


@dataclass(kw_only=True)
class Rows:
    """Rows of at most `sequence_length` tokens.

    Attributes:
        chunks: (document, first token, number of tokens); parts that fill a row are added behind the others.
        held: chunk numbers of each row, longest first; a part that fills the row is last.
        touched: when each row was last given or left with a chunk.
        given: rows that were given a chunk.
    """

    sequence_length: int
    chunks: list[Chunk]
    held: list[list[int]]
    touched: dict[int, int] = field(default_factory=dict)
    given: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.clock = count()
        for row in range(len(self.held)):
            self.touched[row] = next(self.clock)

    def room(self, row: int) -> int:
        return self.sequence_length - sum(self.chunks[chunk][2] for chunk in self.held[row])

    def counts(self) -> tuple[int, int, int]:
        """Chunks, rows that hold some, padding."""
        held = [row for row, chunks in enumerate(self.held) if chunks]
        return len(self.chunks), len(held), sum(map(self.room, held))

    def is_within(self, max_padding: float) -> bool:
        rooms = sorted(self.room(row) for row, chunks in enumerate(self.held) if chunks)
        if sum(rooms) < self.sequence_length:
            return True
        return sum(rooms[:-1]) / (len(rooms[:-1]) * self.sequence_length) <= max_padding

    def open_rooms(self, donor: int) -> dict[int, int]:
        """The row of each room: of several the one last touched."""
        rows = [row for row, chunks in enumerate(self.held) if chunks and row != donor and self.room(row)]
        return {self.room(row): row for row in sorted(rows, key=self.touched.__getitem__)}

    def move(self, donor: int) -> None:
        """Moves the first chunk of the donor, or the part of it that fills another row."""
        chunk = self.held[donor][0]
        document, start, length = self.chunks[chunk]
        rooms = self.open_rooms(donor)
        holding = [room for room in rooms if room >= length]
        if holding:
            row = rooms[min(holding)]
            self.held[row].insert(0, self.held[donor].pop(0))
        else:
            room = room_to_fill(list(rooms), length)
            row = rooms[room]
            self.held[row].append(len(self.chunks))
            self.chunks.append((document, start, room))
            self.chunks[chunk] = (document, start + room, length - room)
        self.touched[row] = next(self.clock)
        self.given.add(row)

    def is_worthwhile(self, donor: int, min_piece: int) -> bool:
        length, rooms = self.chunks[self.held[donor][0]][2], list(self.open_rooms(donor))
        if not rooms or max(rooms) >= length:
            return bool(rooms)
        room = room_to_fill(rooms, length)
        return min(room, length - room) >= min_piece

    def row_of_chunk(self) -> list[int]:
        rows = {chunk: row for row, chunks in enumerate(self.held) for chunk in chunks}
        return [rows[chunk] for chunk in range(len(self.chunks))]


def room_to_fill(rooms: Sequence[int], length: int) -> int:
    """The room for the first part: of those that hold half of the chunk, and those after which one row holds the rest, the
    one that makes the shorter part longest, and of two such the larger room; where there is none, the most room."""
    if 2 * max(rooms) < length:
        return max(rooms)
    fitting = [room for room in rooms if 2 * room >= length or length - room <= max(rooms)]
    return max(fitting, key=lambda room: (min(room, length - room), room))


def split_to_fill(rows: Rows, donors: Sequence[int], min_piece: int, max_padding: float) -> bool:
    """Empties donors until the rows but the emptiest have a share of padding within the limit, or all less than a row."""
    for donor in donors:
        if rows.is_within(max_padding):
            break
        if donor in rows.given:
            continue
        if rows.is_worthwhile(donor, min_piece):
            while rows.held[donor]:
                rows.move(donor)
        else:
            rows.touched[donor] = next(rows.clock)
    return rows.is_within(max_padding)


def pack(
    chunks: Sequence[Chunk], row_of_chunk: Sequence[int], lengths: Sequence[int], sequence_length: int, limit: float
) -> Rows:
    """The rows of best fit with documents of `lengths` split until padding is within the limit."""
    order = sorted(range(len(chunks)), key=lambda chunk: -chunks[chunk][2])
    held = [[chunk for chunk in order if row_of_chunk[chunk] == row] for row in range(max(row_of_chunk, default=-1) + 1)]
    rows = Rows(sequence_length=sequence_length, chunks=list(chunks), held=held)
    min_piece = max(1, sequence_length // 16)
    while not rows.is_within(limit):
        rows.given.clear()
        split_to_fill(rows, _donors(rows, lengths), min_piece, limit)
        min_piece = max(1, min_piece // 2)
    return rows


def _donors(rows: Rows, lengths: Sequence[int]) -> list[int]:
    """Rows with room: those with the fewest whole documents first, of these the emptiest."""

    def whole_documents(row: int) -> int:
        return sum(rows.chunks[chunk][2] == lengths[rows.chunks[chunk][0]] for chunk in rows.held[row])

    open_rows = [row for row, chunks in enumerate(rows.held) if chunks and rows.room(row)]
    return sorted(open_rows, key=lambda row: (whole_documents(row), -rows.room(row)))
