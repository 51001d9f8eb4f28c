"""Rows instead of batches, for a DataLoader that collates them: the same rows in the same order, with states inside a batch."""

from __future__ import annotations

import json
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from tests.support.late_import import late_import

torch_data = late_import("torch.utils.data")
stateful = late_import("torchdata.stateful_dataloader")
loader_torch = late_import("datapipe.loader.torch")

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than this machine has cores
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated"),  # torchdata calls it
]

S = 16
NUM_ROWS = 60
FIELDS = ("input_ids", "labels", "sources", "step")


def samples(output: Path, **options: Any) -> Any:
    return loader_torch.StreamingDataset(output, samples=True, fields=FIELDS, **{"global_batch_size": 4, **options})


def expected_rows(output: Path, field: str = "input_ids", **options: Any) -> np.ndarray:
    loader = Loader(output, fields=FIELDS, **{"global_batch_size": 4, **options})
    return np.concatenate([batch[field] for batch in loader])


def rows(batches: Any, field: str = "input_ids") -> np.ndarray:
    """(num_rows, …), from rows or from collated batches."""
    parts = [np.asarray(batch[field]) for batch in batches]
    return np.concatenate([part.reshape(-1, S) if field == "input_ids" else part.reshape(-1) for part in parts])


def test_samples_are_the_rows_of_the_batches_in_order(output: Path) -> None:
    found = list(samples(output))
    assert {type(row) for row in found} == {dict}
    for field in ("input_ids", "sources"):
        np.testing.assert_array_equal(rows(found, field), expected_rows(output, field))
    assert [row["step"] for row in found] == [step for step in range(15) for _ in range(4)]
    for batch_size in (3, 64):
        collated = torch_data.DataLoader(samples(output), batch_size=batch_size)
        np.testing.assert_array_equal(rows(collated), expected_rows(output))


@pytest.mark.medium
@pytest.mark.parametrize("num_workers", [0, 3])
def test_samples_under_a_dataloader_of_the_same_batch_size_are_the_batches(output: Path, num_workers: int) -> None:
    batches = list(torch_data.DataLoader(samples(output), batch_size=4, num_workers=num_workers))
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(4, S)] * 15
    assert [batch["step"].tolist() for batch in batches] == [[step] * 4 for step in range(15)]
    np.testing.assert_array_equal(rows(batches), expected_rows(output))


@pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")
@pytest.mark.parametrize("rank", range(3))
def test_samples_of_a_rank_are_its_rows_where_it_has_some(output: Path, rank: int) -> None:
    """Two rows on three ranks: one of them has none."""
    options: dict[str, Any] = {"global_batch_size": 2, "rank": rank, "world_size": 3}
    found = list(samples(output, **options))
    assert len(found) == len(expected_rows(output, **options)) == (30 if rank else 0)
    if found:
        np.testing.assert_array_equal(rows(found), expected_rows(output, **options))


@pytest.mark.parametrize("count", [1, 4, 5, 59, 60])
def test_samples_go_on_inside_a_batch_here_and_from_a_state(output: Path, count: int) -> None:
    dataset, expected = samples(output), expected_rows(output)
    np.testing.assert_array_equal(rows(islice(dataset, count)), expected[:count])
    state = json.loads(json.dumps(dataset.state_dict()))
    assert (state["step"], state.get("rows_done", 0)) == (count // 4, count % 4)
    resumed = samples(output)
    resumed.load_state_dict(state)
    for each in (dataset, resumed):
        assert [row["input_ids"].tolist() for row in each] == expected[count:].tolist()


@pytest.mark.medium
@pytest.mark.needs("torchdata")
@pytest.mark.parametrize(("num_workers", "batch_size"), [(0, 3), (0, 4), (2, 4)])
def test_samples_go_on_from_the_state_of_a_stateful_dataloader(output: Path, num_workers: int, batch_size: int) -> None:
    first, second = (
        stateful.StatefulDataLoader(samples(output), batch_size=batch_size, num_workers=num_workers) for _ in range(2)
    )
    before = [batch for _, batch in zip(range(5), first)]
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))  # torchtitan pickles it
    np.testing.assert_array_equal(rows([*before, *second]), expected_rows(output))


def test_state_inside_a_batch_fits_samples_of_the_same_batch_size_alone(output: Path) -> None:
    dataset = samples(output)
    next(iter(dataset))
    state = dataset.state_dict()
    with pytest.raises(SnapshotError, match="samples=True"):
        loader_torch.StreamingDataset(output, global_batch_size=4).load_state_dict(state)
    with pytest.raises(SnapshotError, match="rows_done"):
        Loader(output, global_batch_size=4).load_state_dict(state)
    with pytest.raises(SnapshotError, match="global batch size 4"):
        samples(output, global_batch_size=8).load_state_dict(state)
    whole = samples(output, global_batch_size=8)
    whole.load_state_dict(dataset.state_dict(2))
    assert next(iter(whole))["step"] == 2


@pytest.mark.parametrize("fields", [("step",), ("input_ids", "cu_seqlens"), ("document_keys",)])
def test_samples_of_fields_that_are_not_of_rows_are_refused(output: Path, fields: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="expected fields of rows"):
        loader_torch.StreamingDataset(output, global_batch_size=4, samples=True, fields=fields)
    with pytest.raises(UserError, match="takes batches"):
        loader_torch.dataloader(output, global_batch_size=4, samples=True)
