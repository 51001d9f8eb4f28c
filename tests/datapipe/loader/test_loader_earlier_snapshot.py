"""A state of an earlier snapshot, given to a loader of the newest: the error has the call that goes on with it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import SnapshotError
from datapipe.loader import Loader
from datapipe.service.serve import Running, ServeOptions
from tests.support.snapshots import make_growing_snapshots


@pytest.fixture
def output(tmp_path: Path) -> tuple[Path, list[str]]:
    folder = tmp_path / "out"
    return folder, make_growing_snapshots(folder, {"web": [40, 30], "code": [20]})


def by_the_error(error: SnapshotError) -> Loader:
    """The loader that the call in the message opens."""
    found = re.search(r'Loader\("([^"]+)", snapshot="([0-9a-f]{12})", …\)', str(error))
    assert found
    return Loader(found[1], snapshot=found[2], batch_size=4, rank=0, world_size=1)


def check(output: str, earlier: str) -> None:
    before = Loader(output, batch_size=4, snapshot=earlier)
    next(before)
    state, expected = before.state_dict(), next(before)["input_ids"]
    with pytest.raises(SnapshotError, match="of another snapshot") as caught:
        Loader(output, batch_size=4).load_state_dict(state)
    loader = by_the_error(caught.value)
    loader.load_state_dict(state)
    np.testing.assert_array_equal(next(loader)["input_ids"], expected)
    for each in (before, loader):
        each.close()


def test_error_has_the_call_that_opens_the_snapshot_of_the_state(output: tuple[Path, list[str]]) -> None:
    check(str(output[0]), output[1][0])


@pytest.mark.medium
def test_error_of_a_service_has_the_call_that_opens_the_snapshot_of_the_state(
    output: tuple[Path, list[str]], tmp_path: Path
) -> None:
    server = Running([f"web={output[0]}"], ServeOptions(port=0, tells_files=False, cache_folder=str(tmp_path)))
    check(f"{server.location}/web", output[1][0])
    server.close()


def test_error_says_that_the_snapshot_of_the_state_is_gone(output: tuple[Path, list[str]]) -> None:
    folder, (earlier, _) = output
    state = Loader(folder, batch_size=4, snapshot=earlier).state_dict()
    shutil.rmtree(folder / "snapshots" / earlier)
    with pytest.raises(SnapshotError, match=f"The output has no snapshot {earlier[:12]}"):
        Loader(folder, batch_size=4).load_state_dict(state)


@pytest.mark.parametrize("options", [{"seed": 3}, {"window": 1}, {"mixture": {"code": 1, "web": 5}}])
def test_error_of_the_same_snapshot_names_no_other(output: tuple[Path, list[str]], options: dict[str, Any]) -> None:
    state = Loader(output[0], batch_size=4).state_dict()
    with pytest.raises(SnapshotError) as caught:
        Loader(output[0], batch_size=4, **options).load_state_dict(state)
    assert "still has the snapshot" not in str(caught.value)
