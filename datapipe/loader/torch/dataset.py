"""The loader as a torch dataset of whole batches, correct under a DataLoader with any number of workers.

    dataset = StreamingDataset("runs/x", batch_size=8)
    for batch in DataLoader(dataset, batch_size=None, num_workers=4): …

Worker w of W builds the steps w, w + W, … of this rank. A DataLoader hands out its workers' batches in turn, so the batches are
those of one process, each once. No shard is opened and no thread is started before a worker iterates. Without
`batch_size=None` a DataLoader would make batches of batches: its `default_collate` refuses them.

Checkpoints. Workers run ahead of the trainer, so their positions do not say which batches were trained on:

    without workers          dataset.state_dict()                 counts the batches handed out, as `Loader` does
    with workers             dataset.state_dict(steps_done)       the trainer counts: `steps_done` is the next step of the run
                             (with fields=(…, "step"), that is `batch["step"] + 1`)
    StatefulDataLoader       its own state_dict()                 it keeps each worker's `dataset.state_dict()` with each batch

Call `load_state_dict` before the DataLoader is iterated. A new pass over a DataLoader with workers starts at the position of
the dataset in the main process; with `persistent_workers` it starts at the positions of the workers, and batches that were
built and not taken are lost. So continue after a break from a state. For object stores, start workers with
`multiprocessing_context="spawn"`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, get_worker_info

from datapipe.errors import SnapshotError, UserError
from datapipe.loader.batches import Batch
from datapipe.loader.fields.chunk import Labels
from datapipe.loader.loader import Loader
from datapipe.loader.order.layout import Split
from datapipe.loader.share import Mesh, RaggedRanksWarning
from datapipe.loader.stats import LoaderStats
from datapipe.loader.torch.tensor_batch import TensorBatch
from datapipe.shards.manifest import Snapshot, has_snapshot
from datapipe.storage import Root


class StreamingDataset(IterableDataset):
    """Whole batches as dicts of tensors, for `DataLoader(dataset, batch_size=None)`.

    Args:
        output, global_batch_size, batch_size, split, fields, labels, seed, prefetch: as for `Loader`; `prefetch` applies to
            each worker.
        dtype: torch.int64 or torch.int32 (or NumPy's names of them), of the fields with one number per token.
        options: further arguments of `Loader`, such as window, mixture, skip, migrate, on_corrupt, check.
        pin_memory: put tensors into page-locked memory, from which a GPU copies without waiting. Ignored without CUDA. With
            workers, use `DataLoader(…, pin_memory=True)` instead.
        mesh: as for `Loader`, instead of rank and world size; see `mesh_of`.
        rank, world_size: by default those of `torch.distributed` if it is initialised, else the environment's RANK and
            WORLD_SIZE (as torchrun sets them), else 0 of 1.
    """

    def __init__(
        self,
        output: str | Path,
        *,
        global_batch_size: int | None = None,
        batch_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Mesh | None = None,
        split: Split = "train",
        fields: Sequence[str] = ("input_ids", "labels"),
        labels: Labels = "shifted",
        dtype: torch.dtype | npt.DTypeLike = torch.int64,
        seed: int | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self._pins = pin_memory and torch.cuda.is_available()
        default_rank, default_size = _rank_and_world_size() if mesh is None else (0, 1)
        self._arguments: dict[str, Any] = {
            "output": output,
            "global_batch_size": global_batch_size,
            "batch_size": batch_size,
            "rank": default_rank if rank is None else rank,
            "world_size": default_size if world_size is None else world_size,
            "mesh": mesh,
            "split": split,
            "fields": tuple(fields),
            "labels": labels,
            "dtype": _numpy_type(dtype),
            "seed": seed,
            "prefetch": prefetch,
            **options,
        }
        self._loader = Loader(**self._arguments)
        self._resumed: dict[str, int] | None = None
        self._iterated_in: tuple[int, int] | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """Source names; the field `sources` holds indices into them."""
        return self._loader.sources

    @property
    def snapshot(self) -> Snapshot:
        """The manifest: sequence length, tokenizer, sources."""
        return self._loader.snapshot

    @property
    def step(self) -> int:
        """The next step to hand out, in this process."""
        return self._loader.step

    @property
    def num_steps(self) -> int | None:
        """As `Loader.num_steps`, over all workers of this rank."""
        return self._loader.num_steps

    def stats(self) -> LoaderStats:
        """As `Loader.stats`, of the batches handed out in this process; the workers of a DataLoader count their own."""
        return self._loader.stats()

    def __iter__(self) -> Iterator[Batch]:
        worker, num_workers = _dataloader_worker()
        if self._pins and get_worker_info() is not None:
            raise UserError("the workers of a DataLoader cannot pin memory for it. Use DataLoader(…, pin_memory=True).")
        if not self._is_iterated_here():
            step = self._first_step()
            if get_worker_info() is not None:  # a fork copies locks as they are, and the open loader's may be held
                self._reopen(self._loader.state_dict())
            self._loader.seek(step)
            self._resumed, self._iterated_in = None, (os.getpid(), worker)
        elif self._arguments["split"] == "validation" and self._loader.step >= (self.num_steps or 0):
            self._loader.seek(worker)
        return self._iterate(num_workers)

    def state_dict(self, steps_done: int | None = None) -> dict[str, Any]:
        """The state to resume from; see the head of this file for who counts.

        Args:
            steps_done: the next step of the run. Required unless the batches were handed out in this process.
        """
        state = self._loader.state_dict()
        if steps_done is not None:
            return {**state, "step": steps_done}
        if get_worker_info() is not None:
            worker, num_workers = _dataloader_worker()
            step = state["step"] if self._is_iterated_here() else self._first_step()
            return {**state, "step": step, "worker": {"id": worker, "num_workers": num_workers}}
        if not self._is_iterated_here():
            raise UserError(
                "this process handed out no batch, so it does not know how many the trainer took from DataLoader workers. "
                "Call dataset.state_dict(steps_done) with the number of steps that the whole run has trained on."
            )
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after the batches that `state` counts. Call it before the DataLoader is iterated.

        The state of one of several workers fits that worker only; another number of workers needs a state of the whole run.
        """
        whole, worker = {name: value for name, value in state.items() if name != "worker"}, state.get("worker")
        if worker is not None and state.get("global_batch_size") != self._loader.global_batch_size:
            raise SnapshotError(
                f"the state of a DataLoader worker has global batch size {state.get('global_batch_size')}, and this dataset "
                f"{self._loader.global_batch_size}. Use the same size, or a state of the whole run: state_dict(steps_done)."
            )
        self._loader.load_state_dict(whole)
        self._resumed, self._iterated_in = worker, None

    def _is_iterated_here(self) -> bool:
        """Whether the position counts batches of this process. A copy in a new worker holds the position of its parent."""
        return self._iterated_in == (os.getpid(), _dataloader_worker()[0])

    def _first_step(self) -> int:
        """The first step of this worker: the dataset's next step plus the worker's number, or the worker's own resumed step."""
        worker, num_workers = _dataloader_worker()
        if self._resumed is None:
            return self._loader.next_step(worker)
        if self._resumed != {"id": worker, "num_workers": num_workers}:
            raise SnapshotError(
                f"the state was saved by worker {self._resumed['id']} of {self._resumed['num_workers']}, and this is worker "
                f"{worker} of {num_workers}. Use as many workers, or a state of the whole run: state_dict(steps_done)."
            )
        return self._loader.step

    def _iterate(self, stride: int) -> Iterator[Batch]:
        loader, stop = self._loader, self.num_steps
        ahead = loader.prefetcher(stride)
        loader.clock.start(ahead)
        try:
            while stop is None or loader.step < stop:
                asked_at = loader.clock.asks()
                arrays = ahead.take(loader.step)
                batch = TensorBatch((name, self._as_tensor(value)) for name, value in arrays.items())
                loader.clock.takes(asked_at, arrays)
                loader.seek(loader.next_step(stride))
                yield batch
        finally:
            ahead.close()

    def _as_tensor(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        tensor = torch.from_numpy(value)
        return tensor.pin_memory() if self._pins else tensor

    def __getstate__(self) -> dict[str, Any]:
        """For spawned workers: the arguments and the position, no open file."""
        return {name: value for name, value in self.__dict__.items() if name != "_loader"} | {
            "_state": self._loader.state_dict()
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        loader_state = state.pop("_state")
        self.__dict__.update(state)
        self._reopen(loader_state)

    def _reopen(self, state: Mapping[str, Any]) -> None:
        """Opens a loader of this process, with the snapshot, the position and the lineage of `state`.

        A worker may start after a run has published a newer snapshot.
        """
        is_there = has_snapshot(Root(str(self._arguments["output"])), state["snapshot"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RaggedRanksWarning)  # the main process has warned
            self._loader = Loader(**self._arguments | ({"snapshot": state["snapshot"]} if is_there else {}))
        self._loader.load_state_dict(state)


def _numpy_type(dtype: torch.dtype | npt.DTypeLike) -> npt.DTypeLike:
    return torch.empty(0, dtype=dtype).numpy().dtype if isinstance(dtype, torch.dtype) else dtype


def _dataloader_worker() -> tuple[int, int]:
    """Number of this DataLoader worker, and of all workers; 0 of 1 in the main process."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def _rank_and_world_size() -> tuple[int, int]:
    """Rank and world size of this process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
