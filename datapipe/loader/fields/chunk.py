"""The rows of several batches, and how their fields are cut into batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from datapipe.kernels.loader import batch as kernels
from datapipe.loader.buffers import BufferPool
from datapipe.loader.order.batch_order import BatchOrder
from datapipe.shards.blocks import SequenceRows

Labels = Literal["shifted", "unshifted"]


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """The rows of several batches end to end, from which their fields are made.

    Attributes:
        steps: of the batches.
        borders: batch b has the rows borders[b] to borders[b + 1].
        read: the columns of the rows that the fields need; tokens in the requested dtype.
        addresses: (num_rows,) int64.
        batch_order: the order that the addresses belong to.
        hidden: (n, 3) int64, the row, start token and stop token of each left-out piece.
        columns: the tokens of each row that this rank gets; None for all.
        sequence_length, dtype: of the fields with one number per token.
        pool: memory for those fields.
        labels: shifted or unshifted.
        global_targets: labels that count in the global batch of each step; empty where no field needs them.
    """

    steps: Sequence[int]
    borders: tuple[int, ...]
    read: SequenceRows
    addresses: np.ndarray
    batch_order: BatchOrder
    hidden: np.ndarray
    columns: np.ndarray | None
    sequence_length: int
    dtype: np.dtype
    pool: BufferPool
    labels: Labels
    global_targets: Sequence[int]

    def per_row_of_tokens(self, values: np.ndarray, hidden: int | None = None) -> list[Any]:
        """This rank's tokens of `values` (num_rows, S), cut into batches; left-out documents are set to `hidden`."""
        if hidden is not None:
            for row, start, stop in self.hidden.tolist():
                values[row, start:stop] = hidden
        return self.per_row(values if self.columns is None else values[:, self.columns])

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
