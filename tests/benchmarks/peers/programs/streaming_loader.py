"""MosaicML streaming: MDS, and a dataset that converts a row as llm-foundry's StreamingTextDataset does."""

# pyright: reportMissingImports=false

from pathlib import Path
from typing import Any

import numpy as np
import torch
from epoch import BATCH, LENGTH, measure
from torch.utils.data import DataLoader

try:
    import torchvision  # noqa: F401
except RuntimeError:  # PyPI's build is for CUDA: beside a CPU build of torch its operators are missing. Only images need them.
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")

from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory


class Tokens(StreamingDataset):
    def __getitem__(self, at: Any) -> torch.Tensor:
        return torch.from_numpy(super().__getitem__(at)["tokens"].astype(np.int64))


def write(ids: np.ndarray, folder: Path) -> None:
    with MDSWriter(out=str(folder / "mds"), columns={"tokens": f"ndarray:uint16:{LENGTH}"}) as writer:
        for row in ids:
            writer.write({"tokens": row})


def batches(**where: str) -> DataLoader:
    clean_stale_shared_memory()
    return DataLoader(Tokens(**where, shuffle=True, batch_size=BATCH), batch_size=BATCH)


def read(folder: Path) -> DataLoader:
    return batches(local=str(folder / "mds"))


if __name__ == "__main__":
    measure(read, write)
