"""Under a DataLoader with any number of workers: the batches of one process, each once, in order, and valid checkpoints."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import DroppedRowsWarning, SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.field_table import FIELDS
from datapipe.loader.share import Mesh
from tests.support.late_import import late_import
from tests.support.snapshots import make_snapshot

torch = late_import("torch")
device_mesh = late_import("torch.distributed.device_mesh")
torch_data = late_import("torch.utils.data")
loader_torch = late_import("datapipe.loader.torch")

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than this machine has cores
]

S = 16
OPTIONS: dict[str, Any] = {"global_batch_size": 4, "fields": ("input_ids", "labels", "step")}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    validation = {"code": 4, "web": 9}
    return make_snapshot(
        tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83}, total_tokens=S * 63, validation=validation
    )


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this process look like a DataLoader worker, as torch itself does."""

    from torch.utils.data._utils import worker as torch_worker

    def enter(worker: int, num_workers: int) -> None:
        info = torch_worker.WorkerInfo(id=worker, num_workers=num_workers, seed=0, dataset=None)
        monkeypatch.setattr(torch_worker, "_worker_info", info)

    return enter


def expected_batches(output: Path, **options: Any) -> list[np.ndarray]:
    """Of rank 0 of 1 unless the options say otherwise, whatever the environment says."""
    return [batch["input_ids"] for batch in Loader(output, **{**OPTIONS, "rank": 0, "world_size": 1, **options})]


def ids(batches: Any) -> list[np.ndarray]:
    return [batch["input_ids"].numpy() for batch in batches]


def first_of(loader: Any) -> Any:
    """The first batch. Ends the workers at once: torch waits 5 s for each where an error keeps its iterator in a cycle."""
    iterator = iter(loader)
    try:
        return next(iterator)
    finally:
        if loader.num_workers:
            iterator._shutdown_workers()


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_dataset_under_any_workers_gives_what_one_process_gives(output: Path, num_workers: int) -> None:
    batches = list(
        torch_data.DataLoader(loader_torch.StreamingDataset(output, **OPTIONS), batch_size=None, num_workers=num_workers)
    )
    assert [batch["step"] for batch in batches] == list(range(15))
    assert all(batch[field].dtype == torch.int64 for batch in batches for field in ("input_ids", "labels"))
    np.testing.assert_array_equal(np.stack(ids(batches)), np.stack(expected_batches(output)))


@pytest.mark.slow
def test_dataset_under_spawned_workers_gives_what_one_process_gives(output: Path) -> None:
    loader = torch_data.DataLoader(
        loader_torch.StreamingDataset(output, **OPTIONS), batch_size=None, num_workers=2, multiprocessing_context="spawn"
    )
    np.testing.assert_array_equal(np.stack(ids(loader)), np.stack(expected_batches(output)))


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_dataset_under_a_dataloader_that_makes_batches_of_batches_is_refused(
    output: Path, num_workers: int, options: dict[str, Any]
) -> None:
    loader = torch_data.DataLoader(loader_torch.StreamingDataset(output, **OPTIONS), num_workers=num_workers, **options)
    with pytest.raises(UserError, match=r"Write DataLoader\(dataset, batch_size=None"):
        first_of(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_dataset_under_a_dataloader_that_makes_batches_by_a_function_of_the_user_is_refused(
    output: Path, num_workers: int
) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    loader = torch_data.DataLoader(dataset, batch_size=4, collate_fn=_stacked, num_workers=num_workers)
    with pytest.raises(UserError, match="whole batches already"):
        first_of(loader)


def _stacked(batches: list[Any]) -> Any:
    return {"input_ids": torch.stack([batch["input_ids"] for batch in batches])}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_collate_function_is_given_each_whole_batch(output: Path, num_workers: int) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    loader = torch_data.DataLoader(dataset, batch_size=None, collate_fn=_input_ids, num_workers=num_workers)
    np.testing.assert_array_equal(np.stack(list(loader)), np.stack(expected_batches(output)))


def _input_ids(batch: Any) -> Any:
    return batch["input_ids"].numpy()


def test_batches_are_dicts_that_tree_map_and_pickle_take(output: Path) -> None:
    from torch.utils._pytree import tree_map

    batch = next(iter(loader_torch.StreamingDataset(output, **OPTIONS)))
    doubled = tree_map(lambda leaf: leaf * 2, batch)
    assert list(doubled) == list(batch)
    assert torch.equal(doubled["input_ids"], batch["input_ids"] * 2)
    assert isinstance(pickle.loads(pickle.dumps(batch)), dict)
    assert {**batch}.keys() == batch.keys()


def test_dataset_rank_takes_its_slice(output: Path) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS, rank=1, world_size=3)
    np.testing.assert_array_equal(next(iter(dataset))["input_ids"], expected_batches(output, rank=1, world_size=3)[0])


def test_dataset_rank_comes_from_the_environment(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "RANK", "2")
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "4")
    found = next(iter(loader_torch.StreamingDataset(output, **OPTIONS)))["input_ids"]
    np.testing.assert_array_equal(found, expected_batches(output)[0][2:3])


def test_state_without_workers_counts_what_was_handed_out(output: Path) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    for _ in islice(torch_data.DataLoader(dataset, batch_size=None), 6):
        pass
    state = dataset.state_dict()
    assert state["step"] == 6
    restored = loader_torch.StreamingDataset(output, **OPTIONS)
    restored.load_state_dict(state)
    found = ids(torch_data.DataLoader(restored, batch_size=None, num_workers=2))
    np.testing.assert_array_equal(np.stack(found), np.stack(expected_batches(output)[6:]))


def test_state_with_workers_needs_the_trainers_count(output: Path) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    steps = [batch["step"] for batch in islice(torch_data.DataLoader(dataset, batch_size=None, num_workers=2), 5)]
    with pytest.raises(UserError, match="steps_done"):
        dataset.state_dict()
    state = dataset.state_dict(steps[-1] + 1)
    dataset.load_state_dict(state)
    found = ids(torch_data.DataLoader(dataset, batch_size=None, num_workers=3))
    np.testing.assert_array_equal(np.stack(found), np.stack(expected_batches(output)[5:]))
    loader = Loader(output, **OPTIONS)
    loader.load_state_dict(state)
    assert loader.step == 5


def test_dataset_read_in_this_process_and_then_by_workers_continues(output: Path) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    first = [ids([batch])[0] for batch in islice(dataset, 3)]
    rest = ids(torch_data.DataLoader(dataset, batch_size=None, num_workers=2))
    np.testing.assert_array_equal(np.stack(first + rest), np.stack(expected_batches(output)))


def test_state_of_each_worker_restores_that_worker(output: Path, in_worker: Any) -> None:
    def next_ids(stream: Any) -> np.ndarray | None:
        batch = next(stream, None)
        return None if batch is None else batch["input_ids"].numpy()

    states = []
    for worker in range(2):
        in_worker(worker, 2)
        dataset = loader_torch.StreamingDataset(output, **OPTIONS)
        stream = iter(dataset)
        for _ in range(3 - worker):  # worker 0 gave steps 0, 2, 4; worker 1 gave 1, 3
            next(stream)
        states.append(dataset.state_dict())
        stream.close()
    found = {}
    for worker in range(2):
        in_worker(worker, 2)
        dataset = loader_torch.StreamingDataset(output, **OPTIONS)
        dataset.load_state_dict(pickle.loads(pickle.dumps(states[worker])))
        assert dataset.state_dict() == states[worker]
        stream = iter(dataset)
        found[6 - worker] = next_ids(stream)
        stream.close()
    np.testing.assert_array_equal(found[6], expected_batches(output)[6])
    np.testing.assert_array_equal(found[5], expected_batches(output)[5])
    in_worker(0, 3)
    dataset.load_state_dict(states[1])
    with pytest.raises(SnapshotError, match="worker 1 of 2"):
        next(iter(dataset))


def test_state_of_a_worker_before_its_first_batch_is_its_own_first_step(output: Path, in_worker: Any) -> None:
    in_worker(2, 4)
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    state = dataset.state_dict()
    assert state["step"] == 2
    dataset.load_state_dict(state)
    assert next(iter(dataset))["step"] == 2


def test_dataset_pickled_keeps_its_position(output: Path) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    for _ in islice(dataset, 2):
        pass
    assert [batch["step"] for batch in islice(pickle.loads(pickle.dumps(dataset)), 1)] == [2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_validation_passes_are_all_the_same(output: Path, num_workers: int) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS, split="validation")
    loader = torch_data.DataLoader(dataset, batch_size=None, num_workers=num_workers, persistent_workers=num_workers > 0)
    for _ in range(2):
        assert [len(batch) for batch in ids(loader)] == [4, 4, 4, 1]


@pytest.mark.parametrize("kind", ["torch", "name", "numpy"])
def test_dataset_gives_int32_where_asked(output: Path, kind: str) -> None:
    dtype = {"torch": torch.int32, "name": "int32", "numpy": np.int32}[kind]
    dataset = loader_torch.StreamingDataset(
        output, global_batch_size=4, fields=("input_ids", "labels", "position_ids"), dtype=dtype
    )
    assert {value.dtype for value in next(iter(dataset)).values()} == {torch.int32}
    with pytest.raises(UserError, match="int64 or int32"):
        loader_torch.StreamingDataset(output, global_batch_size=4, dtype=torch.float32)


def test_dataset_gives_every_field_as_the_loader_does(output: Path) -> None:
    expected = next(iter(Loader(output, global_batch_size=4, fields=tuple(FIELDS))))
    found = next(iter(loader_torch.StreamingDataset(output, global_batch_size=4, fields=tuple(FIELDS), pin_memory=True)))
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, int):
            assert found[name] == value
        else:
            assert found[name].numpy().dtype == value.dtype
            np.testing.assert_array_equal(found[name].numpy(), value)


def test_dataset_stats_count_batches_of_this_process(output: Path) -> None:
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    for _ in islice(dataset, 5):
        pass
    assert (dataset.stats().steps, dataset.stats().tokens) == (5, 5 * 4 * S)


@pytest.fixture
def fake_world() -> Iterator[Any]:
    """Makes this process a rank of a world without its other ranks."""
    store = pytest.importorskip("torch.testing._internal.distributed.fake_pg").FakeStore

    def enter(rank: int, world_size: int) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        torch.distributed.init_process_group("fake", rank=rank, world_size=world_size, store=store())

    yield enter
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_mesh_tells_data_and_context_ranks_and_nothing_else(fake_world: Any) -> None:
    shape, names = (2, 3, 2, 2), ("dp_replicate", "dp_shard", "cp", "tp")
    found = []
    for rank in range(24):
        fake_world(rank, 24)
        mesh = loader_torch.mesh_of(device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names), "zigzag")
        found.append((mesh.data_rank, mesh.data_size, mesh.context_rank, mesh.context_size, mesh.layout))
    assert found == [(data, 6, context, 2, "zigzag") for data in range(6) for context in range(2) for _ in range(2)]
    fake_world(3, 8)
    assert loader_torch.mesh_of(device_mesh.init_device_mesh("cpu", (8,), mesh_dim_names=("tp",))) == Mesh(
        data_rank=0, data_size=1
    )
    with pytest.raises(UserError, match=r"'dp_shard_cp'.*Expected cp, ddp"):
        loader_torch.mesh_of(device_mesh.init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp_shard_cp", "tp")))
    with pytest.raises(UserError, match="mesh_dim_names"):
        loader_torch.mesh_of(device_mesh.init_device_mesh("cpu", (8,)))


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_dataset_leaves_out_skipped_steps_and_keeps_the_lineage_of_a_state(output: Path, num_workers: int) -> None:
    first = Loader(output, **OPTIONS, skip=[(2, 5)])
    state = [first.state_dict() for _ in islice(first, 3)][-1]
    dataset = loader_torch.StreamingDataset(output, **{**OPTIONS, "global_batch_size": 2}, skip=[(12, 15)])
    dataset.load_state_dict(state)  # in which the batches before had twice as many rows
    expected = Loader(output, **{**OPTIONS, "global_batch_size": 2}, skip=[(12, 15)])
    expected.load_state_dict(state)
    batches = [batch["input_ids"] for batch in expected]
    found = ids(torch_data.DataLoader(dataset, batch_size=None, num_workers=num_workers))
    np.testing.assert_array_equal(np.stack(found), np.stack(batches))
    fresh = loader_torch.StreamingDataset(output, **OPTIONS, skip=[(0, 3)])
    steps = [batch["step"] for batch in torch_data.DataLoader(fresh, batch_size=None, num_workers=num_workers)]
    assert steps == list(range(3, 15))


def test_dataset_on_a_mesh_takes_what_the_loader_takes(output: Path) -> None:
    mesh = Mesh(data_rank=1, data_size=2, context_rank=1, context_size=2, layout="zigzag")
    found = next(iter(loader_torch.StreamingDataset(output, **OPTIONS, mesh=mesh)))["input_ids"]
    np.testing.assert_array_equal(found, next(iter(Loader(output, **OPTIONS, mesh=mesh)))["input_ids"])


def test_dataset_says_that_rows_at_the_end_are_left_out(tmp_path: Path) -> None:
    dataset = loader_torch.StreamingDataset(make_snapshot(tmp_path, {"web": 20}, total_tokens=16 * 10), batch_size=4)
    with pytest.warns(DroppedRowsWarning, match="the run ends with 2 rows that make no whole batch of 4"):
        assert len(list(torch_data.DataLoader(dataset, batch_size=None))) == 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_dataset_hands_out_a_smaller_last_batch(tmp_path: Path, num_workers: int) -> None:
    output = make_snapshot(tmp_path, {"web": 20}, total_tokens=16 * 10)
    dataset = loader_torch.StreamingDataset(output, batch_size=4, drop_last=False)
    batches = list(torch_data.DataLoader(dataset, batch_size=None, num_workers=num_workers))
    assert [len(batch["input_ids"]) for batch in batches] == [4, 4, 2]


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.medium)])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_default_device_of_the_program_does_not_become_that_of_batches(output: Path, num_workers: int, dtype: str) -> None:
    """The device "meta" stands for any: a tensor that is made there has no numbers."""
    options = {**OPTIONS, "dtype": getattr(torch, dtype)}
    torch.set_default_device("meta")
    try:
        loader = loader_torch.dataloader(output, num_workers=num_workers, **options)
        batch = next(iter(loader))
        row = next(iter(loader_torch.StreamingDataset(output, samples=True, **options)))
        assert (batch["input_ids"].device.type, row["input_ids"].device.type) == ("cpu", "cpu")
        ahead = late_import("datapipe.loader.device").prefetch_to_device(Loader(output, **OPTIONS), "cpu")
        assert next(ahead)["input_ids"].device.type == "cpu"
    finally:
        torch.set_default_device(None)
    np.testing.assert_array_equal(batch["input_ids"].numpy(), expected_batches(output)[0])
