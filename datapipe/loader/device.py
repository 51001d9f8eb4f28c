"""Batches on the accelerator before the step that needs them.

    source (Loader, DataLoader, …) ─▶ pinned memory ─▶ copy on a second stream ─▶ queue of `depth` ─▶ the trainer's stream
                                                          an event after it             oldest first      waits for the event

No thread is needed: each `next` hands out the oldest batch and starts the copy of another, so that at most `depth` copies are
pending, beside the batch that the trainer holds. An error of the source is raised when its batch is due. Without CUDA batches
are copied plainly, in the same order and with the same states, which count the batches handed out here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from datapipe.errors import UserError
from datapipe.loader.batches import Batch
from datapipe.loader.loader import Loader
from datapipe.loader.order.state import sealed

try:
    import torch
    from torch.utils.data import DataLoader
except ImportError as error:
    raise ImportError("datapipe.loader.device needs torch: pip install datapipe[torch]") from error

from datapipe.loader.prefetch import Turns
from datapipe.loader.torch import StreamingDataLoader, StreamingDataset


def prefetch_to_device(batches: Iterable[Mapping[str, Any]], device: str | torch.device, depth: int = 2) -> DevicePrefetcher:
    """Batches as tensors on `device`, copied while the trainer computes. `depth`: number of pending copies, in pinned memory
    and on the device, in addition to the batch handed out."""
    if depth < 1:
        raise UserError(f"depth={depth}: expected at least 1 pending copy.")
    return DevicePrefetcher(batches, torch.device(device), depth)


class DevicePrefetcher(Iterator[Batch]):
    """An iterator: after a break, another loop continues with the next batch. Close it, or use it in a `with`."""

    def __init__(self, source: Iterable[Mapping[str, Any]], device: torch.device, depth: int) -> None:
        self._source = source
        self._depth = depth
        self._states = _stateful(source)
        self._step: int | None = None  # of the source, after the batch handed out last
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._device = device
        self._iterator: Iterator[Mapping[str, Any]] | None = None
        self._pending: deque[_Copy | BaseException] = deque()  # an error or StopIteration comes last
        self._turns = Turns()

    def __next__(self) -> Batch:
        with self._turns.lock:
            if not self._pending:
                self._start_copies(1)
            oldest = self._pending.popleft()
            if isinstance(oldest, BaseException):
                self._iterator = None  # the next call begins a new pass over the source
                raise oldest
            self._start_copies(self._depth)
            self._step = oldest.step
            return self._hand_over(oldest)

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The state of the source after the last batch handed out."""
        if self._states is None:
            raise UserError(
                f"{type(self._source).__name__} has no state that counts batches. Count the steps of the run and save "
                f"dataset.state_dict(steps_done); or give prefetch_to_device a Loader, or a loader of datapipe.loader.torch."
            )
        if step is not None and self._step is not None and step > self._step:
            raise UserError(f"state_dict(step={step}): the step after the batches handed out is {self._step}.")
        if step is not None:
            return self._states.state_dict(step)
        state = self._states.state_dict()
        return state if self._step is None else sealed({**state, "step": self._step})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Drops pending copies; the source continues after the batches that `state` counts."""
        self.state_dict()  # raises for a source without a state
        self._drop()
        if self._states is not None:
            self._states.load_state_dict(state)

    def close(self) -> None:
        """Drops pending copies, ends the iteration of the source, and moves it back to the last batch handed out."""
        state = None if self._step is None else self.state_dict()
        self._drop()
        if state is not None and self._states is not None:
            self._states.load_state_dict(state)

    def _drop(self) -> None:
        self._pending.clear()
        if self._iterator is not None and hasattr(self._iterator, "close"):
            self._iterator.close()  # type: ignore[attr-defined]
        self._iterator, self._step = None, None

    def _start_copies(self, count: int) -> None:
        while len(self._pending) < count and not (self._pending and isinstance(self._pending[-1], BaseException)):
            try:
                if self._iterator is None:
                    self._iterator = iter(self._source)
                batch = next(self._iterator)
                self._pending.append(self._start_copy(batch, None if self._states is None else self._states.step))
            except Exception as error:  # raised by __next__ when its turn comes
                self._pending.append(error)

    def _start_copy(self, batch: Mapping[str, Any], step: int | None) -> _Copy:
        tensors = {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}
        if self._stream is None:
            return _Copy({name: self._to_device(value) for name, value in tensors.items()}, step, None)
        pinned = {name: value.pin_memory() if torch.is_tensor(value) else value for name, value in tensors.items()}
        with torch.cuda.stream(self._stream):
            copied = {name: self._to_device(value) for name, value in pinned.items()}
            return _Copy(copied, step, self._stream.record_event())

    def _to_device(self, value: Any) -> Any:
        if not torch.is_tensor(value):
            return value
        return value.to(self._device, non_blocking=self._stream is not None, copy=True)

    def _hand_over(self, copy: _Copy) -> Batch:
        """The batch, safe to use and to free on the trainer's stream."""
        if copy.event is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(copy.event)
            for value in copy.batch.values():
                if torch.is_tensor(value):
                    value.record_stream(stream)  # the copying stream owns the memory and must not reuse it early
        return copy.batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _Copy(NamedTuple):
    batch: Batch
    step: int | None
    event: torch.Event | None


def _stateful(source: Any) -> Loader | StreamingDataset | StreamingDataLoader | None:
    """The object that counts the batches of `source` in this process: `source`, or its dataset if it has no workers."""
    if isinstance(source, Loader | StreamingDataset | StreamingDataLoader):
        return source
    return _stateful(source.dataset) if isinstance(source, DataLoader) and source.num_workers == 0 else None
