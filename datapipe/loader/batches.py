"""batch(step): the pure function that every path to a batch goes through.

    step  ->  samples of this rank  ->  addresses  ->  rows  ->  the fields that were asked for

    field            shape            what it holds
    input_ids        (B, S)           token ids; a row past its documents is padded with the end-of-text id
    labels           (B, S)           the next token of the same document, else -100; "unshifted": input_ids, padding -100
    position_ids     (B, S)           from 0 in each piece of a document
    segment_ids      (B, S)           the piece a token belongs to, from 1 in each row; 0 for padding
    cu_seqlens       (n,) int32       borders of pieces and of padding in the flattened (B * S) batch, from 0 to B * S
    piece_offsets    (B + 1,) int64   row r has the pieces offsets[r]:offsets[r + 1] of the three fields below
    piece_lengths    (P,) int32       tokens of each piece
    piece_starts     (P,) int64       where the piece starts in its document
    document_keys    (P, 16) uint8    the document of each piece
    sources          (B,) int32       the source of each row, an index into `Loader.sources`
    step             int              the step itself

Which rows of the global batch, and which of their tokens, a rank gets: `share.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from datapipe.errors import UserError, suggest
from datapipe.kernels import batch as kernels
from datapipe.loader.course import Course
from datapipe.loader.reading import RowReader
from datapipe.loader.share import Mesh
from datapipe.shards.reader import SequenceRows

Labels = Literal["shifted", "unshifted"]
Batch = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What fields are made of.

    Attributes:
        step: of the batch.
        tokens: (B, S) int64.
        read: the rows as the shards hold them.
        sources: (B,) int64.
        labels: which kind.
    """

    step: int
    tokens: np.ndarray
    read: SequenceRows
    sources: np.ndarray
    labels: Labels


class BatchBuilder:
    """Builds the batches of one rank. Holds nothing that a batch depends on but its arguments."""

    def __init__(
        self, course: Course, reader: RowReader, mesh: Mesh, fields: Sequence[str], labels: Labels, dtype: np.dtype
    ) -> None:
        self.course = course
        self.reader = reader
        self.mesh = mesh
        self.fields = tuple(fields)
        self.labels: Labels = labels
        self.dtype = dtype
        for field in self.fields:
            if field not in FIELDS:
                raise UserError(f"fields: no field '{field}'.{suggest(field, FIELDS)} Expected some of {', '.join(FIELDS)}.")

    def on(self, course: Course) -> BatchBuilder:
        """The same builder for another course."""
        return BatchBuilder(course, self.reader, self.mesh, self.fields, self.labels, self.dtype)

    def build(self, step: int) -> Batch:
        """The batch of this rank at `step`, by field."""
        samples = self.course.samples(step)
        addresses = self.course.locate(samples[self.mesh.rows(len(samples))])
        read = self.reader.read(addresses)
        rows = Rows(
            step=step,
            tokens=read.tokens.astype(np.int64),
            read=read,
            sources=self.course.layout.source_of(addresses),
            labels=self.labels,
        )
        return {field: self._as_asked(FIELDS[field](rows), field) for field in self.fields}

    def _as_asked(self, value: Any, field: str) -> Any:
        return value.astype(self.dtype, copy=False) if field in PER_TOKEN else value


def _labels(rows: Rows) -> np.ndarray:
    make = kernels.shifted_labels if rows.labels == "shifted" else kernels.unshifted_labels
    out = np.empty_like(rows.tokens)
    make(rows.tokens, rows.read.piece_offsets, rows.read.piece_lengths, out)
    return out


def _position_ids(rows: Rows) -> np.ndarray:
    out = np.empty_like(rows.tokens)
    kernels.positions(rows.read.piece_offsets, rows.read.piece_lengths, out)
    return out


def _segment_ids(rows: Rows) -> np.ndarray:
    out = np.empty_like(rows.tokens)
    kernels.segments(rows.read.piece_offsets, rows.read.piece_lengths, out)
    return out


def _cu_seqlens(rows: Rows) -> np.ndarray:
    num_rows, length = rows.tokens.shape
    lengths, offsets = rows.read.piece_lengths.astype(np.int64), rows.read.piece_offsets
    # ends: (num_pieces,) within the row, then in the flattened batch
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    row_of = np.repeat(np.arange(num_rows), np.diff(offsets))
    ends = before[1:] - before[offsets[row_of]] + row_of * length
    return np.unique(np.concatenate([np.arange(num_rows + 1) * length, ends])).astype(np.int32)


FIELDS: Mapping[str, Callable[[Rows], Any]] = {
    "input_ids": lambda rows: rows.tokens,
    "labels": _labels,
    "position_ids": _position_ids,
    "segment_ids": _segment_ids,
    "cu_seqlens": _cu_seqlens,
    "piece_offsets": lambda rows: rows.read.piece_offsets,
    "piece_lengths": lambda rows: rows.read.piece_lengths,
    "piece_starts": lambda rows: rows.read.starts,
    "document_keys": lambda rows: rows.read.keys,
    "sources": lambda rows: rows.sources.astype(np.int32),
    "step": lambda rows: rows.step,
}

PER_TOKEN = frozenset({"input_ids", "labels", "position_ids", "segment_ids"})
"""The fields of shape (B, S), which come in the dtype that was asked for."""
