"""Packs documents into rows of exactly S tokens: first the layout, then the copy.

    lengths (num_docs,) ── pack ──▶ PackedRows ── assemble, rows in any order ──▶ a record batch of `schemas.sequences`

A piece is a run of tokens of one document within one row. The layout is a function of the lengths alone.

| method      | layout                                                                                                       |
|-------------|--------------------------------------------------------------------------------------------------------------|
| best_fit    | cuts documents above S into rows of S and a remainder (arXiv 2404.10830), and others only where padding      |
|             | would exceed `max_padding`                                                                                   |
| bos_aligned | best fit of the beginnings of documents, at most S tokens each, so every piece has the `bos` of its document. |
|             | What does not fit is dropped                                                                                 |
| concat      | joins documents end to end and cuts every S tokens                                                           |
| buckets     | cuts documents above S into rows of S, and the remainder by its binary expansion, largest power first; a row |
|             | holds pieces of one length from different documents (dataset decomposition, arXiv 2405.13226)                |

For lengths 14, 7, 5, 2, 3 and S = 8 best_fit has the rows 8 of 14 | 7 | 6 of 14, 2 | 5, 3, and buckets 8 of 14 | 4 of 14,
4 of 7 | 4 of 5 | 2 each of 14, 7, 2, 3 | 1 each of 7, 5, 3. In the others, a piece that ends before the row does is the end of
its document. README.md beside this file has measurements.

Best fit keeps padding within `max_padding`: it empties some rows by splitting their documents over the room of others.
Lengths that crowd above S / 2 leave almost half of each row empty, those above S / 3 almost a third. The share of padding
in all rows but the emptiest is kept within the limit, unless all padding is less than a row. Emptying a row saves S tokens,
so the rows with the fewest whole documents are emptied first; the remainder of a document above S, which is split anyway,
is split before others. Short pieces are made only where no row can be emptied without them.

Rows that begin with a `bos` are nanochat's: it fills a row with the largest documents that fit, and the rest with a part of the
shortest one. Here best fit comes first, and documents are cut only where padding would exceed the limit: a row is emptied where
that saves more padding than it drops tokens. Each of its documents goes to the end of another row, which has room for the `bos`
and a token behind it at least. Of 60,000 lengths with a
median of 600 (lognormal, mean 1,052), nanochat's rule drops 30.5 % of the tokens at S = 2,048, and this one 22.2 %, all of them
behind the first S of a document, with 0.03 % of padding.
"""

from bisect import bisect_left
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.dataclass import dataclass
from datapipe.kernels.tokens import pack as kernels
from datapipe.kernels.tokens import split_to_fill as filling
from datapipe.kernels.tokens.split_to_fill import ChunksOut, RowsOut
from datapipe.kernels.types import first_rows, room_for
from datapipe.metrics import Packing
from datapipe.shards import schemas

Method = Literal["best_fit", "bos_aligned", "concat", "buckets"]

_MIN_CUT = 2  # documents are cut to at least their `bos` and one token that is learned behind it
_MIN_PIECES = 16  # at first, rows are emptied only where no piece is shorter than S / 16


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedRows:
    """Rows as lists of pieces. The pieces of a row are in the order of their documents; behind them
    comes, where documents are split or cut to limit padding, the piece that fills the row."""

    piece_document: np.ndarray  # (num_pieces,) int64, index of the document
    piece_start: np.ndarray  # (num_pieces,) int64, first token in its document
    piece_length: np.ndarray  # (num_pieces,) int32, at least 1
    row_offsets: np.ndarray  # (num_rows + 1,) int64 into the pieces
    # number of documents of at most S tokens that are split or cut to keep the limit of padding
    split_for_padding: int = 0

    @property
    def num_rows(self) -> int:
        return len(self.row_offsets) - 1

    @property
    def num_pieces(self) -> int:
        return len(self.piece_document)


def pack(lengths: np.ndarray, sequence_length: int, method: Method, min_piece: int = 1, max_padding: float = 1.0) -> PackedRows:
    """Rows for documents of `lengths` (num_docs,) int64 tokens, each at least 1. `sequence_length`:
    a power of two for buckets. `min_piece`: buckets drops shorter pieces. `max_padding`: share of
    padding in all rows but the emptiest, above which documents are split or cut; 1 splits and cuts none."""
    assert sequence_length >= 1, sequence_length
    assert len(lengths) == 0 or int(lengths.min()) >= 1, "a document without its end-of-text token"
    lengths = np.ascontiguousarray(lengths, np.int64)
    if method == "buckets":
        return _buckets(lengths, sequence_length, min_piece)
    if method == "concat":
        return _concat(lengths, sequence_length)
    return _best_fit(lengths, sequence_length, max_padding, is_aligned=method == "bos_aligned")


def count(packed: PackedRows, lengths: np.ndarray, sequence_length: int) -> Packing:
    """The counts of rows, tokens and pieces that documents of `lengths` (num_docs,) int64 were packed into."""
    tokens = int(packed.piece_length.sum(dtype=np.int64))
    documents = int(np.count_nonzero(packed.piece_start == 0))
    is_split = np.zeros(len(lengths), bool)  # (num_docs,)
    is_split[packed.piece_document[packed.piece_length != lengths[packed.piece_document]]] = True
    return Packing(
        rows=packed.num_rows,
        tokens=tokens,
        padding_tokens=packed.num_rows * sequence_length - tokens,
        documents=documents,
        split_documents=int(np.count_nonzero(is_split)),
        pieces=packed.num_pieces,
        dropped_tokens=int(lengths.sum()) - tokens,
        dropped_documents=len(lengths) - documents,
        split_for_padding=packed.split_for_padding,
    )


def _best_fit(lengths: np.ndarray, sequence_length: int, max_padding: float, *, is_aligned: bool) -> PackedRows:
    counts = np.ones(len(lengths), np.int64) if is_aligned else -(-lengths // sequence_length)
    document, num_chunks = np.repeat(np.arange(len(lengths)), counts), int(counts.sum())
    start = (np.arange(num_chunks) - np.repeat(np.cumsum(counts) - counts, counts)) * sequence_length
    length = np.minimum(lengths[document] - start, sequence_length).astype(np.int32)
    order = _by_length(length, sequence_length)
    tree = np.zeros(2 << sequence_length.bit_length(), np.uint8)
    newest, older = np.full(sequence_length + 1, -1, np.int64), np.empty(num_chunks, np.int64)
    row = np.empty(num_chunks, np.int64)
    num_rows = kernels.best_fit(length, order, sequence_length, tree, newest, older, row)

    padding = num_rows * sequence_length - int(length.sum(dtype=np.int64))
    emptiest = int(np.flatnonzero(newest >= 0)[-1]) if padding else 0  # its room
    del tree, newest, older
    chunks = ChunksOut(document, start, length, row)
    if not filling.is_within(padding, emptiest, num_rows, sequence_length, max_padding):
        fit = (num_rows, order, sequence_length, max_padding)
        chunks, num_rows = _cut_to_fill(chunks, *fit) if is_aligned else _split_to_fill(lengths, chunks, *fit)
    of_split = chunks.documents[chunks.lengths < np.minimum(lengths, sequence_length)[chunks.documents]]
    del document, start, length, row
    row_offsets, order = np.zeros(num_rows + 1, np.int64), np.empty(len(chunks.rows), np.int64)
    kernels.by_row(chunks.rows, np.empty(num_rows, np.int64), row_offsets, order)
    return PackedRows(
        piece_document=chunks.documents[order],
        piece_start=chunks.starts[order],
        piece_length=chunks.lengths[order],
        row_offsets=row_offsets,
        split_for_padding=len(np.unique(of_split[lengths[of_split] <= sequence_length])),
    )


def _split_to_fill(
    lengths: np.ndarray, chunks: ChunksOut, num_rows: int, order: np.ndarray, sequence_length: int, max_padding: float
) -> tuple[ChunksOut, int]:
    """Chunks, split until padding is within the limit, those that lost their first part last; and
    the number of rows. `chunks`: (num_chunks,), as best fit leaves them; `order`: by length."""
    rows = _rows(num_rows, len(order), sequence_length)
    filling.open_rows(chunks.lengths, chunks.rows, order, sequence_length, rows)
    chunks = ChunksOut._make(np.concatenate([column, np.zeros(num_rows, column.dtype)]) for column in chunks)
    counts = np.array([len(order), num_rows, rows.rooms.sum()])
    min_piece, within = max(1, sequence_length // _MIN_PIECES), False
    while not within:
        rows.is_receiver[:] = 0
        donors = _donors(lengths, first_rows(chunks, counts[0]), rows.rooms, sequence_length)
        within = filling.split_to_fill(donors, min_piece, max_padding, sequence_length, counts, chunks, rows)
        min_piece = max(1, min_piece // 2)
    chunks = first_rows(chunks, counts[0])
    numbers = np.cumsum(rows.rooms < sequence_length) - 1  # (num_rows,) of the rows that hold a chunk
    return chunks._replace(rows=numbers[chunks.rows]), int(counts[1])


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


def _cut_to_fill(
    chunks: ChunksOut, num_rows: int, order: np.ndarray, sequence_length: int, max_padding: float
) -> tuple[ChunksOut, int]:
    """Chunks, those last that are cut to fill a row, and the number of rows: as many rows are emptied as the limit needs, while
    each saves more padding than it drops tokens. Those go first that would drop least, if each chunk got the most room."""
    rooms = sequence_length - np.bincount(chunks.rows, chunks.lengths, num_rows).astype(np.int64)
    dropped = np.bincount(chunks.rows, np.maximum(chunks.lengths - rooms.max(), 0), num_rows)
    rank, by_room = np.empty(num_rows, np.int64), np.argsort(-rooms, kind="stable")
    rank[np.lexsort((-rooms, dropped))] = np.arange(num_rows)  # (num_rows,) position among the rows to empty

    def moved(num_emptied: int) -> tuple[np.ndarray, np.ndarray]:
        """The chunks of the emptied rows, longest first, and as many rows with most room, as far as there are."""
        chosen = order[rank[chunks.rows[order]] < num_emptied]
        return chosen, by_room[(rank[by_room] >= num_emptied) & (rooms[by_room] >= _MIN_CUT)][: len(chosen)]

    def rooms_after(num_emptied: int) -> np.ndarray | None:
        """(num_rows,), 0 for an emptied row; None where the other rows have room for fewer chunks."""
        chosen, receivers = moved(num_emptied)
        if len(receivers) < len(chosen):
            return None
        left = np.where(rank < num_emptied, 0, rooms)
        left[receivers] = np.maximum(left[receivers] - chunks.lengths[chosen], 0)
        return left

    def is_enough(num_emptied: int) -> bool:
        left, then = rooms_after(num_emptied), rooms_after(num_emptied + 1)
        if left is None or then is None:
            return True
        padding, rest = int(left.sum()), num_rows - num_emptied
        is_within = filling.is_within(padding, int(left.max()), rest, sequence_length, max_padding)
        return bool(is_within) or 2 * (padding - int(then.sum())) <= sequence_length

    num_emptied = bisect_left(range(num_rows), True, key=is_enough)
    chosen, receivers = moved(num_emptied)
    is_cut = np.zeros(len(order), np.bool_)
    is_cut[chosen] = chunks.lengths[chosen] > rooms[receivers]
    chunks.lengths[chosen], chunks.rows[chosen] = np.minimum(chunks.lengths[chosen], rooms[receivers]), receivers
    numbers, last = np.cumsum(rank >= num_emptied) - 1, np.argsort(is_cut, kind="stable")
    cut = ChunksOut._make(column[last] for column in chunks)
    return cut._replace(rows=numbers[cut.rows]), num_rows - num_emptied


def _by_length(length: np.ndarray, sequence_length: int) -> np.ndarray:
    """Chunks by length, the longest first and equal ones in their order. Numbers of 16 bits are sorted in linear time."""
    return np.argsort((sequence_length - length).astype(np.min_scalar_type(sequence_length)), kind="stable")


def _buckets(lengths: np.ndarray, sequence_length: int, min_piece: int) -> PackedRows:
    """Rows in descending length of their pieces. Pieces of one length are in the order of their documents."""
    assert sequence_length & (sequence_length - 1) == 0, sequence_length
    assert 1 <= min_piece <= sequence_length, (sequence_length, min_piece)
    powers = [1 << bit for bit in range(sequence_length.bit_length() - 1) if 1 << bit >= min_piece]
    num_pieces = int((lengths // sequence_length).sum()) + sum(int(np.count_nonzero(lengths & power)) for power in powers)
    document, start = np.empty(num_pieces, np.int64), np.empty(num_pieces, np.int64)
    length = np.empty(num_pieces, np.int32)
    kernels.split_by_powers(lengths, sequence_length, min_piece, document, start, length)

    order = _by_length(length, sequence_length)
    length = length[order]
    document = document[order]
    start = start[order]
    del order
    # borders: (num_buckets + 1,) the first piece of each length
    borders = [*np.flatnonzero(np.diff(length, prepend=0)).tolist(), num_pieces]
    firsts = [np.arange(begin, end, sequence_length // int(length[begin])) for begin, end in pairwise(borders)]
    return PackedRows(
        piece_document=document,
        piece_start=start,
        piece_length=length,
        row_offsets=np.concatenate([*firsts, [num_pieces]]).astype(np.int64),
    )


def _concat(lengths: np.ndarray, sequence_length: int) -> PackedRows:
    """A piece begins where a document or a row begins in the stream of all documents."""
    ends = np.cumsum(lengths)
    total, starts = int(lengths.sum()), ends - lengths
    rows = np.arange(0, total, sequence_length)
    begins = np.sort(np.concatenate([starts, rows]), kind="stable")  # merges the two
    begins = begins[np.diff(begins, prepend=-1) > 0]
    document = np.searchsorted(ends, begins, side="right")
    return PackedRows(
        piece_document=document,
        piece_start=begins - starts[document],
        piece_length=np.diff(begins, append=total).astype(np.int32),
        row_offsets=np.append(np.searchsorted(begins, rows), len(begins)),
    )


def assemble(
    packed: PackedRows,
    row_order: np.ndarray,
    # tokens, doc_offsets: of all documents, which have `keys` (num_docs, 16) uint8
    tokens: np.ndarray,
    doc_offsets: np.ndarray,
    keys: np.ndarray,
    pad_id: int,  # the id that pads a row, which is the end-of-text id
    sequence_length: int,
    unlearned: np.ndarray | None = None,  # (num_runs, 2) int64: start and stop in `tokens` of each run that no loss counts
) -> pa.RecordBatch:
    """The rows `row_order` (all or some) of `packed`, with their tokens, as a record batch of `schemas.sequences`."""
    counts = np.diff(packed.row_offsets)[row_order]
    row_offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    piece = np.repeat(packed.row_offsets[row_order] - row_offsets[:-1], counts) + np.arange(row_offsets[-1])
    document, start, length = packed.piece_document[piece], packed.piece_start[piece], packed.piece_length[piece]

    rows = np.empty(len(row_order) * sequence_length, tokens.dtype)
    kernels.fill_rows(tokens, doc_offsets[document] + start, length, row_offsets, pad_id, sequence_length, rows)

    id_type = pa.from_numpy_dtype(tokens.dtype)
    schema = schemas.sequences(id_type, sequence_length, has_mask=unlearned is not None)
    offsets = pa.array(row_offsets.astype(np.int32))
    values = {"lengths": pa.array(length), "keys": columns.keys_from(keys[document]), "starts": pa.array(start)}
    lists = [pa.ListArray.from_arrays(offsets, column, type=schema.field(name).type) for name, column in values.items()]
    row_tokens = pa.FixedSizeListArray.from_arrays(pa.array(rows), type=schema.field("tokens").type)
    mask = [] if unlearned is None else [_runs_of_rows(unlearned, doc_offsets[document] + start, length, row_offsets)]
    return pa.RecordBatch.from_arrays([row_tokens, *lists, *mask], schema=schema)


def _runs_of_rows(runs: np.ndarray, starts: np.ndarray, lengths: np.ndarray, row_offsets: np.ndarray) -> pa.Array:
    """The runs (num_runs, 2) of tokens, ascending, by row: in which a row has the pieces of `lengths` from the tokens `starts`
    on, (num_pieces,), end to end, piece row_offsets[r] first."""
    stops = starts + lengths
    first, stop = np.searchsorted(runs[:, 1], starts, "right"), np.searchsorted(runs[:, 0], stops, "left")
    counts = np.maximum(stop - first, 0)  # (num_pieces,) runs that reach into each piece
    piece = np.repeat(np.arange(len(starts)), counts)
    within = np.arange(len(piece)) - np.repeat(np.cumsum(counts) - counts, counts)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    in_row = ends[:-1] - np.repeat(ends[row_offsets[:-1]], np.diff(row_offsets))  # (num_pieces,) tokens of the row before it
    own = np.clip(runs[first[piece] + within], starts[piece, None], stops[piece, None])
    values = (own + (in_row - starts)[piece, None]).astype(np.int32)
    of_pieces = np.concatenate([[0], np.cumsum(counts)])
    return pa.ListArray.from_arrays(pa.array((2 * of_pieces[row_offsets]).astype(np.int32)), pa.array(values.reshape(-1)))
