"""What trainers do to a loader in its life: they save and load at odd times, copy it, change workers and ranks, lose processes.

Grain, litData, MosaicML's streaming and torchdata promise the same of their loaders.
"""

from __future__ import annotations

import copy
import gc
import json
import multiprocessing
import os
import pickle
import random
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import UserError
from datapipe.loader import Loader
from tests.support.late_import import late_import
from tests.support.loader_rows import first_tokens, steps_of

loader_torch = late_import("datapipe.loader.torch")
device = late_import("datapipe.loader.device")

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.medium,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than this machine has cores
    pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning"),
]


NUM_STEPS = 15

OPTIONS: dict[str, Any] = {"global_batch_size": 4, "fields": ("input_ids", "step")}

WORKERS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "two": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}


def counting(output: Path, **workers: Any) -> Any:
    return loader_torch.dataloader(output, **OPTIONS, **workers)


def on_device(output: Path, **workers: Any) -> Any:
    return device.prefetch_to_device(counting(output, **workers), "cpu", depth=2)


KINDS: dict[str, Callable[[Path], Any]] = {
    "Loader": lambda output: Loader(output, **OPTIONS),
    "dataset": lambda output: loader_torch.StreamingDataset(output, **OPTIONS),
    "workers none": lambda output: counting(output, **WORKERS["none"]),
    "workers two": lambda output: counting(output, **WORKERS["two"]),
    "workers three": lambda output: counting(output, num_workers=3),
    "workers persistent": lambda output: counting(output, **WORKERS["persistent"]),
    "device, workers none": lambda output: on_device(output, **WORKERS["none"]),
    "device, workers persistent": lambda output: on_device(output, **WORKERS["persistent"]),
}

OPERATIONS = ("loop", "loop", "loops", "nothing", "load", "move", "copy")


class History:
    """A loader, and the step that it must hand out next."""

    def __init__(self, output: Path, kind: str) -> None:
        self.output, self.kind, self.position = output, kind, 0
        reference = Loader(output, **OPTIONS)
        self.states, self.tokens = [reference.state_dict()], list[list[int]]()
        for batch in reference:
            self.states.append(reference.state_dict())
            self.tokens.append(first_tokens([batch]))
        self.loader = KINDS[kind](output)

    def take(self, batches: Iterator[Any], count: int) -> None:
        """The next batches are those of a loader in one process, up to the end of the run."""
        found = [(batch["step"], first_tokens([batch])) for batch in islice(batches, count)]
        stop = min(self.position + count, NUM_STEPS)
        assert found == [(step, self.tokens[step]) for step in range(self.position, stop)]
        self.position = stop

    def do(self, operation: str, draw: random.Random) -> None:
        if operation == "loop":
            self.take(iter(self.loader), draw.choice([1, 2, 3, 5, 99]))
        elif operation == "loops" and self.kind.startswith("workers"):
            streams = [iter(self.loader), iter(self.loader)]
            for stream in draw.choices(streams, k=4):
                self.take(stream, 1)
        elif operation == "nothing":
            iter(self.loader)
        elif operation == "load":
            self.position = draw.randrange(NUM_STEPS + 1)
            self.loader.load_state_dict(json.loads(json.dumps(self.states[self.position])))
        elif operation == "move":
            state = json.loads(json.dumps(self.loader.state_dict()))
            self.close()
            self.kind = draw.choice([*KINDS])
            self.loader = KINDS[self.kind](self.output)
            for given in (self.states[3], state, state):
                self.loader.load_state_dict(given)
        elif operation == "copy" and not self.kind.startswith("device"):
            copied = draw.choice([copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
            self.loader = copied(self.loader)
        assert self.loader.state_dict() == self.states[self.position], operation
        before = draw.randrange(self.position + 1)  # for trainers that take batches ahead
        assert self.loader.state_dict(before) == self.states[before]
        if self.kind != "dataset":  # which believes the trainer's count
            with pytest.raises(UserError):
                self.loader.state_dict(self.position + 1)

    def close(self) -> None:
        if self.kind.startswith("device"):
            self.loader.close()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 9))])
@pytest.mark.parametrize("kind", KINDS)
def test_any_use_of_a_loader_hands_out_each_step_once_in_order(output: Path, kind: str, seed: int) -> None:
    """Loops that break, iterators at the same time, states loaded at any time, and copies and other kinds of loader."""
    draw, history = random.Random(f"{kind} {seed}"), History(output, kind)
    for operation in [*draw.sample(OPERATIONS, len(OPERATIONS)), *draw.choices(OPERATIONS, k=5), "loop"]:
        history.do(operation, draw)
    history.take(iter(history.loader), 99)
    history.take(iter(history.loader), 99)
    history.close()


def threads_and_workers() -> tuple[set[str], set[Any]]:
    """Of this process: the names of the threads that build batches, and the processes that it started."""
    threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("datapipe")}
    return threads, set(multiprocessing.active_children())


@pytest.mark.parametrize("kind", KINDS)
def test_saving_and_loading_a_state_starts_no_thread_and_no_process(output: Path, kind: str) -> None:
    before = threads_and_workers()
    loader = KINDS[kind](output)
    loader.load_state_dict(loader.state_dict())
    assert loader.state_dict() == Loader(output, **OPTIONS).state_dict()
    assert threads_and_workers() == before


@pytest.mark.parametrize("workers", ["two", "persistent"])
def test_worker_that_is_killed_is_told_and_costs_no_batch(output: Path, workers: str) -> None:
    before = set(multiprocessing.active_children())
    loader = counting(output, **WORKERS[workers], prefetch_factor=1)
    batches = iter(loader)
    found = steps_of(batches, 3)
    for process in set(multiprocessing.active_children()) - before:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    with pytest.raises(RuntimeError, match="worker"):
        found.extend(batch["step"] for batch in batches)
    assert loader.step == loader.state_dict()["step"] == len(found)
    assert found + steps_of(loader) == list(range(NUM_STEPS))


@pytest.fixture
def no_collector() -> Iterator[None]:
    """The garbage collector is off, so that only reference counts free anything."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("take", [next, list])
def test_threads_and_workers_end_with_the_last_reference(
    output: Path, no_collector: None, workers: str, take: Callable[[Iterator[Any]], object]
) -> None:
    before = threads_and_workers()
    loader = counting(output, **WORKERS[workers])
    batches = iter(loader)
    take(batches)
    asked = weakref.ref(loader)
    del loader, batches
    assert asked() is None
    assert threads_and_workers() == before
