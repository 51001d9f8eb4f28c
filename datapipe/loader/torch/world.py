"""The rank of this process, which it knows from torch.distributed or from the environment."""

from __future__ import annotations

import os

import torch

from datapipe.errors import UserError


def rank_and_world_size() -> tuple[int, int]:
    """Rank and world size of this process: those of `torch.distributed`, else those that torchrun sets, else 0 of 1."""
    if is_distributed():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world_size = os.environ.get("RANK"), int(os.environ.get("WORLD_SIZE", "1"))
    if rank is None and world_size > 1:
        raise UserError(
            f"WORLD_SIZE={world_size} and no RANK: this process does not know its rank yet. Make the loader after "
            f"torch.distributed began (in Lightning, in train_dataloader), or give it rank and world_size."
        )
    return int(rank or 0), world_size


def is_distributed() -> bool:
    """Whether `torch.distributed` has begun."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
