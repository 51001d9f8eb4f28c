"""The parts of documents that one of several ranks gets where each document is split over them.

runs of 5 and 3 tokens, four parts each, parts 0 and 3 of this rank      0 1 2 3 4 . . . | 5 6 7 .
place of each token in the batch, -1 where the run is padded             0 1 -1 -1 | 5 -1
position in its run                                                      0 1 6 7 | 0 3
"""

from __future__ import annotations

from datapipe.kernels import kernel
from datapipe.kernels.types import Int64s, Int64sOut


@kernel
def split_runs(
    starts: Int64s, lengths: Int64s, offsets: Int64s, parts: Int64s, out_places: Int64sOut, out_positions: Int64sOut
) -> None:
    """The tokens of the parts of each run that this rank gets.

    Args:
        starts: (num_runs,) int64, the place of the run's first token.
        lengths: (num_runs,) int64, its tokens.
        offsets: (num_runs + 1,) int64: out[offsets[r]:offsets[r + 1]] are the parts of run r, of equal size.
        parts: (num_parts,) int64, the numbers of the parts in the order of the result.
        out_places: (num_tokens,) int64, the place of each token; -1 past the end of its run.
        out_positions: (num_tokens,) int64, its position in its run, past the end, too.
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
