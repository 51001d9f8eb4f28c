"""Documents packed into rows by definition: lists and linear scans, regardless of time."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

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


def bos_aligned(lengths: Sequence[int], sequence_length: int, limit: float) -> list[list[Chunk]]:
    """Rows of beginnings of documents: those of best fit, of which some are emptied, and their chunks cut to fill others."""
    sizes = [min(length, sequence_length) for length in lengths]
    row_of = best_fit(sizes, by_length(sizes), sequence_length)
    numbers = range(max(row_of, default=-1) + 1)
    held = [[chunk for chunk in by_length(sizes) if row_of[chunk] == row] for row in numbers]
    rooms = [sequence_length - sum(sizes[chunk] for chunk in chunks) for chunks in held]

    def least_dropped(row: int) -> int:
        return sum(max(0, sizes[chunk] - max(rooms)) for chunk in held[row])

    to_empty = sorted(numbers, key=lambda row: (least_dropped(row), -rooms[row]))

    def moves(num_emptied: int) -> list[tuple[int, int]] | None:
        """The chunks of that many rows, each with its new row; None where there are fewer rows with room."""
        chunks = sorted(chunk for row in to_empty[:num_emptied] for chunk in held[row])
        receivers = sorted(row for row in to_empty[num_emptied:] if rooms[row] >= 2)  # a bos and a token behind it
        receivers = sorted(receivers, key=lambda row: -rooms[row])
        longest_first = sorted(chunks, key=lambda chunk: -sizes[chunk])
        return list(zip(longest_first, receivers)) if len(receivers) >= len(chunks) else None

    def rooms_after(num_emptied: int) -> list[int] | None:
        made = moves(num_emptied)
        if made is None:
            return None
        given = {row: sizes[chunk] for chunk, row in made}
        return [max(0, rooms[row] - given.get(row, 0)) for row in to_empty[num_emptied:]]

    def is_enough(num_emptied: int) -> bool:
        left, then = rooms_after(num_emptied), rooms_after(num_emptied + 1)
        if left is None or then is None or sum(left) < sequence_length:
            return True
        share = (sum(left) - max(left)) / (sequence_length * (len(left) - 1))
        num_dropped = sum(then) - sum(left) + sequence_length
        return share <= limit or num_dropped >= sum(left) - sum(then)

    num_emptied = bisect_left(numbers, True, key=is_enough)
    made = dict(moves(num_emptied) or [])
    rows = []
    for row in sorted(to_empty[num_emptied:]):
        given = [(chunk, 0, min(sizes[chunk], rooms[row])) for chunk, receiver in made.items() if receiver == row]
        whole = [(chunk, 0, sizes[chunk]) for chunk in held[row]] + [each for each in given if each[2] == sizes[each[0]]]
        rows.append(sorted(whole) + [each for each in given if each[2] < sizes[each[0]]])
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
