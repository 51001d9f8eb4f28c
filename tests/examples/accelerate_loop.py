"""Accelerate on an output of `datapipe run`, with two micro-batches a step; its own checkpoint holds the loader's state.

accelerate launch --num_processes 2 accelerate_loop.py runs/quickstart --steps 100 --folder checkpoint
"""

import argparse
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from datapipe.loader.torch import dataloader

MICRO_BATCHES = 2


def train(output: str, steps: int, folder: Path) -> list[float]:
    """Trains until `steps` are done; returns the losses of this process, of each micro-batch after the checkpoint."""
    accelerator = Accelerator(gradient_accumulation_steps=MICRO_BATCHES)
    loader = dataloader(output, global_batch_size=8, num_workers=1)  # each process reads its own four rows
    vocab_size = loader.snapshot.tokenizer.vocab_size
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(vocab_size, 32), nn.GELU(), nn.Linear(32, vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)  # the loader comes back as it is
    if folder.exists():
        accelerator.load_state(str(folder))
    losses = []
    for batch in islice(loader, steps * MICRO_BATCHES - loader.step):
        with accelerator.accumulate(model):
            logits = model(batch["input_ids"].to(accelerator.device))
            labels = batch["labels"].to(accelerator.device)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    accelerator.save_state(str(folder))
    accelerator.wait_for_everyone()
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("checkpoint"))
    print(train(**vars(parser.parse_args())))
