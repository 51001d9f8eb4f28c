"""Arguments of a loader that are wrong: each is refused, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.share import Mesh
from tests.support.snapshots import make_snapshot


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"code": 10, "web": 40}, validation={"web": 10})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": None}, "exactly one"),
        ({"global_batch_size": 4}, "exactly one"),
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": 1 << 31}, "batch_size=2147483648"),
        ({"batch_size": np.int64(4)}, "batch_size=.*int64"),
        ({"batch_size": 4.0}, "batch_size=4.0 of type float"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1 << 64}, "seed=18446744073709551616"),
        ({"seed": np.int64(3)}, "seed=.*int64"),
        ({"window": -1}, "window=-1"),
        ({"window": 1 << 31}, "window=2147483648"),
        ({"cache_bytes": -1}, "cache_bytes=-1"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"prefetch": (1 << 16) + 1}, "prefetch=65537"),
        ({"rank": 0, "world_size": 0}, "rank 0 of a world of 0"),
        ({"rank": 0, "world_size": -2}, "rank 0 of a world of -2"),
        ({"rank": 2, "world_size": 2}, "rank 2 of a world of 2"),
        ({"mesh": object()}, "mesh of type object"),
        ({"fields": ["input_id"]}, "Did you mean 'input_ids'"),
        ({"labels": "moved"}, "shifted or unshifted"),
        ({"dtype": "float32"}, "int64 or int32"),
        ({"split": "test"}, "train or validation"),
        ({"split": "validation", "drop_last": True}, "drop_last=True with split='validation'"),
        ({"split": "validation", "group_rows": 4}, "only the training split"),
        ({"split": "validation", "skip_shards": ["shards/web/train-0000-00000.arrow"]}, "only the training split"),
        ({"group_rows": 3}, "group_rows=3 with a global batch of 4"),
        ({"group_rows": 0}, "group_rows=0"),
        ({"group_rows": 4.0}, "expected an int"),
        ({"skip": [(4, 4)]}, "not a range of steps"),
        ({"skip_shards": ["shards/web/train-0000-0000.arow"]}, "no shard.*Did you mean"),
        ({"skip_documents": ["12"]}, "expected SOURCE/PATH:POSITION"),
        ({"skip_documents": ["web/none.jsonl:12"]}, "this snapshot has no such file"),
        ({"restart": ["wbe"]}, "no source 'wbe'.*Did you mean 'web'"),
        ({"restart": "web"}, "without migrate=True"),
        ({"mixture": {"wbe": 1}}, "Did you mean 'web'"),
        ({"mixture": {"web": -1}}, "at least 0"),
        ({"mixture": {"web": 0}}, "at least one above 0"),
        ({"mixture": {"web": "much"}}, "expected a number"),
        ({"mixture": [(100, {"web": 1})]}, "None"),
        ({"mixture": [(100, {"web": 1}), (90, {"web": 2}), (None, {"web": 1})]}, "ascending"),
    ],
)
def test_wrong_argument_is_refused(output: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Loader(output, **{"batch_size": 4, **options})


def test_folder_without_a_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"snapshot\.json"):
        Loader(tmp_path, global_batch_size=4)


@pytest.mark.parametrize("seed", [0, (1 << 64) - 1])
def test_seed_at_the_end_of_its_range_is_restored(output: Path, seed: int) -> None:
    loader = Loader(output, batch_size=4, seed=seed)
    first = next(loader)["input_ids"].tolist()
    loader.load_state_dict(Loader(output, batch_size=4, seed=seed).state_dict())
    assert next(loader)["input_ids"].tolist() == first


@pytest.mark.parametrize(
    "sizes",
    [
        {"data_rank": 0, "data_size": 0},
        {"data_rank": 0, "data_size": -1},
        {"data_rank": 1, "data_size": 1},
        {"data_rank": 0.0, "data_size": 1},
        {"data_rank": 0, "data_size": 1, "context_size": 0},
        {"data_rank": 0, "data_size": 1, "context_rank": -1, "context_size": 2},
        {"data_rank": 0, "data_size": 1, "context_rank": 3, "context_size": 2},
        {"data_rank": 0, "data_size": 1, "context_size": 3},
        {"data_rank": 0, "data_size": 1, "context_size": 16, "layout": "zigzag"},
        {"data_rank": 0, "data_size": 1, "layout": "striped"},
    ],
)
def test_impossible_mesh_is_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Mesh(**sizes).check(16)


@pytest.mark.parametrize("step", [1.5, "3", None, True, 2**70])
def test_what_is_no_number_of_a_step_is_refused(output: Path, step: Any) -> None:
    loader = Loader(output, batch_size=1)
    for take in (loader.batch, loader.seek):
        with pytest.raises(UserError, match="step"):
            take(step)
