"""The fields by name.

A *piece* is the part of one document that lies in one row; a document that was cut has pieces in several rows.

    field            shape            what it holds
    input_ids        (B, S)           token ids; a row past its documents is padded with the end-of-text id
    labels           (B, S)           the next token of the same document, else -100; "unshifted": input_ids, padding -100
    position_ids     (B, S)           from 0 in each piece
    segment_ids      (B, S)           number of the token's piece in its row, from 1; 0 for padding
    cu_seqlens       (n,) int32       borders of pieces in the flattened (B * S) batch, from 0 to B * S. The padding of a row is
                                      a run of its own, so that every token lies in a run; its labels are ignored
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

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datapipe.kernels.tokens import batch as kernels
from datapipe.loader.chunk import Chunk
from datapipe.shards.blocks import KEYS, LENGTHS, OFFSETS, STARTS, TOKENS

PIECES = frozenset({OFFSETS, LENGTHS})
"""The columns with the borders of a row's pieces."""

_LABELS = {"shifted": kernels.shifted_labels, "unshifted": kernels.unshifted_labels}


def _labels(chunk: Chunk) -> list[Any]:
    out = chunk.per_token()
    _LABELS[chunk.labels](chunk.read.tokens, chunk.read.piece_offsets, chunk.read.piece_lengths, out)
    return chunk.per_row_of_tokens(out, filler=kernels.IGNORED, hidden=kernels.IGNORED)


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
    """How a field is made.

    Attributes:
        make: a chunk -> the value of the field for each of its batches.
        columns: of the rows, that `make` needs.
        counts_targets: whether `make` needs `Chunk.global_targets`.
    """

    make: Callable[[Chunk], Sequence[Any]]
    columns: frozenset[str] = frozenset()
    counts_targets: bool = False


FIELDS: Mapping[str, Field] = {
    "input_ids": Field(
        make=lambda chunk: chunk.per_row_of_tokens(chunk.read.tokens, filler=chunk.eos_id), columns=frozenset({TOKENS})
    ),
    "labels": Field(make=_labels, columns=PIECES | {TOKENS}),
    "position_ids": Field(make=_position_ids, columns=PIECES),
    "segment_ids": Field(make=_segment_ids, columns=PIECES),
    "cu_seqlens": Field(make=lambda chunk: chunk.cu_seqlens, columns=PIECES),
    "max_seqlen": Field(make=lambda chunk: chunk.max_seqlens, columns=PIECES),
    "piece_offsets": Field(make=_piece_offsets, columns=frozenset({OFFSETS})),
    "piece_lengths": Field(make=lambda chunk: chunk.per_piece(chunk.read.piece_lengths), columns=PIECES),
    "piece_starts": Field(make=lambda chunk: chunk.per_piece(chunk.read.starts), columns=frozenset({OFFSETS, STARTS})),
    "document_keys": Field(make=lambda chunk: chunk.per_piece(chunk.read.keys), columns=frozenset({OFFSETS, KEYS})),
    "sources": Field(make=lambda chunk: chunk.per_row(chunk.batch_order.layout.source_of(chunk.addresses).astype(np.int32))),
    "step": Field(make=lambda chunk: chunk.steps),
    "global_rows": Field(make=lambda chunk: [chunk.batch_order.num_rows(step) for step in chunk.steps]),
    "global_target_tokens": Field(make=lambda chunk: chunk.global_targets, counts_targets=True),
}

PER_TOKEN = frozenset({"input_ids", "labels", "position_ids", "segment_ids"})
"""The fields of shape (B, S), in the requested dtype."""

GLOBAL = frozenset({"global_rows", "global_target_tokens"})
"""The fields by which a trainer scales the loss of a rank, so that the sum over ranks is the mean of the global batch."""
