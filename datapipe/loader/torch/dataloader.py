"""A DataLoader that counts the batches it hands out, and continues after them.

The main process keeps the position: a pass of workers begins there, and every batch that reaches the trainer moves it. So each
`for` continues after the last one, with and without workers. A validation pass starts over, unless a state was loaded since
the last one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from datapipe.dataclass import replace
from datapipe.errors import UserError
from datapipe.loader.field_table import PER_TOKEN
from datapipe.loader.prefetch import PrefetchCounts, SharedIterator
from datapipe.loader.remote.address import is_service
from datapipe.loader.stats import LoaderStats
from datapipe.loader.torch.dataset import StreamingDataset
from datapipe.loader.torch.wrappers import Wrappers, find_wrappers, is_called_by
from datapipe.shards.manifest import Snapshot
from datapipe.storage.root import Root

HELD = "prefetch_to_device holds batches of this loader that the trainer has not asked for yet."

_OF_WORKERS = {
    "collate_fn",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
}
"""The arguments of `dataloader` that are not those of the dataset."""


def dataloader(output: str | Path, **options: Any) -> StreamingDataLoader:
    """The batches of this rank as tensors, with `state_dict` and `load_state_dict`.

    Workers start by "spawn" for object stores and services, whose clients do not survive a fork.

    Args:
        options: arguments of `StreamingDataLoader`: num_workers, collate_fn, pin_memory, …; all others are those of
            `StreamingDataset` and `Loader`: batch_size or global_batch_size, fields, mixture, skip, …
    """
    if not isinstance(output, str | Path):
        raise UserError(
            f"dataloader: expected the output of a run, a path or URL; found {type(output).__name__}. It makes its dataset "
            f"itself. For a StreamingDataset of your own: StreamingDataLoader(dataset, …)."
        )
    of_workers = {name: options.pop(name) for name in _OF_WORKERS & options.keys()}
    is_remote = is_service(str(output)) or Root(str(output)).local is None
    if of_workers.get("multiprocessing_context") is None and of_workers.get("num_workers") and is_remote:
        of_workers["multiprocessing_context"] = "spawn"
    return StreamingDataLoader(StreamingDataset(output, **options), **of_workers)


class StreamingDataLoader(DataLoader):
    """A DataLoader of whole batches whose position counts the batches handed out.

            Args: options: num_workers (0 by default), pin_memory, persistent_workers, prefetch_factor,
            multiprocessing_context, timeout, worker_init_fn, as for `DataLoader`. Workers send each batch through shared
            memory, 25 to 30 times as slow as threads; use them if `collate_fn` computes for long.

    Attributes: end_of_dataloader, remainder: for Accelerate: whether the last batch of the run was
        handed out; no row is added to it.
    """

    dataset: StreamingDataset  # pyright: ignore[reportIncompatibleVariableOverride]

    _is_accelerate_prepared = True
    use_stateful_dataloader = True
    """Accelerate reads these two: do not wrap, and save the state."""

    end_of_dataloader, remainder = False, -1

    def __init__(self, dataset: StreamingDataset, *, collate_fn: Callable[[Any], Any] | None = None, **options: Any) -> None:
        if unknown := options.keys() - _OF_WORKERS:
            raise UserError(f"a StreamingDataLoader has no argument '{min(unknown)}', only {', '.join(sorted(_OF_WORKERS))}.")
        dataset.belong_to_loader()
        own = torch.Generator()  # a DataLoader draws a seed for each pass, and must not disturb that of the model
        super().__init__(dataset, batch_size=None, collate_fn=collate_fn or _as_it_is, generator=own, **options)
        self._pass: Iterator[Any] | None = None
        self._is_resumed = False
        self._is_fresh = True  # nothing was handed out or loaded
        self._holder = ""  # what holds batches that it took before the trainer asked

    @property
    def step(self) -> int:
        return self.dataset.step

    @property
    def snapshot(self) -> Snapshot:
        return self.dataset.loader.snapshot

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        loader = self.dataset.loader
        with loader.turns.lock:
            if loader.split == "validation" and not self._is_resumed:
                self._end_pass(keep_workers=self.persistent_workers)
                loader.seek(0)
            self._is_resumed = False
            return SharedIterator(self._iterate(), loader.turns)

    def stats(self) -> LoaderStats:
        """Figures of all loops so far, and whether the data is the bottleneck: `print(loader.stats())`.

        The builds of workers, which are other processes, are not measured; waits, steps and batches are.
        """
        stats, factor = self.dataset.stats(), self.prefetch_factor
        if factor is None:  # there are no workers
            return stats
        ahead = self.num_workers * factor
        held = ahead + self.num_workers * max(1, stats.depth) + 1  # each worker builds `depth` batches more
        return replace(stats, num_workers=self.num_workers, num_threads=0, built=0, depth=ahead, host_batches=held)

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The state after the batches handed out, as of `Loader.state_dict`: plain JSON, for any rank and number of
        workers."""
        if self._holder and not is_called_by("datapipe.loader.device"):
            raise UserError(f"{HELD} Save the state of prefetch_to_device: batches.state_dict().")
        return self.dataset.loader.state_dict(step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after the batches that `state` counts: a state of this loader, of a `Loader` or of a `StreamingDataset`."""
        with self.dataset.loader.turns.lock:
            self.dataset.load_state_dict(state)
            self._end_pass(keep_workers=False)  # workers hold the history of the run as it was
            self._is_resumed, self._is_fresh, self._holder = True, False, ""

    def advance(self, snapshot: str | None = None) -> str:
        """Moves to a later snapshot after the batches handed out, as `Loader.advance`. New workers start."""
        with self.dataset.loader.turns.lock:
            fingerprint = self.dataset.loader.advance(snapshot)
            self._end_pass(keep_workers=False)
        return fingerprint

    def _iterate(self) -> Generator[Any, None, None]:
        """Batches from the position on. Several iterators at a time share the position, so each batch is handed out once."""
        wrappers = find_wrappers(self.dataset)
        self._refuse(wrappers)
        self._is_fresh, self._holder = False, wrappers.runs_ahead
        accelerate = _gradient_state()
        self.end_of_dataloader = False
        if self.num_workers:
            self.dataset.loader.clock.start()
        if accelerate is not None:
            accelerate._add_dataloader(self)
        try:
            while self.dataset.loader.has_more():
                batch = self._take()
                self.end_of_dataloader = not self.dataset.loader.has_more()
                yield batch
            self.dataset.loader.warn_of_dropped(stacklevel=4)
        finally:
            if accelerate is not None:
                accelerate._remove_dataloader(self)
            if not self.persistent_workers:
                self._end_pass(keep_workers=False)

    def _refuse(self, wrappers: Wrappers) -> None:
        if wrappers.runs_ahead not in ("", "DevicePrefetcher"):
            raise UserError(
                f"Lightning ({wrappers.runs_ahead}) holds a batch of a loader without a length, so its checkpoints would leave "
                f"one out. This run has no end: set Trainer(limit_train_batches=1000), or another length of its epochs."
            )
        if self._holder and not wrappers.runs_ahead and self.dataset.loader.split == "train":
            raise UserError(f"{HELD} Go on with prefetch_to_device, or close it: batches.close().")
        if self._is_fresh:
            wrappers.refuse_starting_over()
        if wrappers.keeps_state and self._is_fresh:
            raise UserError(
                "Lightning does not restore a loader from a checkpoint at the end of an epoch: this run would start over. Set "
                "Trainer(max_steps=…); or save and load the loader's state in a LightningDataModule (tests/examples)."
            )

    def _take(self) -> Any:
        """The next batch. An error leaves the position unchanged, so another loop asks for the same batch."""
        loader, step = self.dataset.loader, self.step
        asked_at = loader.clock.now()
        if self._pass is None or (self.persistent_workers and self._pass is not self._iterator):  # Lightning ends workers
            self.dataset.begin_pass()
            with torch.device("cpu"):  # DataLoader draws a seed, by a generator of the CPU, on the default device
                self._pass = super().__iter__()
        try:
            batch = next(self._pass)
            if self.num_workers:  # else the dataset moves on and measures
                loader.clock.takes(asked_at, _count(batch, loader.clock.counts))
                loader.seek(loader.next_step(1))
            if not loader.has_more():
                loader.warn_of_dropped(stacklevel=5)
        except BaseException:
            self._end_pass(keep_workers=False)
            loader.seek(step)
            raise
        return batch

    def _end_pass(self, *, keep_workers: bool) -> None:
        batches: Any = self._pass
        self._pass = None
        if not keep_workers:
            self._iterator = None
            try:
                if hasattr(batches, "_shutdown_workers"):
                    batches._shutdown_workers()
            except RuntimeError as error:
                # of a worker that crashes as it exits, whose batches are not needed: a spawned interpreter may abort while a
                # thread of a library still runs. Torch raises this in its handler of SIGCHLD, and ends the other workers
                if not str(error).startswith("DataLoader worker (pid"):
                    raise

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pass": None, "_iterator": None}


def _count(batch: Any, counts: PrefetchCounts) -> int:
    """Adds a batch of workers to `counts`, and returns its tokens. What a `collate_fn` makes may count as 0."""
    tensors = {name: value for name, value in batch.items() if torch.is_tensor(value)} if isinstance(batch, Mapping) else {}
    counts.batches += 1
    counts.bytes += sum(tensor.nbytes for tensor in tensors.values())
    return next((tensor.numel() for name, tensor in tensors.items() if name in PER_TOKEN), 0)


def _as_it_is(batch: Any) -> Any:
    return batch


def _gradient_state() -> Any:
    """Accelerate's record of the loaders that are being iterated; None in a program that does not use it."""
    accelerate = sys.modules.get("accelerate.state")
    return accelerate.GradientState() if accelerate is not None and accelerate.GradientState._shared_state else None
