"""Batches on the accelerator before the step that needs them.

    source (Loader, DataLoader, …) ─▶ pinned memory ─▶ copy on a stream of its own ─▶ queue of `depth` ─▶ the trainer's stream
                                                          an event after it             oldest first      waits for the event

    batches = prefetch_to_device(Loader("runs/x", batch_size=8), "cuda")
    for batch in batches:                 the same batches in the same order, as tensors on the device
        …
        batches.state_dict()              counts what was handed out here, not what the source has given

No thread: each `next` hands out the oldest batch and starts the copy of another, so no more than `depth` are under way, beside
the one in the trainer's hands; while fewer are, the next one is taken from the source. An error of the source is raised where
the batch would have stood. Without CUDA it is a plain copy, with the same order and the same states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from datapipe.errors import UserError
from datapipe.loader.loader import Loader

try:
    import torch
    from torch.utils.data import DataLoader
except ImportError as error:
    raise ImportError("datapipe.loader.device needs torch: pip install datapipe[torch]") from error

from datapipe.loader.torch import StreamingDataset

Batch = dict[str, Any]


def prefetch_to_device(batches: Iterable[Mapping[str, Any]], device: str | torch.device, depth: int = 2) -> DevicePrefetcher:
    """Batches as tensors on `device`, copied while the trainer computes.

    Args:
        batches: of NumPy arrays or tensors; what is neither passes as it is.
        device: "cuda", "cuda:1", "cpu", …
        depth: batches under way beside the one handed out, in pinned memory and on the device.
    """
    if depth < 1:
        raise UserError(f"depth={depth}: expected at least 1 batch under way to the device.")
    return DevicePrefetcher(batches, torch.device(device), depth)


class DevicePrefetcher(Iterator[Batch]):
    """An iterator: a loop that breaks off goes on with the next batch in another loop. Close it, or use it in a `with`."""

    def __init__(self, source: Iterable[Mapping[str, Any]], device: torch.device, depth: int) -> None:
        self._source = source
        self._depth = depth
        self._states: Any = _stateful(source)
        self._state: int | dict[str, Any] | None = None  # after the batch handed out last
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._device = device
        self._iterator: Iterator[Mapping[str, Any]] | None = None
        self._under_way: deque[_Copy | BaseException] = deque()  # an error or StopIteration stands at its place, and last

    def __next__(self) -> Batch:
        if not self._under_way:
            self._fill(1)
        oldest = self._under_way.popleft()
        if isinstance(oldest, BaseException):
            self._iterator = None  # what comes after an error, or after the end, is a new pass over the source
            raise oldest
        self._fill(self._depth)
        self._state = oldest.state
        return self._handed_over(oldest)

    def state_dict(self) -> dict[str, Any]:
        """The source's own state after the batch handed out last."""
        if self._states is None:
            raise UserError(
                f"{type(self._source).__name__} keeps no state that counts batches. Count the steps of the run, and save "
                f"dataset.state_dict(steps_done); or give prefetch_to_device a Loader or a StatefulDataLoader."
            )
        if self._state is None:
            return dict(self._states.state_dict())
        return {**self._states.state_dict(), "step": self._state} if isinstance(self._state, int) else self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Drops what is under way; the source goes on after the batches that `state` counts."""
        self.state_dict()  # says what is wrong where the source keeps none
        self._drop()
        self._states.load_state_dict(state)

    def close(self) -> None:
        """Drops what is under way, ends the source's iteration, and puts the source back to what was handed out."""
        state = None if self._state is None else self.state_dict()
        self._drop()
        if state is not None:
            self._states.load_state_dict(state)

    def _state_now(self) -> int | dict[str, Any] | None:
        """Of the source: its step where that is all that changes from batch to batch, else all of it."""
        if isinstance(self._states, Loader | StreamingDataset):
            return self._states.step
        return None if self._states is None else dict(self._states.state_dict())

    def _drop(self) -> None:
        self._under_way.clear()
        if self._iterator is not None and hasattr(self._iterator, "close"):
            self._iterator.close()  # type: ignore[attr-defined]
        self._iterator, self._state = None, None

    def _fill(self, count: int) -> None:
        """Starts copies until `count` are under way, or the source has no more."""
        while len(self._under_way) < count and not (self._under_way and isinstance(self._under_way[-1], BaseException)):
            try:
                if self._iterator is None:
                    self._iterator = iter(self._source)
                batch = next(self._iterator)
                self._under_way.append(self._started(batch, self._state_now()))
            except Exception as error:  # raised by the __next__ whose turn it is
                self._under_way.append(error)

    def _started(self, batch: Mapping[str, Any], state: int | dict[str, Any] | None) -> _Copy:
        tensors = {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}
        if self._stream is None:
            return _Copy({name: self._moved(value) for name, value in tensors.items()}, state, None)
        pinned = {name: value.pin_memory() if torch.is_tensor(value) else value for name, value in tensors.items()}
        with torch.cuda.stream(self._stream):
            moved = {name: self._moved(value) for name, value in pinned.items()}
            return _Copy(moved, state, self._stream.record_event())

    def _moved(self, value: Any) -> Any:
        if not torch.is_tensor(value):
            return value
        return value.to(self._device, non_blocking=self._stream is not None, copy=True)

    def _handed_over(self, copy: _Copy) -> Batch:
        """The batch, safe to use on the trainer's stream, and to forget there."""
        if copy.event is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(copy.event)
            for value in copy.batch.values():
                if torch.is_tensor(value):
                    value.record_stream(stream)  # its memory was taken on the copying stream, which must not reuse it early
        return copy.batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _Copy:
    """A batch under way, the source's state after it, and the event after its last copy."""

    def __init__(self, batch: Batch, state: int | dict[str, Any] | None, event: torch.Event | None) -> None:
        self.batch = batch
        self.state = state
        self.event = event


def _stateful(source: Any) -> Any:
    """Who counts the batches that `source` gives in this process: itself, or the dataset of a DataLoader without workers."""
    if hasattr(source, "state_dict") and hasattr(source, "load_state_dict"):
        return source
    if isinstance(source, DataLoader) and source.num_workers == 0:
        return _stateful(source.dataset)
    return None
