"""The loader as a torch dataset, for programs that make their own DataLoader, with any number of workers.

    dataset = StreamingDataset("runs/x", batch_size=8)
    for batch in DataLoader(dataset, batch_size=None, num_workers=4): …             whole batches
    dataset = StreamingDataset("runs/x", batch_size=8, samples=True)
    for batch in DataLoader(dataset, batch_size=8, num_workers=4): …                rows, which the DataLoader collates

Worker w of W builds the steps w, w + W, … of this rank. A DataLoader hands out its workers' batches in turn, so the batches are
those of one process, each once. Workers run ahead of the trainer, so positions in them do not count what was trained on:

    without workers          dataset.state_dict()                 counts the batches handed out, as `Loader` does
    with workers             dataset.state_dict(steps_done)       the trainer counts: `steps_done` is the next step of the run
                             (with fields=(…, "step"), that is `batch["step"] + 1`)

A second pass continues after the first if this process handed out the batches. After a pass by workers, set a position with
`load_state_dict` first (`Passes`). A validation pass always starts over.
"""

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, get_worker_info

from datapipe.errors import DatapipeError, SnapshotError, UserError
from datapipe.loader.batches import Batch
from datapipe.loader.field_table import FIELDS, GLOBAL
from datapipe.loader.loader import Loader
from datapipe.loader.order.state import checked_mapping, sealed, verified
from datapipe.loader.prefetch import SharedIterator
from datapipe.loader.stats import LoaderStats
from datapipe.loader.torch.wrappers import find_wrappers, is_called_by, refuse_sampler
from datapipe.loader.world import is_distributed, rank_and_world_size

PER_ROW = tuple(name for name, field in FIELDS.items() if field.per in ("token", "row") or name in GLOBAL or name == "step")
"""The fields that can be cut into rows."""


class StreamingDataset(IterableDataset):
    """Whole batches as dicts of tensors, for `DataLoader(dataset, batch_size=None)`; or their rows.

    Args:
        pin_memory: put tensors into page-locked memory, from which a GPU copies without waiting. Ignored without CUDA. With
            workers, use `DataLoader(…, pin_memory=True)` instead.
        samples: hand out single rows, in the same order, for a `DataLoader(dataset, batch_size=8)` with the same batch size.
            With workers and another size, the order depends on the number of workers. Each row is collated in Python.
    """

    def __init__(
        self,
        output: str | Path,
        *,
        dtype: torch.dtype | npt.DTypeLike = torch.int64,
        pin_memory: bool = False,
        samples: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        if isinstance(dtype, torch.dtype):
            dtype = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
        self.loader = Loader(output, dtype=dtype, **options)
        fields, mesh = self.loader.options.fields, self.loader.mesh
        if samples and (not set(fields) <= set(PER_ROW) or set(fields) <= {"step", *GLOBAL}):
            raise UserError(f"samples=True with fields {', '.join(fields)}: expected fields of rows, of {', '.join(PER_ROW)}.")
        self._pins = pin_memory and torch.cuda.is_available()
        self._cuts_rows, self._rows_done = samples, 0  # of the next step
        has_no_rank = all(options.get(name) is None for name in ("mesh", "rank", "world_size"))
        self._assumed = (mesh.data_rank, mesh.data_size) if has_no_rank else None
        self._iterated_in: tuple[int, int] | None = None
        self._runs_ahead = ""
        self._is_owned, self._is_fresh = False, True  # fresh: nothing was taken here or loaded
        self._passes = Passes()
        self._passes.permit()
        self._opened_in: int | None = None

    @property
    def step(self) -> int:
        return self.loader.step

    def stats(self) -> LoaderStats:
        return self.loader.stats()

    def __len__(self) -> int:
        """Batches of the whole run. Raises TypeError for a run without end, and for rows."""
        refuse_sampler()
        if self._cuts_rows:
            raise TypeError("StreamingDataset(…, samples=True) has no length. Set the number of steps in the trainer.")
        return len(self.loader)

    def __bool__(self) -> bool:
        return True

    def set_epoch(self, epoch: int) -> None:
        """Does nothing, because epochs are part of the order. Trainers call it first, so unsuited trainers are refused here."""
        find_wrappers(self).refuse_trainer(self.loader.mesh.data_size, self._is_fresh)

    def belong_to_loader(self) -> None:
        """Each later pass needs `begin_pass`, because a StreamingDataLoader counts the batches."""
        if self._cuts_rows:
            raise UserError("samples=True is for a DataLoader(batch_size=…) of your own; a StreamingDataLoader takes batches.")
        self._is_owned, self._passes = True, Passes()  # none is permitted

    def begin_pass(self) -> None:
        """Permits one pass from the position on, by workers or in this process."""
        self._check_world()
        self._passes.permit(self.loader.step)

    def __iter__(self) -> Iterator[Batch]:
        try:
            if self._pins and get_worker_info() is not None:
                raise UserError("the workers of a DataLoader cannot pin memory for it. Use DataLoader(…, pin_memory=True).")
            find_wrappers(self).refuse(self._cuts_rows, self.loader.mesh.data_size, self._is_fresh)
            self._check_world()
            worker, num_workers = _dataloader_worker()
            self._begin(worker)
        except DatapipeError as error:
            if get_worker_info() is None:
                raise
            return _raise_at_first(error)  # raised here, it would kill a persistent worker, and its message would be lost
        return SharedIterator(self._iterate(num_workers), self.loader.turns)

    def state_dict(self, steps_done: int | None = None) -> dict[str, Any]:
        """The state to resume from. `steps_done`: the next step of the run; optional in the process that handed out the
        batches."""
        state = self.loader.state_dict()
        if steps_done is not None:
            return sealed({**state, "step": steps_done})
        if not self._is_owned:
            self._refuse_counting()
        return sealed(state | ({"rows_done": self._rows_done} if self._rows_done else {}))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after the batches that `state` counts. Call it before the DataLoader is iterated."""
        state = verified(checked_mapping(state))
        rows_done = state.pop("rows_done", 0)
        size = state.get("global_batch_size")
        if rows_done and (not self._cuts_rows or size != self.loader.global_batch_size):
            raise SnapshotError(
                f"the state was saved after {rows_done} rows of a batch of {size}. Open the dataset with samples=True and "
                f"this batch size, or give a state of whole steps: state_dict(steps_done)."
            )
        self.loader.load_state_dict(sealed(state))
        self._rows_done, self._iterated_in, self._runs_ahead, self._is_fresh = rows_done, None, "", False
        self._passes.permit()

    def _check_world(self) -> None:
        if self._assumed is None or not is_distributed() or self._assumed == rank_and_world_size():
            return
        rank, world_size = rank_and_world_size()
        raise UserError(
            f"this dataset was made before torch.distributed began, for rank {self._assumed[0]} of {self._assumed[1]}; "
            f"this process is rank {rank} of {world_size}. Make it afterwards (in Lightning, in train_dataloader), or give it "
            f"rank and world_size, or a mesh."
        )

    def _refuse_counting(self) -> None:
        if self._passes.is_begun or get_worker_info() is not None:
            reason = "DataLoader workers hand out the batches"
        elif self._runs_ahead and not is_called_by("torchdata.", "datapipe.loader.device"):
            reason = f"{self._runs_ahead} takes batches before the trainer asks for them"
        else:
            return
        raise UserError(
            f"{reason}, so this process does not know how many were trained on. Use datapipe.loader.torch.dataloader(…), which "
            f"counts; or call dataset.state_dict(steps_done) with the number of steps that the whole run has trained on; or "
            f"give a StatefulDataLoader num_workers=0."
        )

    def _begin(self, worker: int) -> None:
        """Moves to the first step of a pass. Raises UserError for one that would repeat batches."""
        # whether the position counts batches of this process: a copy in a new worker holds the position of its parent
        is_first = self._iterated_in != (os.getpid(), worker)
        starts_over = self.loader.split == "validation" and not self._is_owned
        is_permitted = self._is_permitted(worker, is_first)
        if not is_permitted and not starts_over:
            reader = self._runs_ahead or "DataLoader workers"
            raise UserError(SECOND_PASS_OF_OWNED if self._is_owned else SECOND_PASS.format(reader=reader))
        if starts_over and not (is_permitted and is_first):
            self._rows_done = 0
            self.loader.seek(0)
            step = self.loader.next_step(worker)
        elif self._is_owned:
            self.loader.seek(self._passes.first_step)
            step = self.loader.next_step(worker)
        else:
            step = self.loader.next_step(worker) if is_first else self.loader.step
        if get_worker_info() is not None and self._opened_in != os.getpid():
            self.loader = deepcopy(self.loader)  # a fork copies locks, and the open loader's may be held
            self._opened_in = os.getpid()
        self.loader.seek(step)
        self._iterated_in, self._is_fresh = (os.getpid(), worker), False

    def _is_permitted(self, worker: int, is_first: bool) -> bool:
        """Whether this process knows the position of a pass."""
        if get_worker_info() is not None or self._is_owned:
            return self._passes.claim(worker) and (is_first or self._is_owned)
        is_held = self._runs_ahead and find_wrappers(self).runs_ahead != "DevicePrefetcher"  # which keeps its own position
        return not (self._passes.is_begun or is_held)

    def _iterate(self, stride: int) -> Generator[Batch, None, None]:
        self._runs_ahead = find_wrappers(self).runs_ahead
        warns_of_dropped = _dataloader_worker()[0] == 0 and not self._is_owned  # else the StreamingDataLoader does
        with closing(self.loader.iterate(stride, self._as_tensors, 5 if warns_of_dropped else 0)) as batches:
            if not self._cuts_rows:
                yield from batches
                return
            step = self.loader.step
            for batch in batches:
                yield from self._rows(batch, step)
                step = self.loader.step

    def _rows(self, batch: Batch, step: int) -> Iterator[Batch]:
        after, num_rows = self.loader.step, max(len(value) for value in batch.values() if torch.is_tensor(value))
        self.loader.seek(step)
        while self.loader.step == step:
            row = self._rows_done
            self._rows_done += 1
            if self._rows_done >= num_rows:
                self.loader.seek(after)
                self._rows_done = 0
            if row < num_rows:  # a rank may have no row in a step
                yield {name: value[row] if torch.is_tensor(value) else value for name, value in batch.items()}

    def _as_tensors(self, arrays: Batch) -> Batch:
        batch = dict(arrays)
        for name, value in arrays.items():
            if isinstance(value, np.ndarray):
                tensor = torch.from_numpy(value)  # on the CPU, whatever the default device is
                batch[name] = tensor.pin_memory() if self._pins else tensor
        return batch


def _raise_at_first(error: Exception) -> Iterator[Batch]:
    raise error
    yield  # makes it a generator


def _dataloader_worker() -> tuple[int, int]:
    """Number of this DataLoader worker, and of all workers; 0 of 1 in the main process."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


MOST_WORKERS = 1024  # of one DataLoader; each has one number in shared memory
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
    """The passes of a DataLoader, which its main process permits and its workers claim, in shared memory.

    A DataLoader copies its dataset into its workers at the start of a pass, and they run ahead of the trainer. A second pass
    over the copies would repeat batches or leave some out, so each pass needs a position that was set in the main process.

    A copy by `pickle` or `deepcopy` is independent. The n-th iteration in a worker is the n-th pass
    since its start, so a worker that starts late takes no later pass for its own.
    """

    def __init__(self) -> None:
        # the number of the permitted pass, its first step (-1: that of each process), and the last pass that each worker began
        self._numbers = torch.zeros(2 + MOST_WORKERS, dtype=torch.int64, device="cpu").share_memory_()
        self._next = 0  # the pass that this copy claims next

    def permit(self, first_step: int = -1) -> None:
        """Permits one pass, from `first_step` or else from the position that each process knows."""
        self._numbers[1] = first_step
        self._numbers[0] += 1
        self._next = int(self._numbers[0])

    def claim(self, worker: int) -> bool:
        """Begins the next pass in `worker`, of this process. False if it is not permitted, or such a worker began it before."""
        if worker >= MOST_WORKERS:
            raise UserError(f"DataLoader worker {worker}: at most {MOST_WORKERS} workers are supported. Set fewer num_workers.")
        if not int(self._numbers[2 + worker]) < self._next <= int(self._numbers[0]):
            return False
        self._numbers[2 + worker] = self._next
        self._next += 1
        return True

    @property
    def is_begun(self) -> bool:
        return bool((self._numbers[2:] >= self._numbers[0]).any())

    @property
    def first_step(self) -> int:
        return max(0, int(self._numbers[1]))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        if not self._numbers.is_shared():
            self._numbers = self._numbers.clone().share_memory_()
