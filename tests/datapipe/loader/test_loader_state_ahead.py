"""States of trainers that take batches ahead count what was trained on; other loaders: `torch/test_dataloader_histories.py`."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import UserError
from datapipe.loader import Loader
from tests.support.loader_rows import first_tokens
from tests.support.snapshots import make_snapshot

OPTIONS: dict[str, Any] = {"global_batch_size": 6, "fields": ("input_ids", "step"), "drop_last": False}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83}, max_epochs={"code": 1, "web": 1})


@pytest.mark.parametrize("skip", [[], [(3, 5), (9, 12)]])
def test_state_of_a_step_is_the_one_that_was_taken_there(output: Path, skip: list[tuple[int, int]]) -> None:
    loader = Loader(output, **OPTIONS, skip=skip)
    start = loader.state_dict()
    states = [(batch["step"], loader.state_dict()) for batch in loader]
    assert all(loader.state_dict(np.int64(step + 1)) == state for step, state in states)
    assert loader.state_dict(step=0) == start
    for (_, state), (following, _) in pairwise(states):
        loader.load_state_dict(state)
        assert next(loader)["step"] == following


def test_state_of_a_step_before_a_change_of_the_run_restores_the_change(output: Path) -> None:
    before = Loader(output, **OPTIONS)
    list(islice(before, 4))
    changed, again = (Loader(output, **OPTIONS | {"global_batch_size": 4}) for _ in range(2))
    changed.load_state_dict(before.state_dict())
    expected = [next(changed) for _ in range(3)]
    again.load_state_dict(changed.state_dict(step=5))
    assert first_tokens(islice(again, 2)) == first_tokens(expected[1:])


@pytest.mark.parametrize("step", [-1, 4, 1.0, True, "2"])
def test_state_of_a_step_that_was_not_handed_out_is_refused(output: Path, step: Any) -> None:
    loader = Loader(output, **OPTIONS)
    list(islice(loader, 3))
    with pytest.raises(UserError, match="expected the next step to train, from 0 to 3"):
        loader.state_dict(step=step)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("source", ["Loader", "dataloader", "StreamingDataset"])
def test_state_of_a_step_that_was_not_handed_out_is_refused_behind_others_too(output: Path, source: str) -> None:
    from datapipe.loader.device import prefetch_to_device
    from datapipe.loader.torch import StreamingDataset, dataloader

    make: Any = {"Loader": Loader, "dataloader": dataloader, "StreamingDataset": StreamingDataset}[source]
    loader, batches = make(output, **OPTIONS), prefetch_to_device(make(output, **OPTIONS), "cpu", depth=3)
    for each in (loader, batches):
        list(islice(each, 2))
        with pytest.raises(UserError):
            each.state_dict(3)  # the source of those for the device has handed out more
