"""Counts the labels of a global batch that enter the loss: every rank reads the lengths of all pieces; none communicates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datapipe.loader.chunk import Labels
from datapipe.shards.blocks import SequenceRows


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
