"""The first epoch of a loader, measured: what the programs of this folder share, with NumPy and the standard library alone.

    python PROGRAM write FOLDER     prints {}: ids.bin of FOLDER/few and FOLDER/all are in the library's own form, beside it
    python PROGRAM check FOLDER     prints {}; fails where an epoch lacks a row of FOLDER/all, or is in order
    python PROGRAM read FOLDER      prints {"us": microseconds a batch}

The time is that of a whole epoch with opening, in a process that has imported the library and read from FOLDER/few.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

BATCH, LENGTH = 16, 2048


def rows(folder: Path) -> np.ndarray:
    """(num_rows, LENGTH) uint16, mapped."""
    return np.memmap(folder / "ids.bin", np.uint16, "r").reshape(-1, LENGTH)


def is_written(ids: np.ndarray, folder: Path) -> None:
    """`write` of a library that reads ids.bin."""


def measure(read: Callable[[Path], Iterable[Any]], write: Callable[[np.ndarray, Path], object]) -> None:
    """The command of a program. `read` gives the batches of one epoch, or more; `write` converts the rows."""
    command, few, every = sys.argv[1], *(Path(sys.argv[2]) / name for name in ("few", "all"))
    if command == "write":
        for folder in (few, every):
            write(rows(folder), folder)
        print("{}")
        return
    num_batches = len(rows(every)) // BATCH
    if command == "check":
        _check([np.asarray(batch) for batch in islice(read(every), num_batches)], rows(every))
        print("{}")
        return
    next(iter(read(few)))
    started = time.perf_counter()
    taken = sum(1 for _ in islice(read(every), num_batches))
    print(json.dumps({"us": (time.perf_counter() - started) / taken * 1e6}))


def _check(batches: list[np.ndarray], ids: np.ndarray) -> None:
    shapes = {(batch.shape, batch.dtype) for batch in batches}
    if shapes != {((BATCH, LENGTH), np.dtype(np.int64))}:
        raise ValueError(f"batches are {shapes}")
    epoch = np.concatenate(batches)
    if len(epoch) != len(ids) or not np.array_equal(np.sort(epoch[:, 0]), np.sort(ids[:, 0])) or epoch.sum() != ids.sum():
        raise ValueError(f"an epoch of {len(epoch)} rows is not the {len(ids)} rows")
    if np.array_equal(epoch[:BATCH], ids[:BATCH]):
        raise ValueError("rows are in the order of the file")
