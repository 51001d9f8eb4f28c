"""Documents out of packed rows: where pieces lie, and the pieces of a document that was cut joined again.

    row 0   a a a . b b b b          a, then c, then b: a document comes out where the last of its pieces is found
    row 1   c c b b . . . .

Only the end of a row cuts a document, and every document ends with the end-of-text token, which stands nowhere else. So a
piece is a whole document if it starts at 0 and ends with that token. The pieces of one document lie in one pool of the packer
(`pack.pool_documents`), so few are open at a time: memory is one record batch and the cut documents of a pool.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.errors import CorruptionError


def piece_stops(rows: pa.RecordBatch) -> np.ndarray:
    """Where each piece ends in the flat tokens of a whole record batch of `schemas.sequences`: (num_pieces,) int64."""
    width = rows.column("tokens").type.list_size
    offsets = columns.numbers(rows.column("lengths").offsets).astype(np.int64)
    sums = np.concatenate([[0], np.cumsum(columns.numbers(rows.column("lengths").values), dtype=np.int64)])
    row = np.repeat(np.arange(rows.num_rows), np.diff(offsets))  # (num_pieces,)
    return row * width + sums[1:] - sums[offsets[row]]


class DocumentJoiner:
    """Takes the record batches of one source and split in their order, and gives its documents."""

    def __init__(self, eos_id: int) -> None:
        self._eos_id = eos_id
        self._open: dict[bytes, dict[int, np.ndarray]] = {}  # by key: pieces by where they start
        self._found: dict[bytes, int] = {}  # by key: tokens of those pieces, kept since a document may have any number of them
        self._totals: dict[bytes, int] = {}  # by key, once the last piece is there

    def add(self, rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """The documents that are complete with these rows: their ids end to end, and lengths (num_docs,) int64."""
        stops = piece_stops(rows)
        lengths = columns.numbers(rows.column("lengths").values).astype(np.int64)
        starts = columns.numbers(rows.column("starts").values)
        flat = columns.numbers(rows.column("tokens").values)
        ends = flat[stops - 1] == self._eos_id
        tokens = _without_padding(rows, flat)
        sums = np.concatenate([[0], np.cumsum(lengths)])  # (num_pieces + 1,) into `tokens`
        keys = columns.key_matrix(rows.column("keys").values)
        found, found_lengths, at = [], [], 0
        for piece in np.flatnonzero((starts != 0) | ~ends).tolist():
            found.append(tokens[sums[at] : sums[piece]])
            found_lengths.append(lengths[at:piece])
            ids = tokens[sums[piece] : sums[piece + 1]]
            document = self._join(keys[piece].tobytes(), int(starts[piece]), ids, bool(ends[piece]))
            found += document
            found_lengths.append(np.array([sum(map(len, document))] if document else [], np.int64))
            at = piece + 1
        return np.concatenate([*found, tokens[sums[at] :]]), np.concatenate([*found_lengths, lengths[at:]])

    def finish(self) -> None:
        """Raises CorruptionError if a piece of some document never came."""
        if self._open:
            key = next(iter(self._open)).hex()
            raise CorruptionError(
                f"document {key}: some of its pieces are in no row, and {len(self._open) - 1} more are like it. "
                f"Where `min_piece` has left them out, or as they are in any case, `--rows` exports the rows; "
                f"`datapipe verify` checks all shards"
            )

    def _join(self, key: bytes, start: int, ids: np.ndarray, is_last: bool) -> list[np.ndarray]:
        """The pieces of the document in order, if this one completes it."""
        pieces = self._open.setdefault(key, {})
        pieces[start] = ids.copy()  # the record batch need not live as long
        if is_last:
            self._totals[key] = start + len(ids)
        self._found[key] = self._found.get(key, 0) + len(ids)
        if self._found[key] != self._totals.get(key, -1):
            return []
        del self._open[key], self._found[key], self._totals[key]
        return [pieces[start] for start in sorted(pieces)]


def _without_padding(rows: pa.RecordBatch, flat: np.ndarray) -> np.ndarray:
    """The ids of all pieces end to end: rows without what fills them up."""
    lists, width = rows.column("lengths"), rows.column("tokens").type.list_size
    sums = np.concatenate([[0], np.cumsum(columns.numbers(lists.values), dtype=np.int64)])
    filled = np.diff(sums[columns.numbers(lists.offsets)])  # (num_rows,)
    if int(filled.sum()) == len(flat):
        return flat
    return flat.reshape(-1, width)[np.arange(width) < filled[:, None]]
