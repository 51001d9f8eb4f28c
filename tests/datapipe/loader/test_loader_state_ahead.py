"""States of trainers that take batches ahead: they count what was trained on, and every resumed run goes on there."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import UserError
from datapipe.loader import Loader
from tests.support.snapshots import make_snapshot

OPTIONS: dict[str, Any] = {"global_batch_size": 6, "fields": ("input_ids", "step"), "drop_last": False}
SKIP = [(3, 5), (9, 12)]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83}, max_epochs={"code": 1, "web": 1})


def one_ahead(batches: Any, state_of: Any) -> list[tuple[int, Any]]:
    """A loop that takes batch n + 1 before it saves a checkpoint after step n: each step, and its state."""
    taken, current = [], next(batches, None)
    while current is not None:
        ahead = next(batches, None)
        taken.append((current["step"], state_of(current["step"] + 1)))
        current = ahead
    return taken


def check_restored(output: Path, taken: list[tuple[int, Any]], **options: Any) -> None:
    """A loader with any of the states goes on with the step after the one that was trained on."""
    steps, resumed = [step for step, _ in taken], Loader(output, **OPTIONS, prefetch=0, **options)
    for (_, state), following in zip(taken, [*steps[1:], None]):
        resumed.load_state_dict(state)
        batch = next(resumed, None)
        assert (None if batch is None else batch["step"]) == following
        if batch is not None:
            np.testing.assert_array_equal(batch["input_ids"], resumed.batch(batch["step"])["input_ids"])


@pytest.mark.parametrize("skip", [[], SKIP])
def test_state_of_a_step_counts_the_batches_before_it(output: Path, skip: list[tuple[int, int]]) -> None:
    loader = Loader(output, **OPTIONS, skip=skip)
    taken = one_ahead(loader, loader.state_dict)
    assert len(taken) == len(loader)
    check_restored(output, taken, skip=skip)


def test_state_of_a_step_is_the_one_that_was_taken_there(output: Path) -> None:
    loader = Loader(output, **OPTIONS, skip=SKIP)
    states = [(batch["step"], loader.state_dict()) for batch in loader]
    assert all(loader.state_dict(np.int64(step + 1)) == state for step, state in states)
    assert loader.state_dict(step=0) == Loader(output, **OPTIONS, skip=SKIP).state_dict()


def test_state_of_a_step_before_a_change_of_the_run_restores_the_change(output: Path) -> None:
    before = Loader(output, **OPTIONS)
    list(islice(before, 4))
    changed = Loader(output, **OPTIONS | {"global_batch_size": 4})
    changed.load_state_dict(before.state_dict())
    expected = [next(changed)["input_ids"] for _ in range(3)]
    resumed = Loader(output, **OPTIONS | {"global_batch_size": 4})
    resumed.load_state_dict(changed.state_dict(step=5))
    np.testing.assert_array_equal([next(resumed)["input_ids"], next(resumed)["input_ids"]], expected[1:])


@pytest.mark.parametrize("step", [-1, 4, 1.0, True, "2"])
def test_state_of_a_step_that_was_not_handed_out_is_refused(output: Path, step: Any) -> None:
    loader = Loader(output, **OPTIONS)
    list(islice(loader, 3))
    with pytest.raises(UserError, match="expected the next step to train, from 0 to 3"):
        loader.state_dict(step=step)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.medium)])
def test_state_of_a_step_of_a_torch_loader_counts_the_batches_before_it(output: Path, num_workers: int) -> None:
    from datapipe.loader.torch import dataloader

    loader = dataloader(output, num_workers=num_workers, **OPTIONS)
    taken = one_ahead(iter(loader), loader.state_dict)
    assert [step for step, _ in taken] == list(range(len(loader)))
    check_restored(output, taken)
    with pytest.raises(UserError, match="expected the next step to train"):
        loader.state_dict(step=len(taken) + 1)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("source", ["Loader", "dataloader", "StreamingDataset"])
def test_state_of_a_step_behind_prefetch_to_device_counts_the_batches_before_it(output: Path, source: str) -> None:
    from datapipe.loader.device import prefetch_to_device
    from datapipe.loader.torch import StreamingDataset, dataloader

    make: Any = {"Loader": Loader, "dataloader": dataloader, "StreamingDataset": StreamingDataset}[source]
    batches = prefetch_to_device(make(output, **OPTIONS), "cpu", depth=3)
    check_restored(output, one_ahead(batches, batches.state_dict))
    list(islice(fresh := prefetch_to_device(make(output, **OPTIONS), "cpu", depth=3), 2))
    with pytest.raises(UserError, match="the step after the batches handed out is 2"):
        fresh.state_dict(step=3)  # the source has handed out more
