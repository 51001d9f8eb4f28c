"""Megatron-LM's way on an output of `datapipe run`: tensor- and data-parallel ranks, micro-batches, consumed samples.

torchrun --nproc-per-node 2 megatron_loop.py runs/quickstart --tensor-parallel 2 --steps 100 --folder checkpoint

Emulated with torch alone, since Megatron-LM's schedules and broadcasts need GPUs: the groups of `mpu`, `get_batch` with its
broadcast over a tensor-parallel group, `forward_backward_no_pipelining`, `train_step`, a column- and a row-parallel layer. In
Megatron-LM itself, with `--dataloader-type external`, `train_valid_test_datasets_provider` returns `iter(dataloader(…))` as the
training data, with rank and world size of `mpu.get_data_parallel_rank()` and `mpu.get_data_parallel_world_size()`.

`consumed_train_samples` cannot tell what was left out, or a change of the mixture, so the loader's state is saved, too. It
serves any number of data-parallel ranks: rows follow each other in the same order.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from datapipe.loader.torch import dataloader, mesh_of

MICRO_BATCH, GLOBAL_BATCH = 2, 8


def train(output: str, steps: int, folder: Path, tensor_parallel: int = 2) -> list[float]:
    """Trains until `steps` are done; returns the losses of the global batches, one for each step after the checkpoint."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (dist.get_world_size() // tensor_parallel, tensor_parallel), mesh_dim_names=("dp", "tp"))
    loader = dataloader(output, batch_size=MICRO_BATCH, mesh=mesh_of(mesh))
    snapshot = loader.snapshot
    shape = (MICRO_BATCH, snapshot.sequence_length)
    model = Model(snapshot.tokenizer.vocab_size, mesh["tp"]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    iteration, consumed_train_samples = 0, 0
    saved_to = folder / f"mp_rank_{mesh['tp'].get_local_rank():02}.pt"
    if saved_to.exists():
        saved = torch.load(saved_to)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        iteration, consumed_train_samples = saved["iteration"], saved["consumed_train_samples"]
        loader.load_state_dict(saved["loader"])
    batches = iter(loader) if mesh["tp"].get_local_rank() == 0 else None  # the first rank of a group reads for all of it
    losses = []
    for _ in range(iteration, steps):
        losses.append(train_step(model, optimizer, batches, shape, mesh))
        consumed_train_samples += GLOBAL_BATCH
    state = share_state(loader.state_dict(), mesh["tp"])
    counts = {"iteration": steps, "consumed_train_samples": consumed_train_samples, "loader": state}
    if mesh["dp"].get_local_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **counts}, saved_to)
    dist.barrier()
    return losses


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[dict[str, Any]] | None,
    shape: tuple[int, int],
    mesh: DeviceMesh,
) -> float:
    """One step of `GLOBAL_BATCH` rows. Gradients are summed, and divided by the labels of all rows in the end."""
    optimizer.zero_grad()
    sums = torch.zeros(2, device=mesh.device_type)  # the loss, and the labels it is a sum over
    for _ in range(GLOBAL_BATCH // (MICRO_BATCH * mesh["dp"].size())):
        tokens, labels = get_batch(batches, shape, mesh["tp"])
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction="sum")
        loss.backward()
        sums += torch.stack([loss.detach(), (labels != -100).sum()])
    for summed in (sums, *(parameter.grad for parameter in model.parameters())):
        dist.all_reduce(summed, group=mesh["dp"].get_group())
    for parameter in model.parameters():
        parameter.grad /= sums[1]
    optimizer.step()
    return (sums[0] / sums[1]).item()


def get_batch(
    batches: Iterator[dict[str, Any]] | None, shape: tuple[int, int], tensor_parallel: DeviceMesh
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels of a micro-batch, from the first rank of the tensor-parallel group to the others."""
    device = tensor_parallel.device_type
    if batches is None:
        tokens, labels = (torch.empty(shape, dtype=torch.int64, device=device) for _ in range(2))
    else:
        batch = next(batches)
        tokens, labels = batch["input_ids"].to(device), batch["labels"].to(device)
    for tensor in (tokens, labels):
        dist.broadcast(tensor, group=tensor_parallel.get_group(), group_src=0)
    return tokens, labels


def share_state(state: dict[str, Any], tensor_parallel: DeviceMesh) -> dict[str, Any]:
    """The state of the rank that reads, on every rank of its group."""
    shared = [state]
    dist.broadcast_object_list(shared, group=tensor_parallel.get_group(), group_src=0)
    return shared[0]


class Model(nn.Module):
    """An embedding, and an MLP whose hidden units are split over the tensor-parallel group."""

    def __init__(self, vocab_size: int, tensor_parallel: DeviceMesh) -> None:
        super().__init__()
        self.group = tensor_parallel.get_group()
        generator = torch.Generator().manual_seed(0)
        embedding, up, down = (
            torch.randn(n, m, generator=generator) * 0.1 for n, m in ((vocab_size, 32), (32, 64), (64, vocab_size))
        )
        part, size = tensor_parallel.get_local_rank(), tensor_parallel.size()
        self.embedding = nn.Parameter(embedding)
        self.up = nn.Parameter(up.chunk(size, dim=1)[part].clone())  # (32, 64 / size): column-parallel
        self.down = nn.Parameter(down.chunk(size, dim=0)[part].clone())  # (64 / size, V): row-parallel

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = CopyToGroup.apply(self.embedding[tokens], self.group)
        return ReduceFromGroup.apply(nn.functional.gelu(hidden @ self.up) @ self.down, self.group)


class CopyToGroup(torch.autograd.Function):
    """The same values on each rank; gradients are summed over the group."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        context.group = group
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        summed = gradient.clone()
        dist.all_reduce(summed, group=context.group)
        return summed, None


class ReduceFromGroup(torch.autograd.Function):
    """The sum over the group; each rank gets the whole gradient."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        summed = values.clone()
        dist.all_reduce(summed, group=group)
        return summed

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("checkpoint"))
    parser.add_argument("--tensor-parallel", type=int, default=2)
    arguments = parser.parse_args()
    dist.init_process_group()
    print(train(**vars(arguments)))
    dist.destroy_process_group()
