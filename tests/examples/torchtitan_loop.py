"""torchtitan on an output of `datapipe run`: a data loader for its configs, and the loop of its trainer.

torchrun --nproc-per-node 2 torchtitan_loop.py runs/quickstart --steps 100 --folder checkpoint

`StreamingLoader` is what a run with torchtitan needs: `dataloader=StreamingLoader.Config(output="runs/quickstart")` in its
config. The base class, its configs and `DataloaderExhaustedError` are torchtitan's own, of 0.3 (its main branch moves them to
`components.data.loader`). Emulated, since its trainer needs GPUs: `batch_generator`, `train_step` and the checkpoint manager.
The state serves any number of processes; that of torchtitan's own loaders serves as many as before.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtitan.components.dataloader import BaseDataLoader, DataloaderExhaustedError

from datapipe.loader.torch import dataloader

MICRO_BATCHES = 2
Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


class StreamingLoader(BaseDataLoader):
    """The micro-batches of a data-parallel rank, which tensor-, context- and pipeline-parallel ranks share."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        output: str
        num_workers: int = 0

    def __init__(self, config: Config, *, dp_rank: int, dp_world_size: int, local_batch_size: int, **_: Any) -> None:
        self.batches = dataloader(
            config.output,
            batch_size=local_batch_size,
            rank=dp_rank,
            world_size=dp_world_size,
            fields=("input_ids", "position_ids", "labels"),
            num_workers=config.num_workers,
        )

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            yield {"input": batch["input_ids"], "positions": batch["position_ids"]}, batch["labels"]

    def state_dict(self) -> dict[str, Any]:
        return self.batches.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batches.load_state_dict(state_dict)


def train(output: str, steps: int, folder: Path) -> list[float]:
    """Trains until `steps` are done; returns the losses of this process, one for each step after the checkpoint."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("batch",))
    ranks = {"dp_rank": mesh.get_local_rank(), "dp_world_size": mesh.size()}
    loader = StreamingLoader.Config(output=output).build(**ranks, tokenizer=None, seq_len=0, local_batch_size=2)
    vocab_size = loader.batches.snapshot.tokenizer.vocab_size
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(vocab_size, 32), nn.GELU(), nn.Linear(32, vocab_size)).to(device)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    done = torch.zeros((), dtype=torch.int64)
    if folder.exists():
        weights, moments = get_state_dict(model, optimizer)
        states = {"model": weights, "optimizer": moments, "dataloader": loader, "train_state": {"step": done}}
        checkpoints.load(states, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    losses, batches = [], batch_generator(loader)
    while done < steps:
        done += 1
        losses.append(train_step(model, optimizer, batches, device))
    weights, moments = get_state_dict(model, optimizer)
    states = {"model": weights, "optimizer": moments, "dataloader": loader, "train_state": {"step": done}}
    checkpoints.save(states, checkpoint_id=folder)
    return losses


def batch_generator(loader: BaseDataLoader) -> Iterator[Batch]:
    yield from loader
    raise DataloaderExhaustedError


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Batch], device: str) -> float:
    """One step of several micro-batches, whose losses are divided by the labels of all of them in all processes."""
    optimizer.zero_grad()
    micro_batches = [next(batches) for _ in range(MICRO_BATCHES)]
    num_labels = torch.stack([(labels != -100).sum() for _, labels in micro_batches]).sum().to(device)
    dist.all_reduce(num_labels)
    total = 0.0
    for inputs, labels in micro_batches:
        logits = model(inputs["input"].to(device)).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, labels.to(device).flatten(), reduction="sum") / num_labels
        (loss * dist.get_world_size()).backward()  # FSDP divides the sum of the gradients by the number of processes
        total += loss.item()
    optimizer.step()
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("checkpoint"))
    arguments = parser.parse_args()
    dist.init_process_group()
    print(train(**vars(arguments)))
