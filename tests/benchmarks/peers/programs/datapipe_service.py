"""Ours, from a service: it serves FOLDER/few/snapshot as few."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from epoch import BATCH, is_written, measure

from datapipe.loader import Loader


def read(folder: Path) -> Iterator[np.ndarray]:
    loader = Loader(f"{os.environ['SERVICE']}/{folder.name}", global_batch_size=BATCH, fields=("input_ids",))
    return (batch["input_ids"] for batch in loader)


if __name__ == "__main__":
    measure(read, is_written)
