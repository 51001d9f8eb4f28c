"""litData: a dataset of tokens, as its documentation describes for pretraining."""

# pyright: reportMissingImports=false

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from epoch import BATCH, LENGTH, measure, rows
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize

_ROWS_AT_ONCE = 256


def tokens(start: int, folder: Path) -> Iterator[torch.Tensor]:
    yield from map(torch.from_numpy, rows(folder)[start : start + _ROWS_AT_ONCE].copy())


def write(ids: np.ndarray, folder: Path) -> None:
    optimize(
        fn=partial(tokens, folder=folder),
        inputs=list(range(0, len(ids), _ROWS_AT_ONCE)),
        output_dir=str(folder / "litdata"),
        chunk_size=LENGTH * 8012,
        item_loader=TokensLoader(),
        num_workers=1,
    )


def read(folder: Path) -> Iterator[torch.Tensor]:
    dataset = StreamingDataset(str(folder / "litdata"), item_loader=TokensLoader(block_size=LENGTH), shuffle=True)
    yield from (batch.long() for batch in StreamingDataLoader(dataset, batch_size=BATCH))


if __name__ == "__main__":
    measure(read, write)
