"""The passes of a DataLoader, which its main process permits and its workers claim, in shared memory.

A DataLoader copies its dataset into its workers at the start of a pass. The workers run ahead of the trainer, and the dataset
in the main process does not count their batches. A second pass over the copies would repeat batches or leave some out, so
each pass needs a position that was set in the main process.

    main process      permit() ────────────────────────────── permit()
    worker 0              claim: True     claim: False            claim: True
    worker 1              claim: True     claim: False            claim: True
"""

from __future__ import annotations

from typing import Any

import torch

from datapipe.errors import UserError

MOST_WORKERS = 1024
"""Of one DataLoader; each has one number in shared memory."""

SECOND_PASS = (
    "{reader} iterated this dataset before, ahead of the trainer, so it is not known where another pass would go on. "
    "Use datapipe.loader.torch.dataloader(…), which counts and goes on. Or make a new DataLoader for each loop, after "
    "dataset.load_state_dict(dataset.state_dict(steps_done))."
)
SECOND_PASS_OF_OWNED = (
    "this dataset belongs to a StreamingDataLoader, which counts its batches. Iterate that loader, and resume with its "
    "load_state_dict(state) instead of dropping batches: leave out Accelerate's skip_first_batches, and give Hugging Face's "
    "Trainer TrainingArguments(ignore_data_skip=True)."
)


class Passes:
    """The number of the permitted pass, its first step, and the last pass that each worker began.

    The tensor is shared with forked and with spawned workers. A copy by `pickle` or `deepcopy` is independent. The n-th
    iteration in a worker is the n-th pass since its start, so a worker that starts late takes no later pass for its own.
    """

    def __init__(self) -> None:
        self._tensor = torch.zeros(2 + MOST_WORKERS, dtype=torch.int64, device="cpu").share_memory_()
        self._next = 0  # the pass that this copy claims next
        self._view()

    def permit(self, first_step: int | None = None) -> None:
        """Permits one pass, from `first_step` or else from the position that each process knows."""
        self._head[1] = -1 if first_step is None else first_step
        self._head[0] += 1
        self._next = int(self._head[0])

    def claim(self, worker: int) -> bool:
        """Begins the next pass in `worker`, of this process. False if it is not permitted, or such a worker began it before."""
        if worker >= MOST_WORKERS:
            raise UserError(f"DataLoader worker {worker}: at most {MOST_WORKERS} workers are supported. Set fewer num_workers.")
        if not self._begun[worker] < self._next <= self._head[0]:
            return False
        self._begun[worker] = self._next
        self._next += 1
        return True

    @property
    def is_begun(self) -> bool:
        """Whether any worker began the permitted pass."""
        return bool((self._begun >= self._head[0]).any())

    @property
    def first_step(self) -> int | None:
        """The first step of the permitted pass, if the main process set it."""
        return None if self._head[1] < 0 else int(self._head[1])

    def _view(self) -> None:
        numbers = self._tensor.numpy()
        self._head, self._begun = numbers[:2], numbers[2:]  # (2,) int64: number and first step; (MOST_WORKERS,) int64

    def __getstate__(self) -> dict[str, Any]:
        return {"tensor": self._tensor, "next": self._next}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensor = state["tensor"]
        self._tensor, self._next = tensor if tensor.is_shared() else tensor.clone().share_memory_(), state["next"]
        self._view()
