"""batch(step): the pure function behind every batch.

    steps  ->  samples of this rank  ->  addresses  ->  rows  ->  the requested fields, cut into batches

Several steps can be built together: one pass of arithmetic and one gather, and each batch is a set of views of the result.

A *piece* is the part of one document that lies in one row; a document that was cut has pieces in several rows.

    field            shape            what it holds
    input_ids        (B, S)           token ids; a row past its documents is padded with the end-of-text id
    labels           (B, S)           the next token of the same document, else -100; "unshifted": input_ids, padding -100
    position_ids     (B, S)           from 0 in each piece
    segment_ids      (B, S)           number of the token's piece in its row, from 1; 0 for padding
    cu_seqlens       (n,) int32       borders of pieces in the flattened (B * S) batch, from 0 to B * S. The padding of a row is
                                      a run of its own, so that every token lies in a run; its labels are ignored
    max_seqlen       int              the longest run between two borders, as variable-length attention expects it
    piece_offsets    (B + 1,) int64   row r has the pieces offsets[r]:offsets[r + 1] of the three fields below
    piece_lengths    (P,) int32       tokens of each piece
    piece_starts     (P,) int64       token at which the piece starts in its document
    document_keys    (P, 16) uint8    the document of each piece
    sources          (B,) int32       the source of each row, an index into `Loader.sources`
    step             int              the step itself

`share.py` decides which rows of the global batch, and which of their tokens, a rank gets. Tokens of left-out documents are
padding: the end-of-text id, label -100, segment 0; their keys are zeros.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from datapipe.errors import CorruptionError, UserError, suggest
from datapipe.kernels.loader import batch as kernels
from datapipe.loader.buffers import BufferPool
from datapipe.loader.order.batch_order import BatchOrder
from datapipe.loader.order.source_order import MAX_REPLACEMENTS
from datapipe.loader.reading import RowReader
from datapipe.loader.share import Balance, Mesh, ranks_by_attention
from datapipe.shards.blocks import KEYS, LENGTHS, OFFSETS, STARTS, TOKENS, SequenceRows

Labels = Literal["shifted", "unshifted"]
OnCorrupt = Literal["raise", "replace"]

_PIECES = frozenset({OFFSETS, LENGTHS})
Batch = dict[str, Any]


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


class BatchBuilder:
    """Builds the batches of one rank. A batch depends on the constructor's arguments and its step, and on nothing else.

    Attributes:
        damaged_shards: paths of shards whose damaged rows were replaced.
    """

    def __init__(
        self,
        batch_order: BatchOrder,
        reader: RowReader,
        mesh: Mesh,
        fields: Sequence[str],
        labels: Labels,
        dtype: np.dtype,
        on_corrupt: OnCorrupt = "raise",
        balance: Balance = "rows",
    ) -> None:
        self.batch_order = batch_order
        self.reader = reader
        self.mesh = mesh
        self.fields = tuple(fields)
        self.labels: Labels = labels
        self.dtype = np.dtype(dtype)
        self.on_corrupt: OnCorrupt = on_corrupt
        self.balance: Balance = balance
        self.damaged_shards: set[str] = set()
        self._pool = BufferPool()
        for field in self.fields:
            if field not in FIELDS:
                raise UserError(f"fields: no field '{field}'.{suggest(field, FIELDS)} Expected names of {', '.join(FIELDS)}.")
        self._columns = frozenset[str]().union(*(FIELDS[field].columns for field in self.fields))
        if batch_order.lineage.skips.documents:
            self._columns |= {OFFSETS, LENGTHS, KEYS}
        self._tokens = mesh.columns(batch_order.inventory.snapshot.sequence_length)

    def on(self, batch_order: BatchOrder) -> BatchBuilder:
        """This builder for another order."""
        options = (self.fields, self.labels, self.dtype, self.on_corrupt, self.balance)
        return BatchBuilder(batch_order, self.reader, self.mesh, *options)

    def build(self, step: int) -> Batch:
        """The batch of this rank at `step`, by field."""
        return self.build_many([step])[0]

    def build_many(self, steps: Sequence[int]) -> list[Batch]:
        """The batches of this rank at `steps`, built together so that the work in Python is done once.

        The batches are disjoint views of the same arrays, so each keeps the memory of all.
        """
        samples = [self.samples(step) for step in steps]
        addresses, read = self._read(np.concatenate(samples), self._columns)
        borders = (0, *accumulate(map(len, samples)))
        chunk = Chunk(
            steps=steps,
            borders=borders,
            read=read,
            addresses=addresses,
            batch_order=self.batch_order,
            hidden=self._hide(steps, borders, read),
            columns=self._tokens,
            sequence_length=self.batch_order.inventory.snapshot.sequence_length,
            dtype=self.dtype,
            pool=self._pool,
            labels=self.labels,
        )
        values = [FIELDS[field].make(chunk) for field in self.fields]
        return [dict(zip(self.fields, batch)) for batch in zip(*values)] if values else [{} for _ in steps]

    def samples(self, step: int) -> np.ndarray:
        """The samples of this rank at `step`: (B,) int64, ascending."""
        samples = self.batch_order.samples(step)
        if self.balance == "rows" or self.mesh.data_size == 1:
            return samples[self.mesh.rows(len(samples))]
        return samples[self.ranks(step) == self.mesh.data_rank]

    def ranks(self, step: int) -> np.ndarray:
        """The rank of each row of the global batch at `step`: (global_batch_size,) int64, fewer at the end."""
        samples, size = self.batch_order.samples(step), self.mesh.data_size
        if self.balance == "rows" or size == 1:
            return np.repeat(np.arange(size), np.diff(np.arange(size + 1) * len(samples) // size))
        _, read = self._read(samples, _PIECES)
        length = self.batch_order.inventory.snapshot.sequence_length
        return ranks_by_attention(read.piece_lengths, read.piece_offsets, length, size)

    def _read(self, samples: np.ndarray, columns: frozenset[str]) -> tuple[np.ndarray, SequenceRows]:
        """Addresses and rows of some samples; with `on_corrupt="replace"`, damaged rows are replaced."""
        addresses = self.batch_order.locate(samples)
        try:
            return addresses, self._rows(addresses, columns)
        except CorruptionError:
            if self.on_corrupt == "raise":
                raise
        for number, sample in enumerate(samples):
            addresses[number] = self._readable_address(sample, int(addresses[number]))
        return addresses, self._rows(addresses, columns)

    def _rows(self, addresses: np.ndarray, columns: frozenset[str]) -> SequenceRows:
        return self.reader.read(addresses, columns, self.dtype, self._pool.empty)

    def _readable_address(self, sample: int, address: int) -> int:
        """`address`, or if its row is damaged, that of the first undamaged replacement: the same one on every rank."""
        for attempt in range(1, MAX_REPLACEMENTS + 1):
            try:
                self._rows(np.array([address]), self._columns)
                return address
            except CorruptionError as error:
                shard = self.batch_order.layout.shards[int(self.batch_order.layout.find(np.array([address]))[0][0])]
                if shard.path not in self.damaged_shards:
                    self.damaged_shards.add(shard.path)
                    warnings.warn(f"{error}; damaged rows are replaced by other rows of '{shard.source}'", stacklevel=2)
                if attempt == MAX_REPLACEMENTS:
                    raise
            address = int(self.batch_order.locate(np.array([sample]), attempt)[0])
        raise AssertionError(sample)

    def _hide(self, steps: Sequence[int], borders: Sequence[int], read: SequenceRows) -> np.ndarray:
        """Turns the tokens of left-out documents into padding. Returns `Chunk.hidden`."""
        if not self.batch_order.lineage.skips.documents:
            return np.empty((0, 3), np.int64)
        hidden: list[tuple[int, int, int]] = []
        eos_id = self.batch_order.inventory.snapshot.tokenizer.eos_id
        for step, first_row, stop_row in zip(steps, borders, borders[1:]):
            left_out = self.batch_order.left_out_documents(step)
            for row in range(first_row, stop_row):
                start = 0
                for piece in range(read.piece_offsets[row], read.piece_offsets[row + 1]):
                    stop = start + int(read.piece_lengths[piece])
                    if read.keys[piece].tobytes() in left_out:
                        hidden.append((row, start, stop))
                        read.keys[piece] = 0
                        if TOKENS in self._columns:
                            read.tokens[row, start:stop] = eos_id
                    start = stop
        return np.array(hidden, np.int64).reshape(-1, 3)


def _labels(chunk: Chunk) -> list[Any]:
    out = chunk.per_token()
    _KERNELS[chunk.labels, out.itemsize](chunk.read.tokens, chunk.read.piece_offsets, chunk.read.piece_lengths, out)
    return chunk.per_row_of_tokens(out, hidden=kernels.IGNORED)


def _position_ids(chunk: Chunk) -> list[Any]:
    out = chunk.per_token()
    _KERNELS["positions", out.itemsize](chunk.read.piece_offsets, chunk.read.piece_lengths, out)
    return chunk.per_row_of_tokens(out)


def _segment_ids(chunk: Chunk) -> list[Any]:
    out = chunk.per_token()
    _KERNELS["segments", out.itemsize](chunk.read.piece_offsets, chunk.read.piece_lengths, out)
    return chunk.per_row_of_tokens(out, hidden=0)


def _cu_seqlens(chunk: Chunk) -> list[Any]:
    out, offsets, _ = chunk.runs
    return [out[start:stop] for start, stop in zip(offsets.tolist(), offsets[1:].tolist())]


def _piece_offsets(chunk: Chunk) -> list[Any]:
    offsets = chunk.read.piece_offsets
    return [offsets[start : stop + 1] - offsets[start] for start, stop in zip(chunk.borders, chunk.borders[1:])]


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """How a field is made.

    Attributes:
        make: a chunk -> the value of the field for each of its batches.
        columns: the columns of the rows that `make` needs.
    """

    make: Callable[[Chunk], Sequence[Any]]
    columns: frozenset[str] = frozenset()


FIELDS: Mapping[str, Field] = {
    "input_ids": Field(make=lambda chunk: chunk.per_row_of_tokens(chunk.read.tokens), columns=frozenset({TOKENS})),
    "labels": Field(make=_labels, columns=_PIECES | {TOKENS}),
    "position_ids": Field(make=_position_ids, columns=_PIECES),
    "segment_ids": Field(make=_segment_ids, columns=_PIECES),
    "cu_seqlens": Field(make=_cu_seqlens, columns=_PIECES),
    "max_seqlen": Field(make=lambda chunk: chunk.runs[2].tolist(), columns=_PIECES),
    "piece_offsets": Field(make=_piece_offsets, columns=frozenset({OFFSETS})),
    "piece_lengths": Field(make=lambda chunk: chunk.per_piece(chunk.read.piece_lengths), columns=_PIECES),
    "piece_starts": Field(make=lambda chunk: chunk.per_piece(chunk.read.starts), columns=frozenset({OFFSETS, STARTS})),
    "document_keys": Field(make=lambda chunk: chunk.per_piece(chunk.read.keys), columns=frozenset({OFFSETS, KEYS})),
    "sources": Field(make=lambda chunk: chunk.per_row(chunk.batch_order.layout.source_of(chunk.addresses).astype(np.int32))),
    "step": Field(make=lambda chunk: chunk.steps),
}

PER_TOKEN = frozenset({"input_ids", "labels", "position_ids", "segment_ids"})
"""The fields of shape (B, S), in the requested dtype."""

_KERNELS = {
    ("shifted", 8): kernels.shifted_labels_64,
    ("shifted", 4): kernels.shifted_labels_32,
    ("unshifted", 8): kernels.unshifted_labels_64,
    ("unshifted", 4): kernels.unshifted_labels_32,
    ("positions", 8): kernels.positions_64,
    ("positions", 4): kernels.positions_32,
    ("segments", 8): kernels.segments_64,
    ("segments", 4): kernels.segments_32,
}
"""By the array that is made and the bytes of an item."""
