"""torch's DataLoader over a memory map."""

from pathlib import Path

import numpy as np
import torch
from epoch import BATCH, is_written, measure, rows
from torch.utils.data import DataLoader, Dataset


class MappedRows(Dataset):
    def __init__(self, folder: Path) -> None:
        self.ids = rows(folder)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.from_numpy(self.ids[row].astype(np.int64))


def read(folder: Path) -> DataLoader:
    return DataLoader(MappedRows(folder), batch_size=BATCH, shuffle=True)


if __name__ == "__main__":
    measure(read, is_written)
