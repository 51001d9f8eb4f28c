"""What a trainer wants beside the tokens of a row: labels, positions, segments and borders, from the lengths of its pieces.

    row       a b c .  d e .  p p        two documents of 4 and 3 tokens, `.` their end of text, and two of padding
    labels    b c . -  e . -  - -        the next token of the same document; - is -100
    position  0 1 2 3  0 1 2  0 1
    segment   1 1 1 1  2 2 2  0 0
    borders   0 4 7 9                    the longest run is 4

Kernels whose name ends in 64 and 32 write int64 and int32. Loops run over slices, from 0 to a length, so that the
compiler makes vectors of them. Measured on one core of a shared 2-core AMD EPYC: 7 us for the labels of 16 rows of 2,048 tokens
in int64, 3.5 us for positions or segments; with indices of rows instead of slices it was 35 and 16 us.
"""

from __future__ import annotations

from typing import Any

from datapipe.kernels import inline, kernel
from datapipe.kernels.types import (
    Int32Matrix,
    Int32MatrixOut,
    Int32s,
    Int32sOut,
    Int64Matrix,
    Int64MatrixOut,
    Int64s,
    Int64sOut,
)

IGNORED = -100
"""The label that cross-entropy in torch, JAX's optax and Hugging Face's trainers leave out."""


@inline
def _fill(out: Any, value: Any) -> None:
    for t in range(out.shape[0]):
        out[t] = value


@inline
def _count_up(out: Any) -> None:
    for t in range(out.shape[0]):
        out[t] = t


@inline
def _copy(source: Any, out: Any) -> None:
    for t in range(out.shape[0]):
        out[t] = source[t]


@inline
def _shifted_labels(tokens: Any, piece_offsets: Any, piece_lengths: Any, out: Any) -> None:
    for row in range(tokens.shape[0]):
        at = 0
        for piece in range(piece_offsets[row], piece_offsets[row + 1]):
            last = at + piece_lengths[piece] - 1
            _copy(tokens[row, at + 1 : last + 1], out[row, at:last])
            out[row, last] = IGNORED
            at = last + 1
        _fill(out[row, at:], IGNORED)


@kernel
def shifted_labels_64(tokens: Int64Matrix, piece_offsets: Int64s, piece_lengths: Int32s, out: Int64MatrixOut) -> None:
    """Labels that are the next token of the same piece.

    Args:
        tokens: (num_rows, S) int64.
        piece_offsets: (num_rows + 1,) int64; row r has the pieces offsets[r]:offsets[r + 1].
        piece_lengths: (num_pieces,) int32, at least 1 each, at most S in all for a row.
        out: (num_rows, S) int64.
    """
    _shifted_labels(tokens, piece_offsets, piece_lengths, out)


@kernel
def shifted_labels_32(tokens: Int32Matrix, piece_offsets: Int64s, piece_lengths: Int32s, out: Int32MatrixOut) -> None:
    """`shifted_labels_64` in int32."""
    _shifted_labels(tokens, piece_offsets, piece_lengths, out)


@inline
def _unshifted_labels(tokens: Any, piece_offsets: Any, piece_lengths: Any, out: Any) -> None:
    for row in range(tokens.shape[0]):
        used = 0
        for piece in range(piece_offsets[row], piece_offsets[row + 1]):
            used += piece_lengths[piece]
        _copy(tokens[row, :used], out[row, :used])
        _fill(out[row, used:], IGNORED)


@kernel
def unshifted_labels_64(tokens: Int64Matrix, piece_offsets: Int64s, piece_lengths: Int32s, out: Int64MatrixOut) -> None:
    """Labels that are the tokens themselves, padding apart: for models that shift them.

    Args: as for `shifted_labels_64`.
    """
    _unshifted_labels(tokens, piece_offsets, piece_lengths, out)


@kernel
def unshifted_labels_32(tokens: Int32Matrix, piece_offsets: Int64s, piece_lengths: Int32s, out: Int32MatrixOut) -> None:
    """`unshifted_labels_64` in int32."""
    _unshifted_labels(tokens, piece_offsets, piece_lengths, out)


@inline
def _positions(piece_offsets: Any, piece_lengths: Any, out: Any) -> None:
    for row in range(out.shape[0]):
        at = 0
        for piece in range(piece_offsets[row], piece_offsets[row + 1]):
            _count_up(out[row, at : at + piece_lengths[piece]])
            at += piece_lengths[piece]
        _count_up(out[row, at:])


@kernel
def positions_64(piece_offsets: Int64s, piece_lengths: Int32s, out: Int64MatrixOut) -> None:
    """Positions from 0 in each piece, and from 0 in the padding, so that every one is below S.

    Args:
        piece_offsets: (num_rows + 1,) int64.
        piece_lengths: (num_pieces,) int32.
        out: (num_rows, S) int64.
    """
    _positions(piece_offsets, piece_lengths, out)


@kernel
def positions_32(piece_offsets: Int64s, piece_lengths: Int32s, out: Int32MatrixOut) -> None:
    """`positions_64` in int32."""
    _positions(piece_offsets, piece_lengths, out)


@inline
def _segments(piece_offsets: Any, piece_lengths: Any, out: Any) -> None:
    for row in range(out.shape[0]):
        at = 0
        for piece in range(piece_offsets[row], piece_offsets[row + 1]):
            _fill(out[row, at : at + piece_lengths[piece]], piece - piece_offsets[row] + 1)
            at += piece_lengths[piece]
        _fill(out[row, at:], 0)


@kernel
def segments_64(piece_offsets: Int64s, piece_lengths: Int32s, out: Int64MatrixOut) -> None:
    """The number of each token's piece in its row, from 1; 0 for padding: tokens attend where the numbers are equal.

    Args: as for `positions_64`.
    """
    _segments(piece_offsets, piece_lengths, out)


@kernel
def segments_32(piece_offsets: Int64s, piece_lengths: Int32s, out: Int32MatrixOut) -> None:
    """`segments_64` in int32."""
    _segments(piece_offsets, piece_lengths, out)


@kernel
def borders(
    piece_offsets: Int64s,
    piece_lengths: Int32s,
    batch_rows: Int64s,
    sequence_length: int,
    out: Int32sOut,
    out_offsets: Int64sOut,
    longest: Int64sOut,
) -> None:
    """Borders of pieces in each of several batches whose rows are laid end to end: what `cu_seqlens` means.

    The padding of a row is a run of its own.

    Args:
        piece_offsets: (num_rows + 1,) int64 and piece_lengths: (num_pieces,) int32, over all batches.
        batch_rows: (num_batches + 1,) int64: batch b has the rows batch_rows[b]:batch_rows[b + 1].
        sequence_length: int64.
        out: int32, with room for num_batches + num_rows + num_pieces: for each batch 0 and then where each run ends.
        out_offsets: (num_batches + 1,) int64: batch b has out[out_offsets[b]:out_offsets[b + 1]].
        longest: (num_batches,) int64: its longest run; 0 where it has no row.
    """
    at = 0
    out_offsets[0] = 0
    for batch in range(longest.shape[0]):
        out[at] = 0
        at += 1
        longest[batch] = 0
        end = 0
        for row in range(batch_rows[batch], batch_rows[batch + 1]):
            left = sequence_length
            for piece in range(piece_offsets[row], piece_offsets[row + 1]):
                length = piece_lengths[piece]
                left -= length
                end += length
                out[at] = end
                at += 1
                longest[batch] = max(longest[batch], length)
            if left > 0:
                end += left
                out[at] = end
                at += 1
                longest[batch] = max(longest[batch], left)
        out_offsets[batch + 1] = at
