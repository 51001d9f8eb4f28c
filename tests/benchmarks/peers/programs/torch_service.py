"""torch's DataLoader over a memory map, with a worker that hands batches over."""

from pathlib import Path

from epoch import BATCH, is_written, measure
from torch.utils.data import DataLoader
from torch_loader import MappedRows


def read(folder: Path) -> DataLoader:
    return DataLoader(MappedRows(folder), batch_size=BATCH, shuffle=True, num_workers=1)


if __name__ == "__main__":
    measure(read, is_written)
