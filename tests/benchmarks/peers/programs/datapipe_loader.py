"""Ours: FOLDER/snapshot. Further arguments name the fields; without one, those of a loader by default."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from epoch import BATCH, is_written, measure

from datapipe.loader import Loader


def read(folder: Path) -> Iterator[np.ndarray]:
    options: dict[str, Any] = {"fields": tuple(sys.argv[3:])} if sys.argv[3:] else {}
    return (batch["input_ids"] for batch in Loader(folder / "snapshot", global_batch_size=BATCH, **options))


if __name__ == "__main__":
    measure(read, is_written)
