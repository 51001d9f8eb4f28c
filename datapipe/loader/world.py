"""The default rank of this process: from torch.distributed, or from variables of the launcher.

    torch.distributed has begun      its rank and world size
    RANK and WORLD_SIZE              as torchrun, Accelerate and DeepSpeed set them
    another launcher's variables     an error: in a batch script of Slurm, one process may have the variables of all tasks
    nothing                          rank 0 of 1

Torch is not imported: a program that has not imported it has no process group.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

from datapipe.errors import UserError

_LAUNCHERS = (
    ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE"),
    ("mpirun (MVAPICH)", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Launchers, and the variables that each sets to rank and world size. Slurm sets SLURM_NTASKS in a batch script, too."""


def rank_and_world_size(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Rank and world size of this process. Arguments win over the environment.

    Raises UserError for a single argument that contradicts the environment, and for an unclear environment.
    """
    if rank is not None and world_size is not None:
        return rank, world_size
    here = _from_environment(os.environ, is_given=rank is not None)
    if here is None:
        return rank or 0, 1 if world_size is None else world_size
    for name, given, actual in (("rank", rank, here[0]), ("world_size", world_size, here[1])):
        if given is not None and given != actual:
            raise UserError(
                f"{name}={given}, but this process is rank {here[0]} of {here[1]} (torch.distributed, or RANK and WORLD_SIZE). "
                f"Give both rank and world_size, or neither."
            )
    return here


def is_distributed() -> bool:
    return _torch_distributed() is not None


def _from_environment(environment: Mapping[str, str], *, is_given: bool) -> tuple[int, int] | None:
    distributed = _torch_distributed()
    if distributed is not None:
        return distributed.get_rank(), distributed.get_world_size()
    rank, world_size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if rank is None and world_size is not None and world_size > 1:
        raise UserError(
            f"WORLD_SIZE={world_size} and no RANK: this process does not know its rank yet. Make the loader after "
            f"torch.distributed began (in Lightning, in train_dataloader), or give it rank and world_size."
        )
    if rank is not None:
        if world_size is None or not 0 <= rank < world_size:
            size = "no WORLD_SIZE" if world_size is None else f"WORLD_SIZE={world_size}"
            raise UserError(
                f"RANK={rank} and {size} in the environment: expected 0 <= RANK < WORLD_SIZE. Give the loader rank and "
                f"world_size."
            )
        return rank, world_size
    if not is_given:
        _refuse_other_launchers(environment)
    return None


def _refuse_other_launchers(environment: Mapping[str, str]) -> None:
    for launcher, of_rank, of_size in _LAUNCHERS:
        rank, size = environment.get(of_rank, ""), environment.get(of_size, "")
        if size.isdigit() and rank.isdigit() and int(size) > 1:
            raise UserError(
                f"{launcher} started this process as {rank} of {size} ({of_rank}, {of_size}), and the loader has no rank. Give "
                f'it rank=int(os.environ["{of_rank}"]), world_size=int(os.environ["{of_size}"]), or set RANK and WORLD_SIZE; '
                f"rank=0, world_size=1 reads every row in each process."
            )


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "").strip()
    if not value:
        return None
    try:
        return int(value)
    except ValueError:
        raise UserError(f"{name}={value!r} in the environment: expected a whole number. Give rank and world_size.") from None


def _torch_distributed() -> Any:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    has_begun = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if has_begun else None
