"""A gather from a memory map, without checks or state: the least that any loader does."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from epoch import BATCH, is_written, measure, rows


def read(folder: Path) -> Iterator[np.ndarray]:
    ids = rows(folder)
    order = np.random.default_rng(1).permutation(len(ids))
    return (ids[order[start : start + BATCH]].astype(np.int64) for start in range(0, len(ids), BATCH))


if __name__ == "__main__":
    measure(read, is_written)
