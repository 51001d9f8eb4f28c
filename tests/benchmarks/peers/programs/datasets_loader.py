"""Hugging Face datasets: a map-style dataset on disk in torch's format, and torch's DataLoader."""

# pyright: reportMissingImports=false

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset, Features, List, Value, load_from_disk
from epoch import BATCH, LENGTH, measure, rows
from torch.utils.data import DataLoader


def examples(folder: Path) -> Iterator[dict[str, np.ndarray]]:
    yield from ({"input_ids": row} for row in rows(folder))


def write(ids: np.ndarray, folder: Path) -> None:
    features = Features({"input_ids": List(Value("uint16"), length=LENGTH)})
    dataset = Dataset.from_generator(
        examples, features=features, gen_kwargs={"folder": folder}, cache_dir=str(folder / "cache")
    )
    dataset.save_to_disk(str(folder / "datasets"))


def read(folder: Path) -> Iterator[torch.Tensor]:
    dataset = load_from_disk(str(folder / "datasets")).with_format("torch")
    yield from (batch["input_ids"] for batch in DataLoader(dataset, batch_size=BATCH, shuffle=True))


if __name__ == "__main__":
    measure(read, write)
