"""Grain: an ArrayRecord of rows, shuffled, decoded and batched; without threads, which are slower on one core."""

# pyright: reportMissingImports=false

from collections.abc import Iterator
from pathlib import Path

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from epoch import BATCH, measure


def write(ids: np.ndarray, folder: Path) -> None:
    writer = ArrayRecordWriter(str(folder / "rows.array_record"), "group_size:1")
    for row in ids:
        writer.write(row.tobytes())
    writer.close()


def decoded(record: bytes) -> np.ndarray:
    return np.frombuffer(record, np.uint16).astype(np.int64)


def read(folder: Path) -> Iterator[np.ndarray]:
    source = grain.sources.ArrayRecordDataSource(str(folder / "rows.array_record"))
    dataset = grain.MapDataset.source(source).shuffle(seed=1).map(decoded).batch(BATCH)
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))


if __name__ == "__main__":
    measure(read, write)
