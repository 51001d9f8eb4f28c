"""Arguments of a loader that are out of range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import UserError
from datapipe.loader import Loader
from datapipe.loader.share import Mesh
from tests.support.snapshots import make_snapshot


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"web": 40}, validation={"web": 10})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": -1}, r"seed=-1: expected 0 to 2\^64 - 1"),
        ({"seed": 1 << 64}, r"seed=18446744073709551616: expected 0 to 2\^64 - 1"),
        ({"window": -1}, "window=-1: expected a number of shards"),
        ({"window": 1 << 31}, "window=2147483648: expected a number of shards"),
        ({"cache_bytes": -1}, "cache_bytes=-1: expected a number of bytes"),
        ({"prefetch": (1 << 16) + 1}, "prefetch=65537: expected 0 to 65,536"),
        ({"batch_size": 1 << 31}, "batch_size=2147483648: give exactly one"),
        ({"rank": 0, "world_size": 0}, "rank 0 of a world of 0"),
        ({"rank": 0, "world_size": -2}, "rank 0 of a world of -2"),
        ({"mesh": object()}, "mesh of type object: expected a"),
        ({"split": "validation", "drop_last": True}, "drop_last=True with split='validation'"),
    ],
)
def test_argument_out_of_range_is_refused(output: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Loader(output, **{"batch_size": 4, **options})


@pytest.mark.parametrize("seed", [0, (1 << 64) - 1])
def test_seed_at_the_end_of_its_range_is_restored(output: Path, seed: int) -> None:
    loader = Loader(output, batch_size=4, seed=seed)
    first = next(loader)["input_ids"].tolist()
    loader.load_state_dict({**Loader(output, batch_size=4, seed=seed).state_dict()})
    assert next(loader)["input_ids"].tolist() == first


@pytest.mark.parametrize(
    "sizes",
    [
        {"data_rank": 0, "data_size": 0},
        {"data_rank": 0, "data_size": -1},
        {"data_rank": 1, "data_size": 1},
        {"data_rank": 0, "data_size": 1, "context_size": 0},
        {"data_rank": 0, "data_size": 1, "context_rank": -1, "context_size": 2},
        {"data_rank": 0.0, "data_size": 1},
    ],
)
def test_mesh_with_impossible_coordinates_is_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="of a world of"):
        Mesh(**sizes)


@pytest.mark.parametrize("step", [1.5, "3", None, True, 2**70])
def test_what_is_no_number_of_a_step_is_refused(output: Path, step: Any) -> None:
    loader = Loader(output, batch_size=1)
    for take in (loader.batch, loader.seek):
        with pytest.raises(UserError, match=r"step .*: (expected a whole number|steps are counted to)"):
            take(step)
