"""One rule for every loop over a loader: it goes on after the last one or is refused; no batch is repeated or left out."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from traceback import clear_frames
from typing import Any

import numpy as np
import pytest

from datapipe.errors import CorruptionError, DroppedRowsWarning, SnapshotError, UserError
from datapipe.loader import Loader
from tests.support.late_import import late_import
from tests.support.snapshots import make_snapshot

torch = late_import("torch")
torch_data = late_import("torch.utils.data")
stateful = late_import("torchdata.stateful_dataloader")
accelerate = late_import("accelerate")
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


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    validation = {"code": 4, "web": 9}
    return make_snapshot(
        tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83}, total_tokens=S * 60, validation=validation
    )


@pytest.fixture
def accelerator() -> Iterator[Callable[[], Any]]:
    """Makes an Accelerator of one process, and leaves none of its state behind."""
    pytest.importorskip("accelerate")

    def reset() -> None:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()

    yield lambda: accelerate.Accelerator(cpu=True)
    reset()


def plain(output: Path, workers: dict[str, Any], **options: Any) -> Any:
    return torch_data.DataLoader(loader_torch.StreamingDataset(output, **OPTIONS, **options), batch_size=None, **workers)


def counting(output: Path, workers: dict[str, Any], **options: Any) -> Any:
    return loader_torch.dataloader(output, **workers, **OPTIONS, **options)


def of_torchdata(output: Path, workers: dict[str, Any], **options: Any) -> Any:
    pytest.importorskip("torchdata")
    dataset = loader_torch.StreamingDataset(output, **OPTIONS, **options)
    return stateful.StatefulDataLoader(dataset, batch_size=None, **workers)


KINDS = {"plain": plain, "dataloader": counting, "StatefulDataLoader": of_torchdata}


def take(loader: Any, count: int) -> list[int]:
    """The steps of the first `count` batches of a loop, which then breaks."""
    steps: list[int] = []
    if count:
        for batch in loader:
            steps.append(batch["step"])
            if len(steps) == count:
                break
    return steps


def assert_refused(loader: Any, expected: str = "datapipe.loader.torch.dataloader") -> None:
    """A loop is refused, with `expected` in the message."""
    try:
        take(loader, 1)
        message = ""
    except UserError as error:
        message = str(error)
        clear_frames(error.__traceback__)  # torch's refer to themselves: its workers take 5 s to stop when the collector comes
    assert expected in message


GOES_ON = {("plain", "none"), ("StatefulDataLoader", "none")} | {("dataloader", workers) for workers in WORKERS}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_second_loop_goes_on_or_is_refused(output: Path, kind: str, workers: str) -> None:
    loader = KINDS[kind](output, WORKERS[workers])
    steps = take(loader, 4)
    if (kind, workers) in GOES_ON:
        steps += take(loader, 1) + take(loader, 5) + take(loader, 99)
        assert steps == list(range(NUM_STEPS))
    else:
        assert_refused(loader)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_loop_after_the_end_of_a_run_is_empty_or_refused(output: Path, kind: str, workers: str) -> None:
    loader = KINDS[kind](output, WORKERS[workers])
    assert take(loader, 99) == list(range(NUM_STEPS))
    for _ in range(2):
        if (kind, workers) in GOES_ON:
            assert take(loader, 99) == []
        else:
            assert_refused(loader)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_loop_after_a_state_was_loaded_goes_on_there(output: Path, kind: str, workers: str) -> None:
    loader = KINDS[kind](output, WORKERS[workers])
    take(loader, 6)
    count = {} if hasattr(loader, "state_dict") else {"steps_done": 6}
    state = (loader if hasattr(loader, "state_dict") else loader.dataset).state_dict(**count)
    other = KINDS[kind](output, WORKERS[workers])
    (other if hasattr(other, "state_dict") else other.dataset).load_state_dict(json.loads(json.dumps(state)))
    assert take(other, 99) == list(range(6, NUM_STEPS))


@pytest.mark.parametrize("workers", WORKERS)
def test_loaded_state_of_the_end_hands_out_nothing(output: Path, workers: str) -> None:
    loader = counting(output, WORKERS[workers])
    take(loader, 99)
    other = counting(output, WORKERS[workers])
    other.load_state_dict(loader.state_dict())
    assert take(other, 99) == []
    assert other.step == NUM_STEPS


@pytest.mark.parametrize("workers", WORKERS)
def test_states_count_the_batches_handed_out_and_fit_loader_dataset_and_any_workers(output: Path, workers: str) -> None:
    loader, reference = counting(output, WORKERS[workers]), Loader(output, **OPTIONS)
    assert loader.state_dict() == reference.state_dict()
    for batch, expected in zip(loader, reference):
        np.testing.assert_array_equal(batch["input_ids"].numpy(), expected["input_ids"])
        assert loader.state_dict() == reference.state_dict()
        if batch["step"] == 6:
            break
    state = json.loads(json.dumps(loader.state_dict()))
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    resumed = [Loader(output, **OPTIONS), dataset, *(counting(output, other) for other in WORKERS.values())]
    for each in resumed:
        each.load_state_dict(state)
        assert take(each, 99) == list(range(7, NUM_STEPS))


@pytest.mark.parametrize("workers", WORKERS)
def test_state_may_be_loaded_in_the_middle_of_a_run_forwards_and_back(output: Path, workers: str) -> None:
    loader = counting(output, WORKERS[workers])
    start = loader.state_dict()
    assert take(loader, 5) == [0, 1, 2, 3, 4]
    later = loader.state_dict()
    loader.load_state_dict(start)
    assert take(loader, 2) == [0, 1]
    loader.load_state_dict(later)
    assert take(loader, 99) == list(range(5, NUM_STEPS))


@pytest.mark.parametrize("workers", WORKERS)
def test_loaded_history_reaches_workers_that_are_kept(output: Path, workers: str) -> None:
    """A state of another batch size changes which rows a step has, which workers must not learn too late."""
    saved = Loader(output, global_batch_size=2, fields=OPTIONS["fields"])
    take(saved, 3)
    loader, reference = counting(output, WORKERS[workers]), Loader(output, **OPTIONS)
    take(loader, 4)
    loader.load_state_dict(saved.state_dict())
    reference.load_state_dict(saved.state_dict())
    for batch, expected in zip(loader, reference, strict=True):
        np.testing.assert_array_equal(batch["input_ids"].numpy(), expected["input_ids"])


@pytest.mark.parametrize("workers", WORKERS)
def test_several_iterators_share_the_position(output: Path, workers: str) -> None:
    loader = counting(output, WORKERS[workers])
    first, second = iter(loader), iter(loader)
    steps = [next(stream)["step"] for stream in (first, first, second, first, second)]
    first.close()
    steps += [batch["step"] for batch in second]
    assert steps == list(range(NUM_STEPS))


@pytest.mark.parametrize("workers", WORKERS)
def test_validation_passes_start_over_after_a_break_and_after_the_end(output: Path, workers: str) -> None:
    for make in (plain, counting):
        loader = make(output, WORKERS[workers], split="validation")
        assert [take(loader, count) for count in (2, 99, 99, 1, 2)] == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3], [0], [0, 1]]


@pytest.mark.parametrize("workers", WORKERS)
def test_validation_pass_goes_on_once_after_its_state_was_loaded(output: Path, workers: str) -> None:
    loader = counting(output, WORKERS[workers], split="validation")
    take(loader, 3)
    loader.load_state_dict(loader.state_dict())
    assert [take(loader, 99), take(loader, 99)] == [[3], [0, 1, 2, 3]]


def test_length_is_that_of_the_whole_run(output: Path) -> None:
    loader = counting(output, {}, skip=[(3, 5), (14, 30)])
    assert len(loader) == len(loader.dataset) == 12
    assert take(loader, 99) == [0, 1, 2, *range(5, 14)]
    assert len(loader) == 12


def test_model_is_built_from_the_snapshot_of_a_loader(output: Path) -> None:
    snapshot = counting(output, {}).snapshot
    assert (snapshot.sequence_length, snapshot.tokenizer.vocab_size) == (S, 1 << 20)
    assert snapshot == Loader(output, **OPTIONS).snapshot


def test_a_dataset_in_place_of_its_output_is_told(output: Path) -> None:
    with pytest.raises(UserError, match=r"found StreamingDataset.*StreamingDataLoader\(dataset"):
        loader_torch.dataloader(loader_torch.StreamingDataset(output, batch_size=4))


def test_run_without_end_has_no_length(tmp_path: Path) -> None:
    loader = counting(make_snapshot(tmp_path, {"web": 20}), {})
    with pytest.raises(TypeError, match="no end"):
        len(loader)
    assert loader.dataset  # is no question for its length
    assert take(loader, 9) == list(range(9))


@pytest.mark.parametrize("workers", WORKERS)
def test_loop_after_an_error_asks_for_the_same_batch(tmp_path: Path, workers: str) -> None:
    output = make_snapshot(tmp_path, {"web": 280}, total_tokens=S * 60)
    reference = Loader(output, **OPTIONS)
    shards = [set((batch["input_ids"][:, 0] - 1) // S // 7) for batch in reference]  # of each step
    step, new = next((at, shards[at].difference(*shards[:at])) for at in range(3, 15) if shards[at].difference(*shards[:at]))
    damaged = output / reference.snapshot.shards[new.pop()].path
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:2000] + bytes(64) + whole[2064:])
    loader = counting(output, WORKERS[workers])
    batches = iter(loader)
    with pytest.raises(CorruptionError):
        deque(batches, maxlen=0)
    assert loader.step == step
    with pytest.raises(CorruptionError):
        next(iter(loader))
    damaged.write_bytes(whole)
    other = counting(output, WORKERS[workers])
    other.load_state_dict(loader.state_dict())
    assert take(other, 99) == list(range(step, NUM_STEPS))


@pytest.mark.parametrize("workers", ["none", "two"])
def test_dataset_of_a_loader_is_iterated_by_no_other(output: Path, workers: str) -> None:
    loader = counting(output, WORKERS[workers])
    take(loader, 2)
    for other in (torch_data.DataLoader(loader.dataset, batch_size=None, **WORKERS[workers]), loader.dataset):
        assert_refused(other, "belongs to a StreamingDataLoader")
    assert take(loader, 99) == list(range(2, NUM_STEPS))


def test_dataset_that_was_read_here_and_by_workers_does_not_go_on_here(output: Path) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    assert take(dataset, 3) == [0, 1, 2]
    assert take(torch_data.DataLoader(dataset, batch_size=None, num_workers=2), 4) == [3, 4, 5, 6]
    assert_refused(dataset, "where another pass would go on")
    with pytest.raises(UserError, match="steps_done"):
        dataset.state_dict()
    dataset.load_state_dict(dataset.state_dict(7))
    assert take(dataset, 99) == list(range(7, NUM_STEPS))


def test_state_of_one_worker_or_of_torchdata_is_refused(output: Path) -> None:
    loader = counting(output, {})
    with pytest.raises(SnapshotError, match="worker 1 alone"):
        loader.load_state_dict({**loader.state_dict(), "worker": {"id": 1, "num_workers": 2}})
    with pytest.raises(SnapshotError, match="not a loader state: a dict of"):
        loader.load_state_dict(of_torchdata(output, {}).state_dict())
    assert take(loader, 1) == [0]


@pytest.mark.parametrize("workers", WORKERS)
def test_copies_go_on_by_themselves(output: Path, workers: str) -> None:
    loader = counting(output, WORKERS[workers])
    take(loader, 3)
    for other in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert take(other, 2) == [3, 4]
    assert take(loader, 99) == list(range(3, NUM_STEPS))


@pytest.mark.slow
def test_workers_that_are_spawned_go_on(output: Path) -> None:
    loader = counting(output, {"num_workers": 2, "multiprocessing_context": "spawn"})
    assert take(loader, 4) + take(loader, 99) == list(range(NUM_STEPS))
    other = plain(output, {"num_workers": 2, "multiprocessing_context": "spawn"})
    take(other, 2)
    assert_refused(other)


@pytest.mark.parametrize(
    ("error", "is_raised"), [("DataLoader worker (pid 7) is killed by signal: Aborted. ", False), ("other", True)]
)
def test_a_worker_that_aborts_as_it_exits_fails_nothing(output: Path, error: str, is_raised: bool) -> None:
    class Ending:
        def _shutdown_workers(self) -> None:
            raise RuntimeError(error)

    loader: Any = counting(output, {})
    loader._pass = Ending()
    with pytest.raises(RuntimeError, match="other") if is_raised else nullcontext():
        loader._end_pass(keep_workers=False)
    assert take(loader, 99) == list(range(NUM_STEPS))


def test_random_numbers_of_the_model_do_not_depend_on_loops(output: Path) -> None:
    loader = counting(output, {"num_workers": 1})
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    take(loader, 2)
    take(loader, 2)
    assert torch.equal(torch.rand(3), expected)


def test_batches_on_the_device_count_for_the_loader(output: Path) -> None:
    loader = counting(output, WORKERS["two"])
    with device.prefetch_to_device(loader, "cpu", depth=3) as batches:
        assert take(batches, 5) == [0, 1, 2, 3, 4]
        assert batches.state_dict()["step"] == 5
    assert take(loader, 99) == list(range(5, NUM_STEPS))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("workers", WORKERS)
def test_distributed_checkpoint_restores_the_position(output: Path, tmp_path: Path, workers: str) -> None:
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    loader = counting(output, WORKERS[workers])
    take(loader, 6)
    checkpoint.save({"loader": loader}, checkpoint_id=tmp_path / "state")
    other = counting(output, WORKERS["none"])
    checkpoint.load({"loader": other}, checkpoint_id=tmp_path / "state")
    assert take(other, 99) == list(range(6, NUM_STEPS))


@pytest.mark.parametrize("workers", WORKERS)
def test_state_of_a_run_whose_last_steps_are_skipped_is_at_its_end(output: Path, workers: str) -> None:
    loader = counting(output, WORKERS[workers], skip=[(12, 30)])
    assert take(loader, 99) == list(range(12))
    other = counting(output, WORKERS[workers], skip=[(12, 30)])
    other.load_state_dict(loader.state_dict())
    assert take(other, 99) == []


@pytest.mark.parametrize("workers", WORKERS)
def test_rows_that_make_no_whole_batch_are_told_once_in_this_process(tmp_path: Path, workers: str) -> None:
    loader = counting(make_snapshot(tmp_path, {"web": 83}, total_tokens=S * 63), WORKERS[workers])
    with pytest.warns(DroppedRowsWarning, match="3 rows"):
        assert take(loader, 99) == list(range(NUM_STEPS))
    assert take(loader, 99) == []


@pytest.mark.parametrize("workers", WORKERS)
def test_rows_that_are_left_out_are_told_with_the_last_batch_and_cost_no_batch(tmp_path: Path, workers: str) -> None:
    """A trainer that counts batches does not ask for another; and one for which warnings are errors asks for the same again."""
    output = make_snapshot(tmp_path, {"web": 83}, total_tokens=S * 63)
    loader = counting(output, WORKERS[workers])
    batches = iter(loader)
    assert [next(batches)["step"] for _ in range(NUM_STEPS - 1)] == list(range(NUM_STEPS - 1))
    with pytest.warns(DroppedRowsWarning, match="3 rows"):
        assert next(batches)["step"] == NUM_STEPS - 1
    batches.close()
    loader = counting(output, WORKERS[workers])
    assert take(loader, NUM_STEPS - 1) == list(range(NUM_STEPS - 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DroppedRowsWarning)
        with pytest.raises(DroppedRowsWarning):
            take(loader, 1)
    assert take(loader, 99) == [NUM_STEPS - 1]


@pytest.mark.parametrize("workers", WORKERS)
def test_stats_are_of_the_batches_that_the_trainer_took(output: Path, workers: str) -> None:
    loader = counting(output, WORKERS[workers])
    assert loader.stats().diagnosis == "unknown"
    take(loader, 6)
    take(loader, 99)
    stats = loader.stats()
    assert (stats.steps, stats.num_waits, stats.rank, stats.split) == (NUM_STEPS, NUM_STEPS - 2, 0, "train")
    assert (stats.tokens, stats.bytes) == (NUM_STEPS * 4 * S, NUM_STEPS * 4 * S * 8)
    assert stats.first_wait_s > 0
    assert 0 <= stats.longest_wait_s <= stats.wait_s
    assert stats.diagnosis != "unknown"
    assert stats.num_workers == WORKERS[workers]["num_workers"]
    assert (stats.built == 0) == (stats.num_workers > 0)
    assert str(stats)


def test_stats_of_a_collate_function_of_the_user_count_batches(output: Path) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    loader = loader_torch.StreamingDataLoader(dataset, num_workers=1, collate_fn=_first_rows)
    assert len(list(loader)) == NUM_STEPS
    assert (loader.stats().steps, loader.stats().tokens, loader.stats().bytes) == (NUM_STEPS, 0, 0)


def _first_rows(batch: Any) -> Any:
    return batch["input_ids"][0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("before", WORKERS)
def test_every_step_resumes_with_every_number_of_workers(output: Path, before: str) -> None:
    """At the last steps, some workers have ended and others not."""
    loader = counting(output, WORKERS[before])
    states = [loader.state_dict(), *(loader.state_dict() for _ in loader)]
    assert [state["step"] for state in states] == list(range(NUM_STEPS + 1))
    for num_workers in (0, 1, 3):
        other = counting(output, {"num_workers": num_workers})
        for step, state in enumerate(states):
            other.load_state_dict(state)
            assert other.state_dict() == state
            assert take(other, 99) == list(range(step, NUM_STEPS))


def test_loaders_at_the_same_time_count_for_themselves(output: Path) -> None:
    loaders = [counting(output, WORKERS["two"], seed=seed) for seed in (3, 4)]
    streams = [iter(loader) for loader in loaders]
    found: list[list[int]] = [[], []]
    for number in (0, 1, 1, 0, 1, 0, 0, 0, 1):
        found[number].append(next(streams[number])["step"])
    assert found == [[0, 1, 2, 3, 4], [0, 1, 2, 3]]
    assert [loader.state_dict()["step"] for loader in loaders] == [5, 4]
    assert [take(loader, 99) for loader in loaders] == [list(range(5, NUM_STEPS)), list(range(4, NUM_STEPS))]


@pytest.mark.parametrize("workers", WORKERS)
def test_iterator_from_which_nothing_was_taken_leaves_the_position(output: Path, workers: str) -> None:
    loader = counting(output, WORKERS[workers])
    iter(loader)
    state = loader.state_dict()
    loader.load_state_dict(state)
    iter(loader)
    assert loader.state_dict() == state
    assert take(loader, 99) == list(range(NUM_STEPS))


@pytest.mark.parametrize("workers", WORKERS)
def test_collate_function_is_applied_to_whole_batches_and_states_count(output: Path, workers: str) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    loader = loader_torch.StreamingDataLoader(dataset, collate_fn=_first_tokens, **WORKERS[workers])
    found = [batch for _, batch in zip(range(6), loader)]
    expected = [batch["input_ids"][:, 0].tolist() for _, batch in zip(range(6), Loader(output, **OPTIONS))]
    assert found == expected
    assert loader.state_dict()["step"] == 6


def _first_tokens(batch: Any) -> list[int]:
    return batch["input_ids"][:, 0].tolist()


def test_collate_function_is_an_argument_of_dataloader(output: Path) -> None:
    loader = loader_torch.dataloader(output, **OPTIONS, collate_fn=_first_rows, num_workers=1)
    assert list(loader) == [batch["input_ids"][0].tolist() for batch in Loader(output, **OPTIONS)]


@pytest.mark.parametrize(
    ("given", "told"),
    [(None, "NoneType"), ("state.json", "str"), ({"loader": {}, "model": 1}, "a dict of loader, model"), ({}, "of nothing")],
)
def test_what_is_no_state_is_told_as_what_it_is(output: Path, given: Any, told: str) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    for loader in (counting(output, {}), dataset, Loader(output, **OPTIONS)):
        with pytest.raises(SnapshotError, match=rf"not a loader state: .*{told}. Give what `state_dict\(\)` returned"):
            loader.load_state_dict(given)
        assert take(loader, 1) == [0]


def test_worker_that_cannot_start_leaves_the_position(output: Path) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    loader = loader_torch.StreamingDataLoader(dataset, num_workers=2, worker_init_fn=_fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            next(iter(loader))
    assert loader.step == 0


def _fail(worker: int) -> None:
    raise ZeroDivisionError(worker)


@pytest.mark.parametrize("workers", WORKERS)
def test_collate_function_that_fails_leaves_the_position(output: Path, workers: str) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    loader = loader_torch.StreamingDataLoader(dataset, collate_fn=_fail_at_step_3, **WORKERS[workers])
    for expected in ([0, 1, 2], []):
        batches = iter(loader)
        assert [next(batches)["step"] for _ in expected] == expected
        with pytest.raises(ZeroDivisionError):
            next(batches)
        assert loader.state_dict()["step"] == 3


def _fail_at_step_3(batch: Any) -> Any:
    return batch if batch["step"] != 3 else _fail(0)


PLAIN_PASS = """
import sys
from torch.utils.data import DataLoader
from datapipe.loader.torch import StreamingDataset
dataset = StreamingDataset(sys.argv[1], global_batch_size=4)
print(sum(1 for _ in DataLoader(dataset, batch_size=None, num_workers=2)))
"""


@pytest.mark.slow
def test_rows_that_are_left_out_by_workers_are_told_once_on_the_terminal(tmp_path: Path) -> None:
    """Only a worker knows that a DataLoader of the user's own comes to the end."""
    output = make_snapshot(tmp_path, {"web": 83}, total_tokens=S * 63)
    ended = subprocess.run([sys.executable, "-c", PLAIN_PASS, str(output)], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(NUM_STEPS)]
    assert ended.stderr.count("DroppedRowsWarning:") == 1
