"""Which tokens a loss counts as targets: runs of the others, in documents of token rows and in rows of shards.

    learned   1 1 0 0 0 1 | 0 1      a document or a row each
    unlearned [2, 5]      | [0, 1]   start and stop of each run

Rows whose tokens are all learned take the four bytes of an empty list.
"""

import numpy as np
import pyarrow as pa

from datapipe.columns import numbers
from datapipe.shards.schemas import UNLEARNED


def runs_of(learned: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The offsets (num_rows + 1,) int64 and values of lists of runs, from what is learned of all tokens (num_tokens,) bool.
    `offsets`: (num_rows + 1,) int64, of the tokens of each row."""
    is_border = np.zeros(len(learned) + 1, np.bool_)
    is_border[1:-1] = learned[1:] != learned[:-1]
    is_border[offsets] = True
    borders = np.flatnonzero(is_border)
    is_run = ~learned[borders[:-1]]
    starts, stops = borders[:-1][is_run], borders[1:][is_run]
    row = np.searchsorted(offsets, starts, "right") - 1
    values = np.stack([starts, stops], axis=1) - offsets[row][:, None]
    counts = 2 * np.bincount(row, minlength=len(offsets) - 1)
    return np.concatenate([[0], np.cumsum(counts)]), values.reshape(-1)


def learned_of(rows: pa.RecordBatch) -> np.ndarray:
    """What is learned of the tokens in rows of `schemas.sequences`: (num_rows * S,) bool, true for padding."""
    width = rows.column("tokens").type.list_size
    change = np.zeros(rows.num_rows * width + 1, np.int8)
    if UNLEARNED in rows.schema.names:
        lists = rows.column(UNLEARNED)
        runs = numbers(lists.flatten()) + np.repeat(np.arange(rows.num_rows) * width, np.diff(numbers(lists.offsets)))
        np.add.at(change, runs[::2], 1)
        np.add.at(change, runs[1::2], -1)
    return np.cumsum(change[:-1], dtype=np.int8) == 0
