"""Trains a small model on an output of `datapipe run`, in one process; stop it anywhere and run it again.

python plain_loop.py runs/quickstart --steps 100 --checkpoint checkpoint.pt
"""

import argparse
from itertools import islice
from pathlib import Path

import torch
from torch import nn

from datapipe.loader.device import prefetch_to_device
from datapipe.loader.torch import dataloader


def make_model(vocab_size: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(vocab_size, 32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, vocab_size))


def train(output: str, steps: int, checkpoint: Path) -> list[float]:
    """Trains until `steps` are done, those before the checkpoint included; returns the losses of the others."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = dataloader(output, batch_size=4)
    model = make_model(loader.snapshot.tokenizer.vocab_size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # refuses other data, another seed, another split
    losses = []
    with prefetch_to_device(loader, device) as batches:
        for batch in islice(batches, steps - loader.step):
            logits = model(batch["input_ids"])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())  # -100 is ignored
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        state = batches.state_dict()  # counts the batches trained on, not pending copies
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": state}, checkpoint)
    print(loader.stats())
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    print(train(**vars(parser.parse_args())))
