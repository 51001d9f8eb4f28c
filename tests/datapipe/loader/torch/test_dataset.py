"""A dataset under a DataLoader of the user's own: the batches of one process with any number of workers, or their rows.

The DataLoader collates rows, and states may be inside a batch.
"""

import json
import math
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import DroppedRowsWarning, SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.field_table import FIELDS
from datapipe.loader.order.state import sealed
from datapipe.loader.share import Mesh
from tests.support.late_import import late_import
from tests.support.loader_rows import first_tokens, steps_of
from tests.support.snapshots import make_snapshot

torch = late_import("torch")
device_mesh = late_import("torch.distributed.device_mesh")
torch_data = late_import("torch.utils.data")
loader_torch = late_import("datapipe.loader.torch")
stateful = late_import("torchdata.stateful_dataloader")

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than this machine has cores
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated"),  # torchdata calls it
]

S = 16
OPTIONS: dict[str, Any] = {"global_batch_size": 4, "fields": ("input_ids", "labels", "step")}


def dataset_of(output: Path, **options: Any) -> Any:
    return loader_torch.StreamingDataset(output, **{**OPTIONS, **options})


def first_of(loader: Any) -> Any:
    """The first batch. Ends the workers at once: torch waits 5 s for each where an error keeps its iterator in a cycle."""
    iterator = iter(loader)
    try:
        return next(iterator)
    finally:
        if loader.num_workers:
            iterator._shutdown_workers()


@pytest.mark.parametrize("num_workers", [0, pytest.param(3, marks=pytest.mark.medium)])
def test_dataset_under_any_workers_gives_what_one_process_gives(output: Path, num_workers: int) -> None:
    loader = torch_data.DataLoader(dataset_of(output), batch_size=None, num_workers=num_workers)
    batches = list(loader)
    assert [batch["step"] for batch in batches] == list(range(15))
    assert all(batch[field].dtype == torch.int64 for batch in batches for field in ("input_ids", "labels"))
    for field in ("input_ids", "labels"):
        for batch, expected in zip(batches, Loader(output, **OPTIONS), strict=True):
            np.testing.assert_array_equal(batch[field].numpy(), expected[field])


@pytest.mark.medium
@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"collate_fn": 0}])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_dataset_under_a_dataloader_that_makes_batches_of_batches_is_refused(
    output: Path, num_workers: int, options: dict[str, Any]
) -> None:
    if "collate_fn" in options:
        options = {"batch_size": 4, "collate_fn": _stacked}
    with pytest.raises(UserError, match="batch_size=None"):
        first_of(torch_data.DataLoader(dataset_of(output), num_workers=num_workers, **options))


def _stacked(batches: list[Any]) -> Any:
    return {"input_ids": torch.stack([batch["input_ids"] for batch in batches])}


@pytest.mark.parametrize("kind", ["torch", "name", "numpy"])
def test_dataset_gives_int32_where_asked(output: Path, kind: str) -> None:
    dtype = {"torch": torch.int32, "name": "int32", "numpy": np.int32}[kind]
    batch = next(iter(dataset_of(output, fields=("input_ids", "labels", "position_ids"), dtype=dtype)))
    assert {value.dtype for value in batch.values()} == {torch.int32}
    with pytest.raises(UserError, match="int64 or int32"):
        dataset_of(output, dtype=torch.float32)


CONTEXT = Mesh(data_rank=1, data_size=2, context_rank=1, context_size=2, layout="zigzag")


@pytest.mark.parametrize(
    "options", [{"fields": tuple(FIELDS)}, {"rank": 1, "world_size": 2}, {"mesh": CONTEXT}, {"fields": ("step", "sources")}]
)
def test_dataset_gives_every_field_as_the_loader_does(output: Path, options: dict[str, Any]) -> None:
    dataset = dataset_of(output, pin_memory=True, **options)
    expected, found = next(Loader(output, **{**OPTIONS, **options})), next(iter(dataset))
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, int):
            assert found[name] == value
        else:
            assert found[name].numpy().dtype == value.dtype
            np.testing.assert_array_equal(found[name].numpy(), value)
    assert dataset.stats().steps == 1


def test_mesh_reports_data_and_context_ranks_and_nothing_else(begin_world: Any) -> None:
    def mesh_of(rank: int, shape: tuple[int, ...], names: tuple[str, ...] | None, *layout: Any) -> Any:
        begin_world(rank, math.prod(shape))
        return loader_torch.mesh_of(device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names), *layout)

    meshes = [mesh_of(rank, (2, 3, 2, 2), ("dp_replicate", "dp_shard", "cp", "tp"), "zigzag") for rank in range(24)]
    found = [(mesh.data_rank, mesh.data_size, mesh.context_rank, mesh.context_size, mesh.layout) for mesh in meshes]
    assert found == [(data, 6, context, 2, "zigzag") for data in range(6) for context in range(2) for _ in range(2)]
    assert mesh_of(3, (8,), ("tp",)) == Mesh(data_rank=0, data_size=1)
    with pytest.raises(UserError, match="'dp_shard_cp'"):
        mesh_of(3, (4, 2), ("dp_shard_cp", "tp"))
    with pytest.raises(UserError, match="mesh_dim_names"):
        mesh_of(3, (8,), None)


@pytest.mark.medium
@pytest.mark.parametrize("num_workers", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_dataset_leaves_out_skipped_steps_and_keeps_the_lineage_of_a_state(output: Path, num_workers: int) -> None:
    first = Loader(output, **OPTIONS, skip=[(2, 5)])
    steps_of(first, 3)
    options: dict[str, Any] = {"global_batch_size": 2, "skip": [(12, 15)]}
    dataset, expected = dataset_of(output, **options), Loader(output, **{**OPTIONS, **options})
    for each in (dataset, expected):
        each.load_state_dict(first.state_dict())  # in which the batches before had twice as many rows
    assert first_tokens(torch_data.DataLoader(dataset, batch_size=None, num_workers=num_workers)) == first_tokens(expected)


@pytest.mark.medium
@pytest.mark.parametrize("num_workers", [0, 2])
def test_dataset_hands_out_a_smaller_last_batch_or_reports_that_it_does_not(tmp_path: Path, num_workers: int) -> None:
    folder = make_snapshot(tmp_path, {"web": 20}, total_tokens=16 * 10)
    loader = torch_data.DataLoader(dataset_of(folder, drop_last=False), batch_size=None, num_workers=num_workers)
    assert [len(batch["input_ids"]) for batch in loader] == [4, 4, 2]
    with pytest.warns(DroppedRowsWarning, match="2 rows"):
        assert len(list(torch_data.DataLoader(dataset_of(folder), batch_size=None))) == 2


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.medium)])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_default_device_of_the_program_does_not_become_that_of_batches(output: Path, num_workers: int, dtype: str) -> None:
    """The device "meta" stands for any: a tensor that is made there has no numbers."""
    options = {**OPTIONS, "dtype": getattr(torch, dtype)}
    torch.set_default_device("meta")
    try:
        batch = next(iter(loader_torch.dataloader(output, num_workers=num_workers, **options)))
        row = next(iter(loader_torch.StreamingDataset(output, samples=True, **options)))
        ahead = next(late_import("datapipe.loader.device").prefetch_to_device(Loader(output, **OPTIONS), "cpu"))
        assert [each["input_ids"].device.type for each in (batch, row, ahead)] == ["cpu"] * 3
    finally:
        torch.set_default_device(None)
    assert first_tokens([batch]) == first_tokens([next(Loader(output, **OPTIONS))])


OF_ROWS = ("input_ids", "labels", "sources", "step")


def samples(output: Path, **options: Any) -> Any:
    return dataset_of(output, samples=True, **{"fields": OF_ROWS, **options})


def expected_rows(output: Path, field: str = "input_ids", **options: Any) -> np.ndarray:
    loader = Loader(output, fields=OF_ROWS, **{"global_batch_size": 4, **options})
    return np.concatenate([batch[field] for batch in loader])


def rows_of(batches: Any, field: str = "input_ids") -> np.ndarray:
    """(num_rows, …), from rows_of or from collated batches."""
    parts = [np.asarray(batch[field]) for batch in batches]
    return np.concatenate([part.reshape(-1, S) if field == "input_ids" else part.reshape(-1) for part in parts])


def test_samples_are_the_rows_of_the_batches_in_order(output: Path) -> None:
    found = list(samples(output))
    assert {type(row) for row in found} == {dict}
    for field in ("input_ids", "sources"):
        np.testing.assert_array_equal(rows_of(found, field), expected_rows(output, field))
    assert [row["step"] for row in found] == [step for step in range(15) for _ in range(4)]


@pytest.mark.medium
@pytest.mark.parametrize(("num_workers", "batch_size"), [(0, 4), (3, 4), (0, 3), (0, 64)])
def test_samples_under_a_dataloader_are_collated_to_its_batch_size(output: Path, num_workers: int, batch_size: int) -> None:
    batches = list(torch_data.DataLoader(samples(output), batch_size=batch_size, num_workers=num_workers))
    np.testing.assert_array_equal(rows_of(batches), expected_rows(output))
    if batch_size == 4:
        assert [batch["step"].tolist() for batch in batches] == [[step] * 4 for step in range(15)]


@pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")
@pytest.mark.parametrize("rank", range(3))
def test_samples_of_a_rank_are_its_rows_where_it_has_some(output: Path, rank: int) -> None:
    """Two rows_of on three ranks: one of them has none."""
    options: dict[str, Any] = {"global_batch_size": 2, "rank": rank, "world_size": 3}
    found = list(samples(output, **options))
    assert len(found) == len(expected_rows(output, **options)) == (30 if rank else 0)
    if found:
        np.testing.assert_array_equal(rows_of(found), expected_rows(output, **options))


@pytest.mark.parametrize("count", [1, 4, 5, 59, 60])
def test_samples_go_on_inside_a_batch_here_and_from_a_state(output: Path, count: int) -> None:
    dataset, expected = samples(output), expected_rows(output)
    np.testing.assert_array_equal(rows_of(islice(dataset, count)), expected[:count])
    state = json.loads(json.dumps(dataset.state_dict()))
    assert (state["step"], state.get("rows_done", 0)) == (count // 4, count % 4)
    resumed = samples(output)
    resumed.load_state_dict(state)
    for each in (dataset, resumed):
        assert [row["input_ids"].tolist() for row in each] == expected[count:].tolist()


@pytest.mark.medium
@pytest.mark.needs("torchdata")
@pytest.mark.parametrize(("num_workers", "batch_size"), [(0, 3), (0, 4)])
def test_samples_go_on_from_the_state_of_a_stateful_dataloader(output: Path, num_workers: int, batch_size: int) -> None:
    first, second = (
        stateful.StatefulDataLoader(samples(output), batch_size=batch_size, num_workers=num_workers) for _ in range(2)
    )
    before = [batch for _, batch in zip(range(5), first)]
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))  # torchtitan pickles it
    np.testing.assert_array_equal(rows_of([*before, *second]), expected_rows(output))


def test_state_inside_a_batch_fits_samples_of_the_same_batch_size_alone(output: Path) -> None:
    dataset = samples(output)
    next(iter(dataset))
    state = dataset.state_dict()
    for other in (dataset_of(output), Loader(output, **OPTIONS), samples(output, global_batch_size=8)):
        with pytest.raises(SnapshotError):
            other.load_state_dict(state)
    whole = samples(output, global_batch_size=8)
    whole.load_state_dict(dataset.state_dict(2))
    assert next(iter(whole))["step"] == 2


@pytest.mark.parametrize("fields", [("step",), ("input_ids", "cu_seqlens"), ("document_keys",)])
def test_samples_of_fields_that_are_not_of_rows_are_refused(output: Path, fields: tuple[str, ...]) -> None:
    with pytest.raises(UserError):
        samples(output, fields=fields)
    with pytest.raises(UserError, match="takes batches"):
        loader_torch.dataloader(output, global_batch_size=4, samples=True)


@pytest.mark.needs("torchdata")
@pytest.mark.slow
def test_workers_have_no_state_of_the_run(output: Path) -> None:
    loader = stateful.StatefulDataLoader(dataset_of(output), batch_size=None, num_workers=1)
    with pytest.raises(UserError, match="dataloader"):
        next(iter(loader))
    state = dataset_of(output).state_dict()
    of_worker = sealed({**state, "worker": {"id": 1, "num_workers": 2}})  # as datapipe 0.1 saved it
    for other in (dataset_of(output), loader_torch.dataloader(output, **OPTIONS)):
        with pytest.raises(SnapshotError, match="not a loader state: worker"):
            other.load_state_dict(of_worker)
