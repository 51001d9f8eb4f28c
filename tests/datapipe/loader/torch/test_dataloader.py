"""What a loop over a loader of torch is given or refused, and what it leaves; and what trainers do to a loader in its life.

They save and load at odd times, copy it, change workers and ranks, and lose processes. Other loaders promise the same.
"""

import copy
import gc
import json
import multiprocessing
import pickle
import random
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from traceback import clear_frames
from typing import Any

import pytest

from datapipe.errors import CorruptionError, DroppedRowsWarning, SnapshotError, UserError
from datapipe.loader import Loader
from tests.support.late_import import late_import
from tests.support.loader_rows import first_tokens, steps_of
from tests.support.snapshots import make_snapshot

torch = late_import("torch")
torch_data = late_import("torch.utils.data")
stateful = late_import("torchdata.stateful_dataloader")
loader_torch = late_import("datapipe.loader.torch")
device = late_import("datapipe.loader.device")

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.medium,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than this machine has cores
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated"),  # torchdata calls it
]

S = 16
NUM_STEPS = 15
OPTIONS: dict[str, Any] = {"global_batch_size": 4, "fields": ("input_ids", "step")}
WORKERS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "two": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}
SOME_WORKERS = ["none", "two", pytest.param("persistent", marks=pytest.mark.slow)]
"""Workers that end with a loop stand for those that are kept."""


def dataset_of(output: Path, **options: Any) -> Any:
    return loader_torch.StreamingDataset(output, **OPTIONS, **options)


def plain(output: Path, workers: str, **options: Any) -> Any:
    return torch_data.DataLoader(dataset_of(output, **options), batch_size=None, **WORKERS[workers])


def counting(output: Path, workers: str, **options: Any) -> Any:
    return loader_torch.dataloader(output, **WORKERS[workers], **OPTIONS, **options)


def of_torchdata(output: Path, workers: str) -> Any:
    pytest.importorskip("torchdata")
    return stateful.StatefulDataLoader(dataset_of(output), batch_size=None, **WORKERS[workers])


def assert_refused(loader: Any, expected: str = "datapipe.loader.torch.dataloader") -> None:
    """A loop is refused, with `expected` in the message."""
    try:
        steps_of(loader, 1)
        message = ""
    except UserError as error:
        message = str(error)
        clear_frames(error.__traceback__)  # torch's refer to themselves: its workers take 5 s to stop when the collector comes
    assert expected in message


@pytest.mark.parametrize(("make", "workers"), [*((plain, workers) for workers in WORKERS), (of_torchdata, "none")])
@pytest.mark.slow
def test_second_loop_over_a_loader_that_does_not_count_goes_on_here_alone(output: Path, make: Any, workers: str) -> None:
    loader, ended, first, other = (make(output, workers) for _ in range(4))
    assert (steps_of(loader, 4), steps_of(ended)) == ([0, 1, 2, 3], list(range(NUM_STEPS)))
    if workers == "none":
        assert steps_of(loader, 1) + steps_of(loader) == list(range(4, NUM_STEPS))
        assert steps_of(ended) == steps_of(loader) == []
    else:
        assert_refused(loader)
        assert_refused(ended)
    steps_of(first, 6)
    state = first.state_dict() if make is of_torchdata else first.dataset.state_dict(steps_done=6)
    (other if make is of_torchdata else other.dataset).load_state_dict(json.loads(json.dumps(state)))
    assert steps_of(other) == list(range(6, NUM_STEPS))


@pytest.mark.parametrize("workers", ["none", pytest.param("two", marks=pytest.mark.slow), "persistent"])
def test_loaded_history_reaches_workers_that_are_kept(output: Path, workers: str) -> None:
    """A state of another batch size changes which rows a step has, which workers must not learn too late."""
    saved = Loader(output, global_batch_size=2, fields=OPTIONS["fields"])
    steps_of(saved, 3)
    loader, reference = counting(output, workers), Loader(output, **OPTIONS)
    steps_of(loader, 4)
    for each in (loader, reference):
        each.load_state_dict(saved.state_dict())
    assert first_tokens(loader) == first_tokens(reference)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.slow
def test_validation_passes_start_over_unless_a_state_was_loaded(output: Path, workers: str) -> None:
    for make in (plain, counting) if workers != "two" else (counting,):
        loader = make(output, workers, split="validation")
        assert [steps_of(loader, count) for count in (2, 99, 1, 2)] == [[0, 1], [0, 1, 2], [0], [0, 1]]
    loader.load_state_dict(loader.state_dict())
    assert [steps_of(loader), steps_of(loader)] == [[2], [0, 1, 2]]


def test_length_and_snapshot_are_those_of_the_whole_run(output: Path, tmp_path: Path) -> None:
    loader = counting(output, "none", skip=[(3, 5), (14, 30)])
    assert steps_of(loader) == [0, 1, 2, *range(5, 14)]
    assert len(loader) == len(loader.dataset) == 12
    assert loader.snapshot == Loader(output, **OPTIONS).snapshot
    endless = counting(make_snapshot(tmp_path, {"web": 20}), "none")
    with pytest.raises(TypeError):
        len(endless)
    assert endless.dataset  # is no question for its length
    assert steps_of(endless, 9) == list(range(9))


@pytest.mark.parametrize("workers", ["none", "two"])
def test_loop_after_an_error_asks_for_the_same_batch(tmp_path: Path, workers: str) -> None:
    output = make_snapshot(tmp_path, {"web": 280}, total_tokens=S * 60)
    reference = Loader(output, **OPTIONS)
    shards = [set((batch["input_ids"][:, 0] - 1) // S // 7) for batch in reference]  # of each step
    step, new = next((at, shards[at].difference(*shards[:at])) for at in range(3, 15) if shards[at].difference(*shards[:at]))
    damaged = output / reference.snapshot.shards[new.pop()].path
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:2000] + bytes(64) + whole[2064:])
    loader, other = counting(output, workers), counting(output, workers)
    for take in (lambda: deque(loader, maxlen=0), lambda: next(iter(loader))):
        with pytest.raises(CorruptionError):
            take()
        assert loader.step == step
    damaged.write_bytes(whole)
    other.load_state_dict(loader.state_dict())
    assert steps_of(other) == list(range(step, NUM_STEPS))


@pytest.mark.slow
def test_dataset_belongs_to_one_reader(output: Path) -> None:
    loader = counting(output, "two")
    steps_of(loader, 2)
    for other in (torch_data.DataLoader(loader.dataset, batch_size=None, num_workers=2), loader.dataset):
        assert_refused(other, "belongs to a StreamingDataLoader")
    assert steps_of(loader) == list(range(2, NUM_STEPS))
    with pytest.raises(UserError, match=r"found StreamingDataset.*StreamingDataLoader\(dataset"):
        loader_torch.dataloader(dataset_of(output))


def test_dataset_that_was_read_here_and_by_workers_does_not_go_on_here(output: Path) -> None:
    dataset = dataset_of(output)
    assert steps_of(dataset, 3) == [0, 1, 2]
    assert steps_of(torch_data.DataLoader(dataset, batch_size=None, num_workers=2), 4) == [3, 4, 5, 6]
    assert_refused(dataset, "where another pass would go on")
    with pytest.raises(UserError, match="steps_done"):
        dataset.state_dict()
    dataset.load_state_dict(dataset.state_dict(7))
    assert steps_of(dataset) == list(range(7, NUM_STEPS))


@pytest.mark.parametrize("given", [None, "state.json", {"loader": {}, "model": 1}, {}, "of torchdata", "of a worker"])
def test_what_is_no_state_is_refused(output: Path, given: Any) -> None:
    loaders = [counting(output, "none"), dataset_of(output), Loader(output, **OPTIONS)]
    if given == "of torchdata":
        given = of_torchdata(output, "none").state_dict()
    elif given == "of a worker":  # which a dataset within a worker takes
        given = {**Loader(output, **OPTIONS).state_dict(), "worker": {"id": 1, "num_workers": 2}}
        loaders = loaders[:1]
    for loader in loaders:
        with pytest.raises(SnapshotError):
            loader.load_state_dict(given)
        assert steps_of(loader, 1) == [0]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.slow
def test_rows_that_are_left_out_are_reported_once_with_the_last_batch_and_cost_no_batch(tmp_path: Path, workers: str) -> None:
    """A trainer that counts batches does not ask for another; and one for which warnings are errors asks for the same again."""
    output = make_snapshot(tmp_path, {"web": 83}, total_tokens=S * 63)
    loader = counting(output, workers)
    batches = iter(loader)
    assert [next(batches)["step"] for _ in range(NUM_STEPS - 1)] == list(range(NUM_STEPS - 1))
    with pytest.warns(DroppedRowsWarning, match="3 rows"):
        assert next(batches)["step"] == NUM_STEPS - 1
    assert [*batches, *loader] == []
    loader = counting(output, workers)
    assert steps_of(loader, NUM_STEPS - 1) == list(range(NUM_STEPS - 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DroppedRowsWarning)
        with pytest.raises(DroppedRowsWarning):
            steps_of(loader, 1)
    assert steps_of(loader) == [NUM_STEPS - 1]


@pytest.mark.parametrize("workers", SOME_WORKERS)
def test_stats_are_of_the_batches_that_the_trainer_took(output: Path, workers: str) -> None:
    loader = counting(output, workers)
    assert loader.stats().diagnosis == "unknown"
    steps_of(loader, 6)
    steps_of(loader)
    stats = loader.stats()
    assert (stats.steps, stats.num_waits, stats.rank, stats.split) == (NUM_STEPS, NUM_STEPS - 2, 0, "train")
    assert (stats.tokens, stats.bytes) == (NUM_STEPS * 4 * S, NUM_STEPS * 4 * S * 8)
    assert 0 <= stats.longest_wait_s <= stats.wait_s
    assert stats.diagnosis != "unknown"
    assert stats.num_workers == WORKERS[workers]["num_workers"]
    assert (stats.built == 0) == (stats.num_workers > 0)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.slow
def test_collate_function_is_applied_to_whole_batches_and_states_and_stats_count(output: Path, workers: str) -> None:
    expected = [batch["input_ids"][:, 0].tolist() for batch in Loader(output, **OPTIONS)]
    made = loader_torch.StreamingDataLoader(dataset_of(output), collate_fn=_first_tokens, **WORKERS[workers])
    for loader in (made, counting(output, workers, collate_fn=_first_tokens)):
        assert [batch for _, batch in zip(range(6), loader)] == expected[:6]
        assert loader.state_dict()["step"] == 6
        assert list(loader) == expected[6:]
        assert loader.stats().steps == NUM_STEPS
        assert workers == "none" or (loader.stats().tokens, loader.stats().bytes) == (0, 0)
    plain_loader = torch_data.DataLoader(dataset_of(output), batch_size=None, collate_fn=_first_tokens, **WORKERS[workers])
    assert list(plain_loader) == expected


def _first_tokens(batch: Any) -> list[int]:
    return batch["input_ids"][:, 0].tolist()


@pytest.mark.parametrize("workers", SOME_WORKERS)
def test_function_of_the_user_that_fails_leaves_the_position(output: Path, workers: str) -> None:
    loader = counting(output, workers, collate_fn=_fail_at_step_3)
    for expected in ([0, 1, 2], []):
        batches = iter(loader)
        assert [next(batches)["step"] for _ in expected] == expected
        with pytest.raises(ZeroDivisionError):
            next(batches)
        assert loader.state_dict()["step"] == 3
    if workers == "two":
        loader = loader_torch.StreamingDataLoader(dataset_of(output), num_workers=2, worker_init_fn=_fail)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                next(iter(loader))
        assert loader.step == 0


def _fail(worker: int) -> None:
    raise ZeroDivisionError(worker)


def _fail_at_step_3(batch: Any) -> Any:
    return batch if batch["step"] != 3 else _fail(0)


def on_device(output: Path, workers: str) -> Any:
    return device.prefetch_to_device(counting(output, workers), "cpu", depth=2)


KINDS: dict[str, Callable[[Path], Any]] = {
    "Loader": lambda output: Loader(output, **OPTIONS),
    "dataset": lambda output: loader_torch.StreamingDataset(output, **OPTIONS),
    "workers none": lambda output: counting(output, "none"),
    "workers two": lambda output: counting(output, "two"),
    "workers three": lambda output: loader_torch.dataloader(output, num_workers=3, **OPTIONS),
    "workers persistent": lambda output: counting(output, "persistent"),
    "device, workers none": lambda output: on_device(output, "none"),
    "device, workers persistent": lambda output: on_device(output, "persistent"),
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


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))])
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * ("persistent" in kind)) for kind in KINDS])
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
    before, loader = threads_and_workers(), KINDS[kind](output)
    loader.load_state_dict(loader.state_dict())
    assert loader.state_dict() == Loader(output, **OPTIONS).state_dict()
    assert threads_and_workers() == before


@pytest.mark.parametrize("workers", SOME_WORKERS[1:])
def test_worker_that_is_killed_is_reported_and_costs_no_batch(output: Path, workers: str) -> None:
    before, loader = threads_and_workers()[1], counting(output, workers, prefetch_factor=1)
    batches = iter(loader)
    found = steps_of(batches, 3)
    for process in threads_and_workers()[1] - before:
        process.kill()
        process.join()
    with pytest.raises(RuntimeError, match="worker"):
        found.extend(batch["step"] for batch in batches)
    assert loader.step == loader.state_dict()["step"] == len(found)
    assert found + steps_of(loader) == list(range(NUM_STEPS))


@pytest.mark.slow
def test_workers_that_are_spawned_give_the_same_batches_and_go_on(output: Path) -> None:
    expected, options = first_tokens(Loader(output, **OPTIONS)), {"num_workers": 2, "multiprocessing_context": "spawn"}
    assert first_tokens(torch_data.DataLoader(dataset_of(output), batch_size=None, **options)) == expected
    loader = loader_torch.dataloader(output, **OPTIONS, **options)
    assert steps_of(loader, 4) + steps_of(loader) == list(range(NUM_STEPS))


@pytest.mark.parametrize("told", ["DataLoader worker (pid 7) is killed by signal: Aborted. ", "another error"])
def test_worker_that_aborts_as_it_exits_fails_nothing_and_other_errors_are_raised(
    output: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    loader = counting(output, "two")
    batches = iter(loader)
    assert steps_of(batches, 3) == [0, 1, 2]
    kind = torch_data.dataloader._MultiProcessingDataLoaderIter
    shut_down = kind._shutdown_workers

    def failing(ended: Any) -> None:
        shut_down(ended)
        monkeypatch.setattr(kind, "_shutdown_workers", shut_down)
        raise RuntimeError(told)

    monkeypatch.setattr(kind, "_shutdown_workers", failing)
    with pytest.raises(RuntimeError, match=told) if "pid" not in told else nullcontext():
        batches.close()
    assert steps_of(loader) == list(range(3, NUM_STEPS))


@pytest.mark.parametrize("workers", SOME_WORKERS)
def test_loaders_at_the_same_time_count_for_themselves(output: Path, workers: str) -> None:
    loaders = [counting(output, workers, seed=seed) for seed in (3, 4)]
    streams = [iter(loader) for loader in loaders]
    assert [next(streams[number])["step"] for number in (0, 1, 1, 0, 1, 0, 0)] == [0, 0, 1, 1, 2, 2, 3]
    assert [loader.state_dict()["step"] for loader in loaders] == [4, 3]
    for loader, seed, done in zip(loaders, (3, 4), (4, 3)):
        assert first_tokens(loader) == first_tokens(Loader(output, **OPTIONS, seed=seed))[done * 4 :]


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
    before, loader = threads_and_workers(), counting(output, workers)
    batches = iter(loader)
    take(batches)
    asked = weakref.ref(loader)
    del loader, batches
    assert asked() is None
    assert threads_and_workers() == before
