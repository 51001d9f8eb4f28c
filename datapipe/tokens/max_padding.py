"""Keeps the padding of best fit within a limit: empties some rows by splitting their documents over the room of others.

    chunks in rows ── is_within? ──▶ as they are
                   └─ donors ── split_to_fill, for ever shorter pieces ──▶ chunks in fewer rows

Lengths that crowd above S / 2 leave almost half of each row empty, those above S / 3 almost a third. The share of padding
in all rows but the emptiest is kept within the limit, unless all padding is less than a row. Emptying a row saves S tokens,
so the rows with the fewest whole documents are emptied first; the remainder of a document above S, which is split anyway,
is split before others. Short pieces are made only where no row can be emptied without them. The layout is a function of the
lengths alone.

10,000 documents, S = 2,048, limit 2 % (2026-11); pages are web pages in GPT-2's tokens:

| lengths             | padding of best fit | documents split | by concat | median piece |
|---------------------|---------------------|-----------------|-----------|--------------|
| 1,100               | 46.3 %              | 45.2 %          | 53.5 %    | 550          |
| 1,900               | 7.2 %               | 5.3 %           | 92.6 %    | 148          |
| 1,100 or S + 1,100  | 31.0 %              | 13.3 %          | 76.6 %    | 912          |
| 1,050 to 1,900      | 28.2 %              | 26.8 %          | 71.7 %    | 479          |
| pages cut at 5,000  | 32.9 %              | 28.6 %          | 60.9 %    | 554          |
"""

from collections.abc import Callable

import numpy as np

from datapipe.kernels.tokens import split_to_fill as kernels
from datapipe.kernels.tokens.split_to_fill import ChunksOut, RowsOut
from datapipe.kernels.types import room_for

_MIN_PIECES = 16
"""Rows are emptied at first only where the first split makes no piece shorter than S / 16."""


def split_to_fill(
    lengths: np.ndarray, chunks: ChunksOut, num_rows: int, order: np.ndarray, sequence_length: int, max_padding: float
) -> tuple[ChunksOut, int]:
    """Chunks, split until padding is within the limit, those that lost their first part behind all others;
    and the number of rows. `chunks`: (num_chunks,) each, as best fit leaves them; `order` is theirs by
    length."""
    rows = _rows(num_rows, len(order), sequence_length)
    kernels.open_rows(chunks.lengths, chunks.rows, order, sequence_length, rows)
    chunks = _of_each(chunks, lambda column: np.concatenate([column, np.zeros(num_rows, column.dtype)]))
    counts = np.array([len(order), num_rows, rows.rooms.sum()])
    min_piece, within = max(1, sequence_length // _MIN_PIECES), False
    while not within:
        rows.is_receiver[:] = 0
        donors = _donors(lengths, _of_each(chunks, lambda column: column[: counts[0]]), rows.rooms, sequence_length)
        within = kernels.split_to_fill(donors, min_piece, max_padding, sequence_length, counts, chunks, rows)
        min_piece = max(1, min_piece // 2)
    chunks = _of_each(chunks, lambda column: column[: counts[0]])
    numbers = np.cumsum(rows.rooms < sequence_length) - 1  # (num_rows,) of the rows that hold a chunk
    return chunks._replace(rows=numbers[chunks.rows]), int(counts[1])


def _of_each(chunks: ChunksOut, change: Callable[[np.ndarray], np.ndarray]) -> ChunksOut:
    return ChunksOut(*map(change, chunks))


def _rows(num_rows: int, num_chunks: int, sequence_length: int) -> RowsOut:
    return room_for(RowsOut, num_rows)._replace(
        next_chunk=np.empty(num_chunks, np.int64),
        newest=np.full(sequence_length + 1, -1, np.int64),
        tree=np.zeros(2 << sequence_length.bit_length(), np.uint8),
    )


def _donors(lengths: np.ndarray, chunks: ChunksOut, rooms: np.ndarray, sequence_length: int) -> np.ndarray:
    """Rows with room, those with the fewest whole documents first, of these the emptiest."""
    is_whole = chunks.lengths == lengths[chunks.documents]
    num_whole = np.bincount(chunks.rows[is_whole], minlength=len(rooms))  # (num_rows,)
    open_rows = np.flatnonzero((rooms > 0) & (rooms < sequence_length))
    return open_rows[np.lexsort((-rooms[open_rows], num_whole[open_rows]))]
