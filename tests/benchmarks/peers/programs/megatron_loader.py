"""Megatron-core: GPTDataset over an IndexedDataset whose documents are the rows, and torch's DataLoader.

A sample has tokens, labels, a loss mask and position ids."""

# pyright: reportMissingImports=false

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from epoch import BATCH, LENGTH, measure
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from torch.utils.data import DataLoader


def write(ids: np.ndarray, folder: Path) -> None:
    builder = IndexedDatasetBuilder(str(folder / "megatron.bin"), dtype=np.uint16)
    for row in ids:
        builder.add_document(row, [LENGTH])
    builder.finalize(str(folder / "megatron.idx"))


def read(folder: Path) -> Iterator[torch.Tensor]:
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=LENGTH,
        blend=([str(folder / "megatron")], None),
        split="1,0,0",
        tokenizer=SimpleNamespace(vocab_size=32_000, eod=0, pad=-1, unique_identifiers={}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        add_extra_token_to_sequence=False,
        path_to_cache=str(folder / "megatron-cache"),
    )
    dataset = BlendedMegatronDatasetBuilder(GPTDataset, [None, None, None], lambda: True, config).build()[0]
    yield from (batch["tokens"] for batch in DataLoader(dataset, batch_size=BATCH))


if __name__ == "__main__":
    measure(read, write)
