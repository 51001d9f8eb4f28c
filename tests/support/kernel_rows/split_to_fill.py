"""Rows of `datapipe/kernels/tokens/split_to_fill.py`: each text is a document of one token more than its bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.tokens import split_to_fill as kernels
from datapipe.kernels.tokens.split_to_fill import ChunksOut, RowsOut
from tests.oracles import pack as pack_oracle
from tests.oracles import split_to_fill as oracle
from tests.support.kernel_table import Case, Row

_LENGTH = 37
"""Tokens of a row: no power of two, and less than the bytes of most texts."""


def _chunks(case: Case) -> tuple[list[pack_oracle.Chunk], list[int], list[int]]:
    """Chunks, their rows by best fit, and their order by length."""
    lengths = np.minimum(np.diff(case.offsets), 300) + 1
    chunks = pack_oracle.split_documents(lengths.tolist(), _LENGTH)
    sizes = [length for _, _, length in chunks]
    order = pack_oracle.by_length(sizes)
    return chunks, pack_oracle.best_fit(sizes, order, _LENGTH), order


def _empty_rows(num_chunks: int, num_rows: int) -> RowsOut:
    return RowsOut(
        rooms=np.empty(num_rows, np.int64),
        first_chunk=np.empty(num_rows, np.int64),
        next_chunk=np.empty(num_chunks, np.int64),
        newest=np.full(_LENGTH + 1, -1, np.int64),
        newer=np.full(num_rows, -1, np.int64),
        older=np.full(num_rows, -1, np.int64),
        tree=np.zeros(2 << _LENGTH.bit_length(), np.uint8),
        is_receiver=np.zeros(num_rows, np.uint8),
    )


def _open_arguments(case: Case) -> list[Any]:
    chunks, rows, order = _chunks(case)
    sizes = np.array([length for _, _, length in chunks], np.int32)
    empty = _empty_rows(len(chunks), max(rows, default=-1) + 1)
    return [sizes, np.array(rows, np.int64), np.array(order, np.int64), _LENGTH, empty]


def _open_expected(case: Case) -> tuple[None, list[Any]]:
    chunks, row_of_chunk, order = _chunks(case)
    held = [[chunk for chunk in order if row_of_chunk[chunk] == row] for row in range(max(row_of_chunk, default=-1) + 1)]
    rooms = [_LENGTH - sum(chunks[chunk][2] for chunk in chunks_of_row) for chunks_of_row in held]
    following = {chunk: after for chunks_of_row in held for chunk, after in zip(chunks_of_row, [*chunks_of_row[1:], -1])}
    of_room = [[row for row, room in enumerate(rooms) if room == wanted and room > 0] for wanted in range(_LENGTH + 1)]
    older = {row: before for rows in of_room for row, before in zip(rows, [-1, *rows])}
    newer = {row: after for rows in of_room for row, after in zip(rows, [*rows[1:], -1])}
    return None, [
        rooms,
        [chunks_of_row[0] for chunks_of_row in held],
        [following[chunk] for chunk in range(len(chunks))],
        [rows[-1] if rows else -1 for rows in of_room],
        [newer.get(row, -1) for row in range(len(held))],
        [older.get(row, -1) for row in range(len(held))],
        _tree([bool(rows) for rows in of_room]),
        [0] * len(held),
    ]


def _tree(is_room: list[bool]) -> list[int]:
    """A node is set if a leaf below it is; node n has the children 2n and 2n + 1."""
    num_leaves = 1 << _LENGTH.bit_length()
    tree = [0] * num_leaves + [int(is_set) for is_set in is_room] + [0] * (num_leaves - len(is_room))
    for node in range(num_leaves - 1, 0, -1):
        tree[node] = max(tree[2 * node], tree[2 * node + 1])
    return tree


def _options(case: Case, rooms: list[int]) -> tuple[list[int], int, float]:
    """Donors in any order, the least piece, and the limit."""
    open_rows = [row for row, room in enumerate(rooms) if room > 0]
    donors = case.generator.permutation(open_rows).astype(np.int64).tolist()
    return donors, int(case.generator.integers(1, 5)), float(case.generator.choice([0.0, 0.001, 0.02]))


def _split_arguments(case: Case) -> list[Any]:
    sizes, row_of_chunk, order, _, rows = _open_arguments(case)
    kernels.open_rows(sizes, row_of_chunk, order, _LENGTH, rows)
    chunks, _, _ = _chunks(case)
    space = len(chunks) + len(rows.rooms)
    out = ChunksOut(*(np.zeros(space, dtype) for dtype in (np.int64, np.int64, np.int32, np.int64)))
    for column, number in zip(out[:3], range(3)):
        column[: len(chunks)] = [chunk[number] for chunk in chunks]
    out.rows[: len(chunks)] = row_of_chunk
    donors, min_piece, max_padding = _options(case, rows.rooms.tolist())
    counts = np.array([len(chunks), len(rows.rooms), rows.rooms.sum()], np.int64)
    return [np.array(donors, np.int64), min_piece, max_padding, _LENGTH, counts, out, rows]


def _split_expected(case: Case) -> tuple[bool, list[Any]]:
    chunks, row_of_chunk, order = _chunks(case)
    held = [[chunk for chunk in order if row_of_chunk[chunk] == row] for row in range(max(row_of_chunk, default=-1) + 1)]
    rows = oracle.Rows(sequence_length=_LENGTH, chunks=list(chunks), held=held)
    is_within = oracle.split_to_fill(rows, *_options(case, [rows.room(row) for row in range(len(held))]))
    columns = [[chunk[number] for chunk in rows.chunks] for number in range(3)]
    rooms = [rows.room(row) for row in range(len(held))]
    is_given = [int(row in rows.given) for row in range(len(held))]
    return is_within, [list(rows.counts()), *columns, rows.row_of_chunk(), rooms, *[[]] * 6, is_given]


ROWS = [
    Row(kernel=kernels.open_rows, arguments=_open_arguments, oracle=_open_expected, from_case=True),
    Row(kernel=kernels.split_to_fill, arguments=_split_arguments, oracle=_split_expected, num_outputs=3, from_case=True),
]
