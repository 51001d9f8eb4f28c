"""Documents from packed rows: the position of each piece, and the pieces of cut documents joined.

    row 0   a a a b b b b b          gives a, then c, then b: a document is complete with the last of its pieces
    row 1   c c b b . . . .

A piece is the part of one document that lies in one row. Only the end of a row cuts a document, and every document ends with
the end-of-text token, which occurs nowhere else. So a piece is a whole document if it starts at token 0 and ends with that
token. (In the export of a snapshot that documents were taken down from, a cut document may end before its row does.) In
BOS-aligned rows, a piece is all that is left of its document.
A document lies in one pool of the packer (`pack.pool_documents`). Memory: a record batch and the
cut documents of a pool.
"""

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.errors import CorruptionError
from datapipe.rng import keyed_hash
from datapipe.shards.loss_mask import learned_of, runs_of
from datapipe.shards.removed import Removed
from datapipe.shards.schemas import UNLEARNED


def piece_stops(rows: pa.RecordBatch) -> np.ndarray:
    """The end of each piece in the flat tokens of a whole record batch of `schemas.sequences`: (num_pieces,) int64."""
    width = rows.column("tokens").type.list_size
    offsets = columns.numbers(rows.column("lengths").offsets).astype(np.int64)
    sums = np.concatenate([[0], np.cumsum(columns.numbers(rows.column("lengths").values), dtype=np.int64)])
    row = np.repeat(np.arange(rows.num_rows), np.diff(offsets))  # (num_pieces,)
    return row * width + sums[1:] - sums[offsets[row]]


NOT_LEARNED = np.uint32(1 << 31)
"""No id is so large (`encoder.LARGEST_VOCABULARY`)."""


def starts_of(rows: pa.RecordBatch) -> np.ndarray:
    """A hash of the document and the start of each piece that continues one, (num_continuing,) uint64."""
    starts = columns.numbers(rows.column("starts").values)
    return position_hashes(rows, starts)[starts > 0]


def position_hashes(rows: pa.RecordBatch, positions: np.ndarray) -> np.ndarray:
    """A hash of the document of each piece and of a token position in it: (num_pieces,) uint64."""
    documents = keyed_hash(columns.key_halves(rows.column("keys").values), 0)
    return keyed_hash((documents, positions.astype(np.uint64)), 0)


def _are_in(ascending: np.ndarray, values: np.ndarray) -> np.ndarray:
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    return ascending[np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)] == values


class DocumentJoiner:
    """Turns the record batches of one source and split, in their order, into documents."""

    def __init__(self, eos_id: int, continued: np.ndarray | None = None, *, is_aligned: bool = False) -> None:
        """`continued`: of documents that may mean the end-of-text token anywhere, the `starts_of` of all their pieces, 8 bytes
        each. `is_aligned`: of rows that are BOS-aligned."""
        self._eos_id, self._continued = eos_id, None if continued is None else np.sort(continued)
        self._is_aligned = is_aligned
        self._open: dict[bytes, dict[int, np.ndarray]] = {}  # by key: pieces by their start
        self._num_tokens: dict[bytes, int] = {}  # by key: tokens of those pieces, since a document may have many
        self._totals: dict[bytes, int] = {}  # by key: tokens of the document, known from its last piece

    def add(self, rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """The documents that these rows complete: their ids end to end, and their lengths (num_docs,) int64. Where documents
        have segments, ids are uint32, and `NOT_LEARNED` is added to those that a loss does not count."""
        stops = piece_stops(rows)
        lengths = columns.numbers(rows.column("lengths").values).astype(np.int64)
        starts = columns.numbers(rows.column("starts").values)
        flat = columns.numbers(rows.column("tokens").values)
        ends = (flat[stops - 1] == self._eos_id) | self._is_aligned
        if self._continued is not None:
            ends &= ~_are_in(self._continued, position_hashes(rows, starts + lengths))
            flat = flat.astype(np.uint32) + np.where(learned_of(rows), np.uint32(0), NOT_LEARNED)
        tokens = _without_padding(rows, flat)
        sums = np.concatenate([[0], np.cumsum(lengths)])  # (num_pieces + 1,) into `tokens`
        keys = columns.key_matrix(rows.column("keys").values)
        documents, document_lengths, first = [], [], 0  # first: the first piece that is not in `documents` yet
        for piece in np.flatnonzero((starts != 0) | ~ends).tolist():
            documents.append(tokens[sums[first] : sums[piece]])
            document_lengths.append(lengths[first:piece])
            ids = tokens[sums[piece] : sums[piece + 1]]
            document = self._join(keys[piece].tobytes(), int(starts[piece]), ids, bool(ends[piece]))
            documents += document
            document_lengths.append(np.array([sum(map(len, document))] if document else [], np.int64))
            first = piece + 1
        return np.concatenate([*documents, tokens[sums[first] :]]), np.concatenate([*document_lengths, lengths[first:]])

    def finish(self) -> None:
        """Raises CorruptionError if a document is incomplete."""
        if self._open:
            key = next(iter(self._open)).hex()
            raise CorruptionError(
                f"document {key}: some of its pieces are in no row, and those of {len(self._open) - 1} more documents. "
                f"If `min_piece` dropped them, export the rows with `--rows`; `datapipe verify` checks all shards"
            )

    def _join(self, key: bytes, start: int, ids: np.ndarray, is_last: bool) -> list[np.ndarray]:
        """The pieces of the document in order, if this one completes it."""
        pieces = self._open.setdefault(key, {})
        pieces[start] = ids.copy()  # so that the record batch can be freed
        if is_last:
            self._totals[key] = start + len(ids)
        self._num_tokens[key] = self._num_tokens.get(key, 0) + len(ids)
        if self._num_tokens[key] != self._totals.get(key, -1):
            return []
        del self._open[key], self._num_tokens[key], self._totals[key]
        return [pieces[start] for start in sorted(pieces)]


def _without_padding(rows: pa.RecordBatch, flat: np.ndarray) -> np.ndarray:
    lists, width = rows.column("lengths"), rows.column("tokens").type.list_size
    sums = np.concatenate([[0], np.cumsum(columns.numbers(lists.values), dtype=np.int64)])
    filled = np.diff(sums[columns.numbers(lists.offsets)])  # (num_rows,)
    if int(filled.sum()) == len(flat):
        return flat
    return flat.reshape(-1, width)[np.arange(width) < filled[:, None]]


def rows_left(rows: pa.RecordBatch, removed: Removed) -> np.ndarray:
    """The numbers of the rows that `without_removed` leaves."""
    kept = ~removed.holds(columns.key_matrix(rows.column("keys").values))
    row_of = np.repeat(np.arange(rows.num_rows), np.diff(columns.numbers(rows.column("keys").offsets)))
    return np.unique(row_of[kept])


def without_removed(rows: pa.RecordBatch, removed: Removed, eos_id: int) -> pa.RecordBatch:
    """The rows without the tokens of some documents: what follows in a row moves to its front, and padding fills its end.

    A row without any other document is left out. So a document that goes on in the next row may now end before its row
    does. `rows`: of `schemas.sequences`, a whole record batch.
    """
    keys = columns.key_matrix(rows.column("keys").values)
    kept = ~removed.holds(keys)
    if kept.all():
        return rows
    width = rows.column("tokens").type.list_size
    flat = columns.numbers(rows.column("tokens").values)
    lengths = columns.numbers(rows.column("lengths").values).astype(np.int64)  # (num_pieces,)
    offsets = columns.numbers(rows.column("lengths").offsets)
    row_of = np.repeat(np.arange(rows.num_rows), np.diff(offsets))  # (num_pieces,)
    filled = np.bincount(row_of[kept], lengths[kept], rows.num_rows)
    tokens = np.full((rows.num_rows, width), eos_id, flat.dtype)
    tokens[np.arange(width) < filled[:, None]] = _without_padding(rows, flat)[np.repeat(kept, lengths)]
    counts = np.bincount(row_of[kept], minlength=rows.num_rows)
    chosen = np.flatnonzero(counts)
    new_offsets = pa.array(np.concatenate([[0], np.cumsum(counts[chosen])]).astype(np.int32))
    pieces = pa.array(np.flatnonzero(kept))
    schema, held = rows.schema, tokens[chosen].reshape(-1)
    item = schema.field("tokens").type.value_type
    arrays: list[pa.Array] = [pa.FixedSizeListArray.from_arrays(pa.array(held, item), type=schema.field("tokens").type)]
    for name in ("lengths", "keys", "starts"):
        values = rows.column(name).values.take(pieces)
        arrays.append(pa.ListArray.from_arrays(new_offsets, values, type=schema.field(name).type))
    if UNLEARNED in schema.names:
        learned = np.ones((rows.num_rows, width), np.bool_)
        learned[np.arange(width) < filled[:, None]] = _without_padding(rows, learned_of(rows))[np.repeat(kept, lengths)]
        ends, runs = runs_of(learned[chosen].reshape(-1), np.arange(len(chosen) + 1) * width)
        lists = (pa.array(ends.astype(np.int32)), pa.array(runs.astype(np.int32)))
        arrays.append(pa.ListArray.from_arrays(*lists, type=schema.field(UNLEARNED).type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
