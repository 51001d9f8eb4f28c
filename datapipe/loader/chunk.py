"""The rows of several batches, and how their fields are cut into batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from datapipe.errors import UserError
from datapipe.kernels.tokens import batch as kernels
from datapipe.loader.buffers import BufferPool
from datapipe.loader.context_slices import ContextSlice, num_borders, slice_documents
from datapipe.loader.order.batch_order import BatchOrder
from datapipe.loader.share import Mesh
from datapipe.shards.blocks import SequenceRows

Labels = Literal["shifted", "unshifted"]


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """The rows of several batches end to end, from which their fields are made.

    Attributes:
        borders: batch b has the rows borders[b] to borders[b + 1].
        read: the columns of the rows that the fields need; tokens in the requested dtype.
        addresses: (num_rows,) int64.
        hidden: (n, 3) int64, the row, start token and stop token of each left-out piece.
        mesh: the rank that the batches are for.
        columns: the tokens of each row that it gets; None for all.
        num_runs: the runs of a batch that `cu_seqlens` has room for; None for as many as there are.
        global_targets: labels that count in the global batch of each step; empty where no field needs them.
    """

    steps: Sequence[int]
    borders: tuple[int, ...]
    read: SequenceRows
    addresses: np.ndarray
    batch_order: BatchOrder
    hidden: np.ndarray
    mesh: Mesh
    columns: np.ndarray | None
    num_runs: int | None
    sequence_length: int
    dtype: np.dtype
    pool: BufferPool
    labels: Labels
    global_targets: Sequence[int]

    def per_row_of_tokens(self, values: np.ndarray, filler: int, hidden: int | None = None) -> list[Any]:
        """This rank's tokens of `values` (num_rows, S), cut into batches.

        Args:
            filler: of the padding of documents that are split.
            hidden: the value of left-out documents.
        """
        if hidden is not None:
            for row, start, stop in self.hidden.tolist():
                values[row, start:stop] = hidden
        if self.mesh.splits_documents and self.mesh.num_parts == 1:
            return [rows.reshape(1, -1) for rows in self.per_row(values)]
        if self.mesh.splits_documents:
            return [
                context.take(rows, filler, self.pool.empty((1, len(context.token_indices)), values.dtype))
                for context, rows in zip(self.context_slices, self.per_row(values))
            ]
        if self.columns is not None:
            part = self.pool.empty((len(values), len(self.columns)), values.dtype)
            values = np.take(values, self.columns, axis=1, out=part, mode="clip")  # without a mode, `out` is written twice
        return self.per_row(values)

    @property
    def eos_id(self) -> int:
        """The end-of-text id, which is the padding."""
        return self.batch_order.inventory.snapshot.tokenizer.eos_id

    def per_row(self, values: np.ndarray) -> list[Any]:
        """`values` (num_rows, …) cut into batches: views."""
        return [values[start:stop] for start, stop in zip(self.borders, self.borders[1:])]

    def per_piece(self, values: np.ndarray) -> list[Any]:
        """`values` (num_pieces, …) cut into batches: views."""
        offsets = self.read.piece_offsets
        return [values[offsets[start] : offsets[stop]] for start, stop in zip(self.borders, self.borders[1:])]

    def per_token(self) -> np.ndarray:
        """An uninitialised array for a field: (num_rows, S)."""
        return self.pool.empty((self.borders[-1], self.sequence_length), self.dtype)

    @cached_property
    def runs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Borders of the runs of all batches, the index of each batch's first border, and the longest run of each batch."""
        num_batches, lengths = len(self.steps), self.read.piece_lengths
        out = np.empty(num_batches + self.borders[-1] + len(lengths), np.int32)
        offsets, longest = np.empty(num_batches + 1, np.int64), np.empty(num_batches, np.int64)
        batch_rows = np.array(self.borders, np.int64)
        kernels.borders(self.read.piece_offsets, lengths, batch_rows, self.sequence_length, out, offsets, longest)
        return out, offsets, longest

    @cached_property
    def context_slices(self) -> list[ContextSlice]:
        """This rank's tokens of each batch, where documents are split."""
        return [slice_documents(borders, self.mesh, self.sequence_length, self.num_runs) for borders in self._borders]

    @property
    def cu_seqlens(self) -> list[np.ndarray]:
        borders = [context.cu_seqlens for context in self.context_slices] if self.mesh.splits_documents else self._borders
        return borders if self.num_runs is None else [self._padded(each, self.num_runs) for each in borders]

    @property
    def max_seqlens(self) -> list[int]:
        """The longest run in this rank's tokens of each batch; with `num_runs`, the longest that there can be."""
        if self.num_runs is not None:
            return [self.sequence_length // self.mesh.context_size for _ in self.steps]
        if self.mesh.splits_documents:
            return [int(np.diff(context.cu_seqlens).max(initial=0)) for context in self.context_slices]
        return self.runs[2].tolist()

    @cached_property
    def _borders(self) -> list[np.ndarray]:
        out, offsets, _ = self.runs
        borders = [out[start:stop] for start, stop in zip(offsets.tolist(), offsets[1:].tolist())]
        for step, each in zip(self.steps, borders):
            if self.num_runs is not None and len(each) - 1 > self.num_runs:
                raise UserError(
                    f"step {step}: this rank's batch has {len(each) - 1} runs (documents, and the padding of rows), and "
                    f"pad_cu_seqlens={self.num_runs} has no room for them. Open the loader with a larger one, and load the "
                    f"same state: pad_cu_seqlens is not part of it. Loader.most_runs(num_steps) counts ahead what steps need."
                )
        return borders

    def _padded(self, borders: np.ndarray, num_runs: int) -> np.ndarray:
        """`borders` with the last one repeated up to the fixed length: runs of no token."""
        out = np.empty(num_borders(self.mesh, self.sequence_length, num_runs), np.int32)
        out[: len(borders)], out[len(borders) :] = borders, borders[-1]
        return out


def count_targets(read: SequenceRows, hidden: np.ndarray, borders: Sequence[int], labels: Labels) -> list[int]:
    """The labels of each batch that a loss counts: not -100, and for "unshifted" not the first of a row.

    A model that shifts labels itself has no token that predicts the first of a row. A row of pieces of 4 and 3 tokens has 3 + 2
    targets with shifted labels, and 6 with unshifted ones, where the last token of a piece predicts the first of the next.

    Args:
        read: the rows of all batches, with the lengths of their pieces.
        hidden: (n, 3) int64, the row, start token and stop token of each left-out piece.
        borders: batch b has the rows borders[b]:borders[b + 1].
    """
    # used, untaught: (num_rows,) tokens of documents, and those of them that no token predicts
    used = tokens_of_rows(read)
    untaught = np.diff(read.piece_offsets) if labels == "shifted" else (used > 0).astype(np.int64)
    targets = used - untaught
    rows, starts, stops = hidden.T
    np.subtract.at(targets, rows, stops - starts - ((starts == 0) | (labels == "shifted")))
    totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(targets)])
    return np.diff(totals[np.array(borders)]).tolist()


def tokens_of_rows(read: SequenceRows) -> np.ndarray:
    """The tokens of documents in each row: (num_rows,) int64."""
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(read.piece_lengths, dtype=np.int64)])
    return sums[read.piece_offsets[1:]] - sums[read.piece_offsets[:-1]]
