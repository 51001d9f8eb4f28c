"""The fields by name.

A *piece* is the part of one document that lies in one row; a document that was cut has pieces in several rows.

    field            shape            what it holds
    input_ids        (B, S)           token ids; a row past its documents is padded with the end-of-text id
    labels           (B, S)           the next token of the same document, else -100; "unshifted": input_ids, padding -100. If
                                      documents have segments, -100 for targets that are not learned, too
    loss_weights     (B, S) float32   1 where `labels` has a target, else 0
    position_ids     (B, S)           from 0 in each piece
    segment_ids      (B, S)           number of the token's piece in its row, from 1; 0 for padding
    cu_seqlens       (n,) int32       borders of pieces in the flattened (B * S) batch, from 0 to B * S. The padding of a row is
                                      a separate run, so that every token lies in a run; its labels are ignored
    max_seqlen       int              the longest run between two borders. With `pad_cu_seqlens`, `cu_seqlens` has a fixed
                                      length, its last entries repeat the end, and `max_seqlen` is the longest run possible
    piece_offsets    (B + 1,) int64   row r has the pieces offsets[r]:offsets[r + 1] of the three fields below
    piece_lengths    (P,) int32       tokens of each piece
    piece_starts     (P,) int64       token at which the piece starts in its document
    document_keys    (P, 16) uint8    the document of each piece
    sources          (B,) int32       the source of each row, an index into `Loader.sources`
    step             int              the step itself
    global_rows      int              rows of the global batch, over all ranks
    global_target_tokens    int       labels of the global batch that a loss counts: neither -100 nor, where the model shifts
                                      labels itself, the first of a row

Where each document is split over context ranks (`context_slices.py`), fields per token have the shape (1, T) and hold this
rank's parts of the runs; `segment_ids` are numbered over the batch, and `cu_seqlens` and `max_seqlen` are those of the parts.

Tokens of left-out documents are padding: the end-of-text id, label -100, segment 0; their keys are zeros.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.kernels.tokens import batch as kernels
from datapipe.loader.buffers import BufferPool
from datapipe.loader.context_slices import ContextSlice, num_borders, slice_documents
from datapipe.loader.order.batch_order import BatchOrder
from datapipe.loader.share import Mesh
from datapipe.shards.blocks import KEYS, LENGTHS, OFFSETS, STARTS, TOKENS, SequenceRows
from datapipe.shards.schemas import UNLEARNED

Labels = Literal["shifted", "unshifted"]


@dataclass(kw_only=True)  # frozen it takes 1 µs more to make, and there may be one for each batch
class Chunk:
    """The rows of several batches end to end, from which their fields are made."""

    steps: Sequence[int]
    borders: tuple[int, ...]  # batch b has the rows borders[b] to borders[b + 1]
    read: SequenceRows  # the columns of the rows that the fields need; tokens in the requested dtype
    addresses: np.ndarray  # (num_rows,) int64
    batch_order: BatchOrder
    hidden: np.ndarray  # (n, 3) int64, the row, start token and stop token of each left-out piece
    mesh: Mesh
    columns: np.ndarray | None  # the tokens of each row that it gets; None for all
    num_runs: int | None  # the runs of a batch that `cu_seqlens` has room for; None for as many as there are
    sequence_length: int
    dtype: np.dtype
    pool: BufferPool
    labels: Labels
    # labels that count in the global batch of each step; empty where no field needs them
    global_targets: Sequence[int]

    def per_row_of_tokens(self, values: np.ndarray, filler: int, hidden: int | None = None) -> list[Any]:
        """This rank's tokens of `values` (num_rows, S) by batch. `filler` pads split documents."""
        if hidden is not None and len(self.hidden):
            for row, start, stop in self.hidden.tolist():
                values[row, start:stop] = hidden
        if self.mesh.context_size > 1 or self.mesh.splits_documents:
            return self._cut(values, filler)
        return self.per_row(values)

    def _cut(self, values: np.ndarray, filler: int) -> list[Any]:
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

    def per_row(self, values: np.ndarray) -> list[Any]:
        return [values[start:stop] for start, stop in zip(self.borders, self.borders[1:])]

    def per_piece(self, values: np.ndarray) -> list[Any]:
        offsets = self.read.piece_offsets
        return [values[offsets[start] : offsets[stop]] for start, stop in zip(self.borders, self.borders[1:])]

    def per_token(self) -> np.ndarray:
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
    `hidden`: as in `Chunk`."""
    # used, untaught: (num_rows,) tokens of documents, and those of them that no token predicts
    used = tokens_of_rows(read)
    untaught = np.diff(read.piece_offsets) if labels == "shifted" else (used > 0).astype(np.int64)
    targets = used - untaught
    rows, starts, stops = hidden.T
    np.subtract.at(targets, rows, stops - starts - ((starts == 0) | (labels == "shifted")))
    if len(read.runs):
        targets -= _ignored(read, hidden, labels)
    totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(targets)])
    return np.diff(totals[np.array(borders)]).tolist()


def _ignored(read: SequenceRows, hidden: np.ndarray, labels: Labels) -> np.ndarray:
    """The targets of each row that no loss counts, (num_rows,), without those of left-out documents."""
    counts = np.empty(len(read.piece_offsets) - 1, np.int64)
    is_shifted = labels == "shifted"
    kernels.count_ignored(read.piece_offsets, read.piece_lengths, read.run_offsets, read.runs, is_shifted, counts)
    for row, start, stop in hidden.tolist():  # a left-out document is one piece of the row
        runs = read.runs[read.run_offsets[row] : read.run_offsets[row + 1]].reshape(-1, 2)
        inside = np.clip(runs, start + (is_shifted or start == 0), stop)
        counts[row] -= int((inside[:, 1] - inside[:, 0]).sum())
    return counts


def tokens_of_rows(read: SequenceRows) -> np.ndarray:
    """The tokens of documents in each row: (num_rows,) int64."""
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(read.piece_lengths, dtype=np.int64)])
    return sums[read.piece_offsets[1:]] - sums[read.piece_offsets[:-1]]


PIECES = frozenset({OFFSETS, LENGTHS})  # the columns with the borders of a row's pieces


def _input_ids(chunk: Chunk) -> list[Any]:
    return chunk.per_row_of_tokens(chunk.read.tokens, filler=chunk.batch_order.inventory.snapshot.tokenizer.eos_id)


def _label_rows(chunk: Chunk) -> np.ndarray:
    """The labels of whole rows, (num_rows, S)."""
    read, is_shifted = chunk.read, chunk.labels == "shifted"
    if is_shifted:
        out = read.next_tokens
    else:
        out = chunk.per_token()
        kernels.unshifted_labels(read.tokens, read.piece_offsets, read.piece_lengths, out)
    if len(read.runs):
        kernels.ignore_runs(read.run_offsets, read.runs, int(is_shifted), out)
    return out


def _labels(chunk: Chunk) -> list[Any]:
    return chunk.per_row_of_tokens(_label_rows(chunk), filler=kernels.IGNORED, hidden=kernels.IGNORED)


def _loss_weights(chunk: Chunk) -> list[Any]:
    out = chunk.pool.empty((chunk.borders[-1], chunk.sequence_length), np.float32)
    np.not_equal(_label_rows(chunk), kernels.IGNORED, out=out, casting="unsafe")
    return chunk.per_row_of_tokens(out, filler=0, hidden=0)


def _position_ids(chunk: Chunk) -> list[Any]:
    if chunk.mesh.splits_documents and chunk.mesh.num_parts > 1:
        return [context.positions.astype(chunk.dtype).reshape(1, -1) for context in chunk.context_slices]
    out = chunk.per_token()
    kernels.positions(chunk.read.piece_offsets, chunk.read.piece_lengths, out)
    return chunk.per_row_of_tokens(out, filler=0)


def _segment_ids(chunk: Chunk) -> list[Any]:
    out = chunk.per_token()
    kernels.segments(chunk.read.piece_offsets, chunk.read.piece_lengths, out)
    if chunk.mesh.splits_documents:  # the rows of a batch become one flat row, so pieces are numbered over all
        earlier = np.concatenate([offsets[:-1] for offsets in _piece_offsets(chunk)])
        np.add(out, earlier[:, None], out=out, where=out > 0, casting="same_kind")
    return chunk.per_row_of_tokens(out, filler=0, hidden=0)


def _piece_offsets(chunk: Chunk) -> list[Any]:
    offsets = chunk.read.piece_offsets
    return [offsets[start : stop + 1] - offsets[start] for start, stop in zip(chunk.borders, chunk.borders[1:])]


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    make: Callable[[Chunk], Sequence[Any]]  # a chunk -> the value of the field for each of its batches
    columns: frozenset[str] = frozenset()
    counts_targets: bool = False  # whether `make` needs `Chunk.global_targets`
    per: Literal["token", "row", "piece", "batch"]  # what has a value; a batch has a number
    dtype: str = ""  # of an array; empty for the dtype that is asked for, and for numbers
    width: int = 1  # values in an entry


def _per_token(make: Callable[[Chunk], Sequence[Any]], columns: frozenset[str], dtype: str = "") -> Field:
    return Field(make=make, columns=columns, per="token", dtype=dtype)


def _per_piece(make: Callable[[Chunk], Sequence[Any]], dtype: str, columns: frozenset[str] = PIECES, width: int = 1) -> Field:
    return Field(make=make, columns=columns, per="piece", dtype=dtype, width=width)


FIELDS: Mapping[str, Field] = {
    "input_ids": _per_token(_input_ids, frozenset({TOKENS})),
    "labels": _per_token(_labels, frozenset({TOKENS, UNLEARNED})),
    "loss_weights": _per_token(_loss_weights, frozenset({TOKENS, UNLEARNED}), "float32"),
    "position_ids": _per_token(_position_ids, PIECES),
    "segment_ids": _per_token(_segment_ids, PIECES),
    "cu_seqlens": _per_piece(lambda chunk: chunk.cu_seqlens, "int32"),
    "max_seqlen": Field(make=lambda chunk: chunk.max_seqlens, columns=PIECES, per="batch"),
    "piece_offsets": _per_piece(_piece_offsets, "int64", frozenset({OFFSETS})),
    "piece_lengths": _per_piece(lambda chunk: chunk.per_piece(chunk.read.piece_lengths), "int32"),
    "piece_starts": _per_piece(lambda chunk: chunk.per_piece(chunk.read.starts), "int64", frozenset({OFFSETS, STARTS})),
    "document_keys": _per_piece(lambda chunk: chunk.per_piece(chunk.read.keys), "uint8", frozenset({OFFSETS, KEYS}), 16),
    "sources": Field(
        make=lambda chunk: chunk.per_row(chunk.batch_order.layout.source_of(chunk.addresses).astype(np.int32)),
        per="row",
        dtype="int32",
    ),
    "step": Field(make=lambda chunk: chunk.steps, per="batch"),
    "global_rows": Field(make=lambda chunk: [chunk.batch_order.num_rows(step) for step in chunk.steps], per="batch"),
    "global_target_tokens": Field(make=lambda chunk: chunk.global_targets, counts_targets=True, per="batch"),
}

PER_TOKEN = frozenset(name for name, field in FIELDS.items() if field.per == "token")
"""The fields of shape (B, S), in the requested dtype but for `loss_weights`."""

LABELLED = frozenset({"labels", "loss_weights"})

GLOBAL = frozenset({"global_rows", "global_target_tokens"})
"""The fields by which a trainer scales the loss of a rank, so that the sum over ranks is the mean of the global batch."""
