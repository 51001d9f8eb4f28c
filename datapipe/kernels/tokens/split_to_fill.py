"""Empties rows by splitting their documents over the room of other rows, so that fewer rows hold the same tokens.

    rows of best_fit ── open_rows ── split_to_fill ──▶ fewer rows, with split documents

A row is emptied chunk by chunk, the longest first. A chunk goes whole to the row with the least room that holds it. Where
no row does, its first part fills a row to the end, and the rest goes on. The first part goes where the shorter of the two
parts is longest, among the rooms after which the rest fits into one row; else to the most room.

S = 8 and documents 0 to 5 of 5 tokens, one to a row, each with room 3. The row of document 0 is emptied: its first 3 tokens
fill the row of 5, the other 2 go to the row of 4. Then that of document 1: its first 3 tokens fill the row of 3, the other
2 go to the row of 2. Fewer than 4 rows cannot hold 30 tokens.

    1 1 2 2 2 2 2 .        3 3 3 3 3 1 1 1        0 0 4 4 4 4 4 .        5 5 5 5 5 0 0 0
"""

from typing import Any, NamedTuple

from datapipe.kernels import inline, kernel
from datapipe.kernels.tokens.pack import least_room, most_room, put_room, take_room
from datapipe.kernels.types import Int32s, Int32sOut, Int64s, Int64sOut, UInt8sOut


class ChunksOut(NamedTuple):
    """Chunks, with space behind them: a split adds one, and a row is filled at most once."""

    documents: Int64sOut  # (num_chunks + num_rows,), as all of them
    starts: Int64sOut  # the first token in the document
    lengths: Int32sOut
    rows: Int64sOut


class RowsOut(NamedTuple):
    """Rows with their room and chunks, and the rows of each room."""

    rooms: Int64sOut  # (num_rows,); S for a row that was emptied
    first_chunk: Int64sOut  # (num_rows,), -1 for none: the longest chunk of a row, the head of a linked list
    next_chunk: Int64sOut  # (num_chunks,), -1 at the end of such a list
    # (S + 1,), all -1 at first: the row that was last given that much room, the head of a linked list
    newest: Int64sOut
    # newer, older: (num_rows,), the neighbours in such a list, -1 at its ends
    newer: Int64sOut
    older: Int64sOut
    tree: UInt8sOut  # as `pack.py` has it, zeros at first
    is_receiver: UInt8sOut  # (num_rows,), whether a row was given a chunk


@inline
def _put_row(rows: Any, row: Any) -> None:
    room = rows.rooms[row]
    if room > 0:
        newest = rows.newest[room]
        rows.newer[row] = -1
        rows.older[row] = newest
        rows.newest[room] = row
        if newest >= 0:
            rows.newer[newest] = row
        else:
            put_room(rows.tree, room)


@inline
def _take_row(rows: Any, row: Any) -> None:
    room, newer, older = rows.rooms[row], rows.newer[row], rows.older[row]
    if older >= 0:
        rows.newer[older] = newer
    if newer >= 0:
        rows.older[newer] = older
    else:
        rows.newest[room] = older
        if older < 0:
            take_room(rows.tree, room)


@inline
def _put_chunk(rows: Any, row: Any, chunk: Any) -> None:
    rows.next_chunk[chunk] = rows.first_chunk[row]
    rows.first_chunk[row] = chunk


@kernel
def open_rows(chunk_lengths: Int32s, chunk_rows: Int64s, order: Int64s, sequence_length: int, rows: RowsOut) -> None:
    """Enters chunks of `chunk_lengths` and `chunk_rows` (num_chunks,), whose `order` is by length, into rows of S tokens."""
    rows.rooms[:] = sequence_length
    rows.first_chunk[:] = -1
    for number in range(order.shape[0] - 1, -1, -1):
        chunk = order[number]
        _put_chunk(rows, chunk_rows[chunk], chunk)
        rows.rooms[chunk_rows[chunk]] -= chunk_lengths[chunk]
    for row in range(rows.rooms.shape[0]):
        _put_row(rows, row)


@inline
def _room_to_fill(tree: Any, length: Any, most: Any) -> Any:
    """The room that a chunk's first part fills. `most`: of any row, below `length`."""
    above = least_room(tree, (length + 1) // 2)
    if above < 0:
        return most
    below = most_room(tree, length // 2)
    return below if below > length - above and length - below <= most else above


@inline
def _is_worthwhile(tree: Any, length: Any, most: Any, min_piece: Any) -> Any:
    """Whether a chunk can go to other rows without a first split that makes a part shorter than `min_piece`."""
    if most < 1 or most >= length:
        return most >= length
    room = _room_to_fill(tree, length, most)
    return min(room, length - room) >= min_piece


@inline
def is_within(padding: Any, emptiest: Any, num_rows: Any, sequence_length: Any, max_padding: Any) -> Any:
    """Whether the rows but the emptiest, which has that much room, keep the limit, or no fewer rows can hold the tokens."""
    return padding < sequence_length or (padding - emptiest) / ((num_rows - 1) * sequence_length) <= max_padding


@inline
def _move(chunks: Any, num_chunks: Any, rows: Any, donor: Any, most: Any) -> Any:
    """Moves the first chunk of `donor`, or the part of it that fills another row; returns the number of chunks."""
    chunk = rows.first_chunk[donor]
    length = chunks.lengths[chunk]
    room = least_room(rows.tree, length) if most >= length else _room_to_fill(rows.tree, length, most)
    row = rows.newest[room]
    _take_row(rows, row)
    rows.is_receiver[row] = 1
    moved = min(room, length)
    rows.rooms[row] -= moved
    rows.rooms[donor] += moved
    if moved == length:
        rows.first_chunk[donor] = rows.next_chunk[chunk]
        _put_chunk(rows, row, chunk)
        _put_row(rows, row)
        chunks.rows[chunk] = row
        return num_chunks
    chunks.documents[num_chunks] = chunks.documents[chunk]
    chunks.starts[num_chunks] = chunks.starts[chunk]
    chunks.lengths[num_chunks] = moved
    chunks.rows[num_chunks] = row
    chunks.starts[chunk] += moved
    chunks.lengths[chunk] -= moved
    return num_chunks + 1


@kernel
def split_to_fill(
    donors: Int64s,  # row numbers, of rows with room
    # a row is left alone if the first split of its longest chunk makes a part shorter than this
    min_piece: int,
    # share of the tokens in all rows but the emptiest; less than a row of padding is always within it
    max_padding: float,
    sequence_length: int,
    counts: Int64sOut,  # (3,): number of chunks, of rows that hold some, and of padding tokens
    chunks: ChunksOut,
    rows: RowsOut,
) -> bool:
    """Empties rows, in the order of `donors`, until padding is within the limit; returns whether it is.

    A row that was given a chunk is not emptied.
    """
    num_chunks, num_rows, padding = counts[0], counts[1], counts[2]
    emptiest = most_room(rows.tree, sequence_length)
    for donor in donors:
        if is_within(padding, emptiest, num_rows, sequence_length, max_padding):
            break
        if rows.is_receiver[donor] != 0:
            continue
        _take_row(rows, donor)
        most = most_room(rows.tree, sequence_length)
        if _is_worthwhile(rows.tree, chunks.lengths[rows.first_chunk[donor]], most, min_piece):
            while rows.first_chunk[donor] >= 0:  # the other rows have room enough: padding is at least S
                num_chunks = _move(chunks, num_chunks, rows, donor, most)
                most = most_room(rows.tree, sequence_length)
            num_rows -= 1
            padding -= sequence_length
        else:
            _put_row(rows, donor)
        emptiest = most_room(rows.tree, sequence_length)
    counts[0], counts[1], counts[2] = num_chunks, num_rows, padding
    return is_within(padding, emptiest, num_rows, sequence_length, max_padding)
