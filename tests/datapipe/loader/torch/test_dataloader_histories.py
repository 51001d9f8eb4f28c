"""What trainers do to a DataLoader in its life: they save and load at odd times, change workers and ranks, and lose processes.

Grain, litData, MosaicML's streaming and torchdata promise the same of their loaders.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.loader import Loader
from datapipe.loader.order.state import sealed
from tests.support.late_import import late_import
from tests.support.snapshots import make_snapshot

torch = late_import("torch")
loader_torch = late_import("datapipe.loader.torch")
device = late_import("datapipe.loader.device")

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than this machine has cores
    pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning"),
]

S = 16
NUM_STEPS = 15
OPTIONS: dict[str, Any] = {"global_batch_size": 4, "fields": ("input_ids", "step")}
WORKERS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "two": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83}, total_tokens=S * 60)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """The garbage collector is off, so that only reference counts free anything."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def steps_of(batches: Any, count: int = 99) -> list[int]:
    return [batch["step"] for batch in islice(batches, count)]


def first_tokens(batch: Any) -> list[int]:
    return batch["input_ids"][:, 0].tolist()


def threads_and_workers() -> tuple[set[str], set[Any]]:
    """Of this process: the names of the threads that build batches, and the processes that it started."""
    threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("datapipe")}
    return threads, set(multiprocessing.active_children())


def plain_loader(output: Path, **_: Any) -> Any:
    return Loader(output, **OPTIONS)


def counting(output: Path, **workers: Any) -> Any:
    return loader_torch.dataloader(output, **OPTIONS, **workers)


def on_device(output: Path, **workers: Any) -> Any:
    return device.prefetch_to_device(loader_torch.dataloader(output, **OPTIONS, **workers), "cpu", depth=2)


KINDS = {"Loader": plain_loader, "dataloader": counting, "prefetch_to_device": on_device}
CASES = [("Loader", "none"), *((kind, workers) for kind in ("dataloader", "prefetch_to_device") for workers in WORKERS)]


@pytest.mark.parametrize(("kind", "workers"), CASES)
def test_saving_a_state_starts_no_thread_and_no_process(output: Path, kind: str, workers: str) -> None:
    before = threads_and_workers()
    loader = KINDS[kind](output, **WORKERS[workers])
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert threads_and_workers() == before


@pytest.mark.parametrize(("kind", "workers"), CASES)
def test_states_loaded_twice_and_after_the_end_go_on_where_they_say(output: Path, kind: str, workers: str) -> None:
    loader = KINDS[kind](output, **WORKERS[workers])
    start = json.loads(json.dumps(loader.state_dict()))
    assert steps_of(loader, 5) == [0, 1, 2, 3, 4]
    middle = json.loads(json.dumps(loader.state_dict()))
    assert steps_of(loader) == list(range(5, NUM_STEPS))
    for state, step in ((middle, 5), (start, 0)):
        loader.load_state_dict(start)
        loader.load_state_dict(state)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert steps_of(loader) == list(range(step, NUM_STEPS))
    if kind == "prefetch_to_device":
        loader.close()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [case for case in CASES if case[1] != "persistent"])
def test_states_neither_drift_nor_grow_when_each_batch_is_trained_by_another_process(
    output: Path, kind: str, workers: str
) -> None:
    state, found, sizes = None, [], set()
    for _ in range(NUM_STEPS):
        loader = KINDS[kind](output, **WORKERS[workers])
        if state is not None:
            loader.load_state_dict(state)
        found += steps_of(loader, 1)
        state = json.loads(json.dumps(loader.state_dict()))
        sizes.add(len(json.dumps({**state, "step": 0})))
        if kind == "prefetch_to_device":
            loader.close()
    assert found == list(range(NUM_STEPS))
    assert len(sizes) == 1


@pytest.mark.parametrize("seed", range(4))
def test_any_history_of_ranks_workers_and_batch_sizes_hands_out_each_row_once_in_order(tmp_path: Path, seed: int) -> None:
    """Elastic training: all of them change at each restart. Between restarts, ranks take turns as they like."""
    generator = np.random.default_rng(seed)
    folder = make_snapshot(tmp_path, {"code": 31, "web": 83})
    expected = [token for batch in islice(Loader(folder, global_batch_size=1), 400) for token in first_tokens(batch)]
    found, state = list[int](), None
    for _ in range(5):
        world, size, num_steps = (int(generator.integers(1, stop)) for stop in (4, 9, 7))
        ranks = []
        for rank in range(world):
            workers = {"num_workers": int(generator.integers(0, 4))}
            options = {"global_batch_size": size, "fields": OPTIONS["fields"], "rank": rank, "world_size": world}
            ranks.append(loader_torch.dataloader(folder, **options, **workers))
            if state is not None:
                ranks[-1].load_state_dict(state)
        parts = [[first_tokens(batch) for batch in islice(rank, num_steps)] for rank in ranks]
        found += [token for step in zip(*parts, strict=True) for part in step for token in part]
        states = [json.dumps(rank.state_dict(), sort_keys=True) for rank in ranks]
        assert len(set(states)) == 1
        state = json.loads(states[int(generator.integers(world))])
    assert found == expected[: len(found)]


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
    assert loader.step == len(found)
    assert loader.state_dict()["step"] == len(found)
    assert found + steps_of(loader) == list(range(NUM_STEPS))


@pytest.mark.parametrize("num_workers", [1, 16, 20])
def test_more_workers_than_batches_hand_out_each_batch_once(output: Path, num_workers: int) -> None:
    loader = counting(output, num_workers=num_workers)
    loader.load_state_dict(sealed({**loader.state_dict(), "step": NUM_STEPS - 2}))
    assert steps_of(loader) == [NUM_STEPS - 2, NUM_STEPS - 1]
    assert steps_of(loader) == []


@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_source_of_one_row_fills_the_batches_of_any_world(tmp_path: Path, world_size: int, num_workers: int) -> None:
    folder = make_snapshot(tmp_path, {"web": 1})
    options = {"global_batch_size": 8, "world_size": world_size, "num_workers": num_workers}
    for rank in range(world_size):
        batches = list(islice(loader_torch.dataloader(folder, **options, rank=rank), 3))
        assert [batch["input_ids"].shape for batch in batches] == [(8 // world_size, S)] * 3
        assert len({token for batch in batches for token in first_tokens(batch)}) == 1


def test_part_of_an_epoch_is_the_beginning_of_the_whole(tmp_path: Path) -> None:
    """`max_epochs` below 1 reads a subset of a source, which is the same whatever follows."""
    whole = make_snapshot(tmp_path / "whole", {"web": 80}, max_epochs={"web": 1})
    half = make_snapshot(tmp_path / "half", {"web": 80}, max_epochs={"web": 0.5})
    found = [first_tokens(batch) for batch in loader_torch.dataloader(half, **OPTIONS, num_workers=2)]
    assert len(found) == 10
    assert found == [first_tokens(batch) for batch in islice(Loader(whole, **OPTIONS), 10)]
    assert len({token for batch in found for token in batch}) == 40


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


def test_function_of_the_user_begins_each_worker(output: Path, tmp_path: Path) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    begin = _Beginning(tmp_path)
    loader = loader_torch.StreamingDataLoader(dataset, num_workers=3, worker_init_fn=begin)
    assert steps_of(loader) == list(range(NUM_STEPS))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "1", "2"]


class _Beginning:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, worker: int) -> None:
        (self._folder / str(worker)).touch()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_changes_of_a_history_pass_through_a_distributed_checkpoint(output: Path, tmp_path: Path) -> None:
    """A fresh loader has a shorter history than the saved one, and torch loads into what it has."""
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    first = Loader(output, global_batch_size=2)
    steps = [next(first), next(first), next(first)]
    saved = loader_torch.dataloader(output, **OPTIONS, skip=[(5, 7)])
    saved.load_state_dict(first.state_dict())
    assert steps_of(saved, 4) == [3, 4, 7, 8]
    checkpoint.save({"loader": saved}, checkpoint_id=tmp_path, no_dist=True)
    restored = loader_torch.dataloader(output, **OPTIONS)
    checkpoint.load({"loader": restored}, checkpoint_id=tmp_path, no_dist=True)
    assert restored.state_dict() == saved.state_dict()
    np.testing.assert_array_equal(restored.dataset.loader.batch(1)["input_ids"], steps[1]["input_ids"])
