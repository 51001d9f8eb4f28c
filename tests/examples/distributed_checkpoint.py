"""Sharded parameters and torch.distributed.checkpoint, as in torchtitan: the loader is saved like model and optimizer.

torchrun --nproc-per-node 2 distributed_checkpoint.py runs/quickstart --steps 100 --folder checkpoint

The checkpoint serves any number of processes. A step takes several micro-batches, each a `next`.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from datapipe.loader.torch import dataloader, mesh_of

MICRO_BATCHES = 2


def train(output: str, steps: int, folder: Path) -> list[float]:
    """Trains until `steps` are done; returns the losses of this process, one for each step after the checkpoint."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    loader = dataloader(output, global_batch_size=8, mesh=mesh_of(mesh))
    vocab_size = loader.snapshot.tokenizer.vocab_size
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(vocab_size, 32), nn.GELU(), nn.Linear(32, vocab_size)).to(device)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if folder.exists():
        weights, moments = get_state_dict(model, optimizer)
        checkpoints.load({"model": weights, "optimizer": moments, "loader": loader}, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    losses, batches = [], iter(loader)
    for _ in range(loader.step // MICRO_BATCHES, steps):
        total = 0.0
        for _ in range(MICRO_BATCHES):
            batch = next(batches)
            logits = model(batch["input_ids"].to(device))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].to(device).flatten()) / MICRO_BATCHES
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    weights, moments = get_state_dict(model, optimizer)
    checkpoints.save({"model": weights, "optimizer": moments, "loader": loader}, checkpoint_id=folder)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("checkpoint"))
    arguments = parser.parse_args()
    if not dist.is_initialized():
        dist.init_process_group()
    print(train(**vars(arguments)))
