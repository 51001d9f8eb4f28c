"""Fields of a batch beside its tokens: labels, positions, segments and borders, from the lengths of the chunks of documents.

    row       a b c .  d e .  p p        two documents of 4 and 3 tokens, `.` their end of text, and two of padding
    labels    b c . -  e . -  - -        the next token of the same document; - is -100
    position  0 1 2 3  0 1 2  0 1
    segment   1 1 1 1  2 2 2  0 0
    borders   0 4 7 9                    the longest run is 4

A chunk is the part of a document that a row holds (`kernels/tokens/pack.py`). Loops run over slices, which the compiler
vectorises: with indices into rows labels and positions took five times as long.
"""

from typing import Any

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import copy_into
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
"""The label that cross-entropy in torch and Hugging Face's trainers ignores. JAX's optax does not:
it reads class V - 100, so labels must be masked there (`tests/examples/jax_loop.py`)."""


@inline
def _fill(out: Any, value: Any) -> None:
    for t in range(out.shape[0]):
        out[t] = value


@inline
def _count_up(out: Any) -> None:
    for t in range(out.shape[0]):
        out[t] = t


@kernel
def unshifted_labels(
    tokens: Int32Matrix | Int64Matrix, chunk_offsets: Int64s, chunk_lengths: Int32s, out: Int32MatrixOut | Int64MatrixOut
) -> None:
    """Labels that are the tokens, not padding, for models that shift. `gather.copy_with_next` makes shifted labels.

    Args:
        tokens: (num_rows, S).
        chunk_offsets: (num_rows + 1,) int64; row r has the chunks offsets[r]:offsets[r + 1].
        chunk_lengths: (num_chunks,) int32, at least 1 each, at most S in all for a row.
        out: (num_rows, S), of the type of the tokens.
    """
    for row in range(tokens.shape[0]):
        used = 0
        for chunk in range(chunk_offsets[row], chunk_offsets[row + 1]):
            used += chunk_lengths[chunk]
        copy_into(out[row, :used], tokens[row, :used])
        _fill(out[row, used:], IGNORED)


@kernel
def ignore_runs(run_offsets: Int64s, runs: Int32s, shift: int, out: Int32MatrixOut | Int64MatrixOut) -> None:
    """Labels without those of tokens that no loss counts.

    Args:
        run_offsets: (num_rows + 1,) int64; row r has the borders offsets[r]:offsets[r + 1].
        runs: (num_borders,) int32, start and stop of each run of such tokens.
        shift: how many places before its token a label stands: 1 for the next token's, else 0.
        out: (num_rows, S), the labels.
    """
    for row in range(out.shape[0]):
        for border in range(run_offsets[row], run_offsets[row + 1], 2):
            _fill(out[row, max(runs[border] - shift, 0) : max(runs[border + 1] - shift, 0)], IGNORED)


@kernel
def count_ignored(
    chunk_offsets: Int64s, chunk_lengths: Int32s, run_offsets: Int64s, runs: Int32s, is_shifted: bool, out: Int64sOut
) -> None:
    """The tokens in runs that another token predicts: (num_rows,). With shifted labels none predicts the first of a chunk, with
    unshifted ones none predicts the first of a row. Other arguments as for `positions` and `ignore_runs`."""
    for row in range(out.shape[0]):
        border, stop = run_offsets[row], run_offsets[row + 1]
        count, position = 0, 0
        for other in range(border, stop, 2):
            count += runs[other + 1] - runs[other]
        for chunk in range(chunk_offsets[row], chunk_offsets[row + 1]):
            while border < stop and runs[border + 1] <= position:
                border += 2
            if border < stop and runs[border] <= position:
                count -= 1
            if not is_shifted:
                break
            position += chunk_lengths[chunk]
        out[row] = count


@kernel
def positions(chunk_offsets: Int64s, chunk_lengths: Int32s, out: Int32MatrixOut | Int64MatrixOut) -> None:
    """Positions from 0 in each chunk, and from 0 in the padding: all are below S. Arguments as for `unshifted_labels`."""
    for row in range(out.shape[0]):
        position = 0
        for chunk in range(chunk_offsets[row], chunk_offsets[row + 1]):
            _count_up(out[row, position : position + chunk_lengths[chunk]])
            position += chunk_lengths[chunk]
        _count_up(out[row, position:])


@kernel
def segments(chunk_offsets: Int64s, chunk_lengths: Int32s, out: Int32MatrixOut | Int64MatrixOut) -> None:
    """The number of each token's chunk in its row, from 1; 0 for padding. Tokens attend to each
    other where the numbers are equal. Arguments as for `positions`."""
    for row in range(out.shape[0]):
        position = 0
        for chunk in range(chunk_offsets[row], chunk_offsets[row + 1]):
            _fill(out[row, position : position + chunk_lengths[chunk]], chunk - chunk_offsets[row] + 1)
            position += chunk_lengths[chunk]
        _fill(out[row, position:], 0)


@kernel
def borders(
    # chunk_offsets, chunk_lengths: as for `positions`, over all batches
    chunk_offsets: Int64s,
    chunk_lengths: Int32s,
    batch_rows: Int64s,  # (num_batches + 1,): batch b has the rows batch_rows[b]:batch_rows[b + 1]
    sequence_length: int,
    # with room for num_batches + num_rows + num_chunks: for each batch 0 and then the end of each run
    out: Int32sOut,
    out_offsets: Int64sOut,  # (num_batches + 1,): batch b has out[out_offsets[b]:out_offsets[b + 1]]
    longest: Int64sOut,  # (num_batches,): the longest run of each batch; 0 where it has no row
) -> None:
    """Borders of chunks in each of several batches, the rows of a batch laid end to end: `cu_seqlens`.

    The padding of a row is a separate run.
    """
    num_written = 0
    out_offsets[0] = 0
    for batch in range(longest.shape[0]):
        out[num_written] = 0
        num_written += 1
        longest[batch] = 0
        end = 0
        for row in range(batch_rows[batch], batch_rows[batch + 1]):
            left = sequence_length
            for chunk in range(chunk_offsets[row], chunk_offsets[row + 1]):
                length = chunk_lengths[chunk]
                left -= length
                end += length
                out[num_written] = end
                num_written += 1
                longest[batch] = max(longest[batch], length)
            if left > 0:
                end += left
                out[num_written] = end
                num_written += 1
                longest[batch] = max(longest[batch], left)
        out_offsets[batch + 1] = num_written


@kernel
def split_runs(
    starts: Int64s, lengths: Int64s, offsets: Int64s, parts: Int64s, out_places: Int64sOut, out_positions: Int64sOut
) -> None:
    """The tokens of the parts of each run that one of several ranks gets where each document is split over them.

    runs of 5 and 3 tokens, four parts each, parts 0 and 3 of this rank      0 1 2 3 4 . . . | 5 6 7 .
    place of each token in the batch, -1 where the run is padded             0 1 -1 -1 | 5 -1
    position in its run                                                      0 1 6 7 | 0 3

    Args: starts: (num_runs,) int64, the place of the run's first token. lengths: (num_runs,) int64,
        its tokens. offsets: (num_runs + 1,) int64: out[offsets[r]:offsets[r + 1]] are the parts of
        run r, of equal size. parts: (num_parts,) int64, the numbers of the parts in the order of
        the result. out_places: (num_tokens,) int64, the place of each token; -1 past the end of its
        run. out_positions: (num_tokens,) int64, its position in its run, past the end, too.
    """
    for run in range(starts.shape[0]):
        written = offsets[run]
        size = (offsets[run + 1] - written) // parts.shape[0]
        for part in parts:
            first = part * size
            held = min(max(lengths[run] - first, 0), size)
            for t in range(size):
                out_positions[written + t] = first + t
            for t in range(held):
                out_places[written + t] = starts[run] + first + t
            for t in range(held, size):
                out_places[written + t] = -1
            written += size
