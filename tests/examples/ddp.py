"""The same on several processes, each with its slice of every global batch. The number of processes may change in between.

It need not divide the batch: each process divides the sum of its losses by the labels of the global batch, so each label counts
as much as any other, and the gradients are those of one process.

torchrun --nproc-per-node 2 ddp.py runs/quickstart --steps 100 --checkpoint checkpoint.pt
"""

import argparse
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from datapipe.loader import Loader


def train(output: str, steps: int, checkpoint: Path) -> list[float]:
    """Trains until `steps` are done, those before the checkpoint included; returns the losses of the others."""
    world_size, fields = dist.get_world_size(), ("input_ids", "labels", "global_target_tokens")
    loader = Loader(output, global_batch_size=8, rank=dist.get_rank(), world_size=world_size, fields=fields)
    vocab_size = loader.snapshot.tokenizer.vocab_size
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Embedding(vocab_size, 32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, vocab_size))
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        inner.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])  # one rank's state serves all ranks
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for batch in islice(loader, steps - loader.step):
        logits = model(torch.from_numpy(batch["input_ids"]))
        labels = torch.from_numpy(batch["labels"]).flatten()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels, reduction="sum") / batch["global_target_tokens"]
        (loss * world_size).backward()  # DDP divides the sum of the gradients by the number of processes
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        torch.save({"model": inner.state_dict(), "loader": loader.state_dict()}, checkpoint)
    dist.barrier()
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    dist.init_process_group("gloo")
    print(train(**vars(parser.parse_args())))
    dist.destroy_process_group()
