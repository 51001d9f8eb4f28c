"""Which libraries iterate a dataset, from the call stack at its `iter` and first `next`.

Accelerate, Lightning and torch's own DataLoader iterate a dataset through classes that group, split
or hold its batches, and the trainer of one rank would then get wrong batches in silence. In a
worker process, the stack has only the classes of the DataLoader. Accelerate calls `set_epoch` of a
dataset in the main process before each iteration, and is recognised there.
"""

import sys
from collections.abc import Iterator
from typing import Any

from datapipe.dataclass import dataclass
from datapipe.errors import UserError

LIBRARIES = frozenset({"accelerate", "datapipe", "lightning", "pytorch_lightning", "torch", "transformers"})
SPLITTING = frozenset({"DataLoaderDispatcher", "IterableDatasetShard"})
HOLDING = frozenset({"DataLoaderDispatcher", "DataLoaderShard", "DevicePrefetcher"})
FETCHER = "_PrefetchDataFetcher"
"""Lightning's: it holds a batch only if the run has no length, which it asks for between `iter` and the first `next`."""

FIT_LOOP = "_FitLoop"
"""Lightning's: with `max_epochs`, it does not load the state of a loader from a checkpoint at the end of an epoch."""

TRAINER = ("transformers.trainer", "Trainer")  # Hugging Face's, which users derive theirs from
MOST_FRAMES = 64  # That are searched: a trainer is within the first dozen


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrappers:
    makes_batches: bool  # a DataLoader collates several items of the dataset into one
    splits: str  # the class, of Accelerate, that gives each process a part of what a rank reads
    # the class that holds batches before the trainer asks, so that positions count them too early
    runs_ahead: str
    keeps_state: bool  # whether Lightning holds a state from a checkpoint that it did not load
    # the step after which Hugging Face's Trainer continues with this dataset, if it skips no batches; else 0
    resumed_at: int

    def refuse(self, cuts_rows: bool, data_size: int, is_fresh: bool) -> None:
        """Raises UserError if the trainer would get other batches than those of the dataset."""
        if self.makes_batches and not cuts_rows:
            raise UserError(
                "this DataLoader makes batches of what StreamingDataset hands out, which are whole batches already. Write "
                "DataLoader(dataset, batch_size=None, …), with a collate_fn or not, or datapipe.loader.torch.dataloader(…), "
                "which Hugging Face's Trainer takes from its get_train_dataloader. Or hand out rows: "
                "StreamingDataset(…, samples=True)."
            )
        self.refuse_trainer(data_size, is_fresh)

    def refuse_trainer(self, data_size: int, is_fresh: bool) -> None:
        """Raises UserError if only some rows of one of `data_size` ranks would be handed out, or the run would start over."""
        if is_fresh:
            self.refuse_starting_over()
        if self.splits and data_size > 1:
            raise UserError(
                f"Accelerate ({self.splits}) would hand each process a part of what this dataset reads, which is the part of "
                f"one rank of {data_size} already: rows would be left out. Use datapipe.loader.torch.dataloader(…), which "
                f"accelerator.prepare takes as it is; in Hugging Face's Trainer, return it from get_train_dataloader."
            )

    def refuse_starting_over(self) -> None:
        """Raises UserError if a trainer resumes, and the dataset does not: nothing was taken or loaded."""
        if self.resumed_at:
            raise UserError(
                f"Hugging Face's Trainer resumes after step {self.resumed_at}, and this loader would start over. Save "
                f"loader.state_dict() with each checkpoint, in a callback's on_save, and load it before trainer.train(…): see "
                f"tests/examples/hf_trainer.py. To start over with other data, loader.load_state_dict(loader.state_dict())."
            )


def find_wrappers(dataset: object) -> Wrappers:
    """The wrappers through which `dataset` is being iterated, as seen by the caller of this function."""
    makes_batches, splits, runs_ahead, keeps_state, resumed_at = False, "", "", False, 0
    for owner in _owners():
        name = type(owner).__name__ if type(owner).__module__.partition(".")[0] in LIBRARIES else ""
        if name == "_IterableDatasetFetcher" and owner.dataset is dataset:
            makes_batches = bool(owner.auto_collation)
        if name in SPLITTING:
            splits = splits or name
        if name in HOLDING or (name == FETCHER and getattr(owner, "length", None) is None):
            runs_ahead = runs_ahead or name
        keeps_state = keeps_state or (name == FIT_LOOP and bool(getattr(owner, "_combined_loader_states_to_load", ())))
        resumed_at = resumed_at or _resumed_at(owner, dataset)
    return Wrappers(
        makes_batches=makes_batches, splits=splits, runs_ahead=runs_ahead, keeps_state=keeps_state, resumed_at=resumed_at
    )


def _resumed_at(owner: Any, dataset: object) -> int:
    """The step after which a Trainer resumes with `dataset` and skips no batches; or 0."""
    if all((kind.__module__, kind.__qualname__) != TRAINER for kind in type(owner).__mro__):
        return 0
    wrapped = getattr(owner.callback_handler, "train_dataloader", None)
    while wrapped is not None and wrapped is not dataset:  # a DataLoader, perhaps with a shard of Accelerate inside
        wrapped = getattr(wrapped, "dataset", None)
    return owner.state.global_step if wrapped is dataset and owner.args.ignore_data_skip else 0


def refuse_sampler() -> None:
    """Raises UserError if a sampler asks for the length of a dataset, as that of DeepSpeed does for its training_data."""
    if is_called_by("torch.utils.data.distributed", "torch.utils.data.sampler"):
        raise UserError(
            "a sampler cannot choose from a StreamingDataset, which reads the rows of its rank in the order of the run. "
            "Iterate datapipe.loader.torch.dataloader(…); with DeepSpeed, leave out training_data."
        )


def is_called_by(*modules: str) -> bool:
    """Whether a method of a class from one of `modules` is on the call stack."""
    return any(type(owner).__module__.startswith(modules) for owner in _owners())


def _owners() -> Iterator[Any]:
    """The objects whose methods are on the call stack, innermost first."""
    frame = sys._getframe(2)
    for _ in range(MOST_FRAMES):
        if frame is None:
            return
        if "self" in frame.f_code.co_varnames[:1]:
            yield frame.f_locals.get("self")
        frame = frame.f_back
