"""Which rank a loader takes for its own, by arguments, torch.distributed and what launchers set."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import UserError
from datapipe.loader import Loader
from tests.support.snapshots import make_snapshot

PAIRS = [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")]
PAIRS += [(f"{name}_RANK", f"{name}_SIZE") for name in ("OMPI_COMM_WORLD", "PMI", "MV2_COMM_WORLD")]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"web": 40})


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the variables of a launcher, and no others."""

    def launch(**variables: object) -> None:
        for name in (name for pair in PAIRS for name in pair):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    launch()
    return launch


def rows(output: Path, **options: Any) -> list[list[int]]:
    return next(Loader(output, prefetch=0, **options))["input_ids"].tolist()


@pytest.mark.parametrize("size", [{"batch_size": 2}, {"global_batch_size": 8}])
def test_ranks_of_torchrun_share_the_global_batch(output: Path, launched: Any, size: dict[str, int]) -> None:
    whole, parts = rows(output, global_batch_size=8, rank=0, world_size=1), []
    for rank in range(4):
        launched(RANK=rank, WORLD_SIZE=4, LOCAL_RANK=rank)
        parts += rows(output, **size)
    assert parts == whole


def test_arguments_win_over_the_environment(output: Path, launched: Any) -> None:
    launched()
    expected = rows(output, global_batch_size=8, rank=0, world_size=2)
    launched(RANK=3, WORLD_SIZE=4)
    assert rows(output, global_batch_size=8, rank=0, world_size=2) == expected
    assert len(rows(output, global_batch_size=8, rank=3)) == len(rows(output, global_batch_size=8, world_size=4)) == 2


@pytest.mark.parametrize(
    ("variables", "options", "words"),
    [
        ({"WORLD_SIZE": 4}, {}, "WORLD_SIZE=4 and no RANK"),
        ({"RANK": 1}, {}, "RANK=1 and no WORLD_SIZE"),
        ({"RANK": 4, "WORLD_SIZE": 4}, {}, "RANK=4"),
        ({"RANK": -1, "WORLD_SIZE": 4}, {}, "RANK=-1"),
        ({"RANK": 0, "WORLD_SIZE": 0}, {}, "WORLD_SIZE=0"),
        ({"RANK": "one", "WORLD_SIZE": 4}, {}, "RANK='one'"),
        ({"RANK": 1, "WORLD_SIZE": 4}, {"rank": 2}, "rank=2, but this process is rank 1 of 4"),
        ({"RANK": 1, "WORLD_SIZE": 4}, {"world_size": 2}, "world_size=2, but this process is rank 1 of 4"),
        ({"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 2}, {"world_size": 2}, "OMPI_COMM_WORLD_RANK"),
        *(({rank: 1, size: 2}, {}, rank) for rank, size in PAIRS[2:]),
    ],
)
def test_environment_that_does_not_tell_the_rank_is_refused(
    output: Path, launched: Any, variables: dict[str, object], options: dict[str, int], words: str
) -> None:
    launched(**variables)
    with pytest.raises(UserError, match=words):
        Loader(output, batch_size=2, **options)
    assert len(rows(output, batch_size=2, rank=0, world_size=2)) == 2


@pytest.mark.parametrize(
    "variables",
    [{}, {"WORLD_SIZE": 1}, {"RANK": 0, "WORLD_SIZE": 1}, {"RANK": ""}, {"SLURM_PROCID": 0, "SLURM_NTASKS": 8}],
)
def test_process_that_is_alone_reads_every_row(output: Path, launched: Any, variables: dict[str, object]) -> None:
    """A batch script of Slurm is one process, whatever the number of its tasks."""
    launched(**variables)
    assert len(rows(output, global_batch_size=8)) == 8


def test_copy_in_another_process_has_the_rank_of_the_original(output: Path, launched: Any) -> None:
    launched(RANK=1, WORLD_SIZE=2)
    loader = Loader(output, batch_size=4)
    launched(RANK=0, WORLD_SIZE=2)
    np.testing.assert_array_equal(next(pickle.loads(pickle.dumps(loader)))["input_ids"], next(loader)["input_ids"])
