"""Loaders in checkpoints of other libraries: torch.distributed.checkpoint in any world, and StatefulDataLoader."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import SnapshotError
from datapipe.loader import Loader
from tests.support.late_import import late_import
from tests.support.loader_rows import first_tokens, steps_of
from tests.support.snapshots import make_snapshot

torch = late_import("torch")
dcp = late_import("torch.distributed.checkpoint")
device = late_import("datapipe.loader.device")
loader_torch = late_import("datapipe.loader.torch")
stateful_dataloader = late_import("torchdata.stateful_dataloader")

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.filterwarnings(
        "ignore:torch.distributed is disabled",  # that is what no_dist=True asks for
        "ignore:'set_vital' is deprecated",  # StatefulDataLoader of torchdata 0.11 under newer torch
    ),
]

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83})


KINDS: dict[str, Callable[..., Any]] = {
    "Loader": Loader,
    "dataloader": lambda *output, **options: loader_torch.dataloader(*output, num_workers=0, **options),
    "workers": lambda *output, **options: loader_torch.dataloader(*output, **options, num_workers=2),
    "device": lambda *output, **options: device.prefetch_to_device(Loader(*output, **options), "cpu", 4),
}


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_checkpoint_of_torch_restores_the_position_and_the_changes_of_a_history(
    output: Path, tmp_path: Path, kind: str
) -> None:
    """A fresh loader has a shorter history than the saved one, and torch loads into what it has."""
    before = Loader(output, global_batch_size=4, fields=("input_ids", "step"))
    steps_of(before, 2)
    options: dict[str, Any] = {"global_batch_size": 6, "fields": ("input_ids", "step")}
    loader, weights = KINDS[kind](output, **options, skip=[(4, 6)]), torch.arange(3.0)
    assert isinstance(loader, dcp.stateful.Stateful)
    loader.load_state_dict(before.state_dict())
    assert steps_of(loader, 4) == [2, 3, 6, 7]
    dcp.save({"loader": loader, "weights": weights}, checkpoint_id=tmp_path, no_dist=True)
    for other in ("Loader", kind):
        restored = KINDS[other](output, **options)
        dcp.load({"loader": restored, "weights": torch.zeros(3)}, checkpoint_id=tmp_path, no_dist=True)
        assert restored.state_dict() == loader.state_dict()
        assert steps_of(restored, 2) == [8, 9]
    whole, rank = Loader(output, **options), Loader(output, rank=1, world_size=2, **options)
    for each in (whole, rank):
        dcp.load({"loader": each}, checkpoint_id=tmp_path, no_dist=True)
    assert first_tokens([rank.batch(1)]) == first_tokens([before.batch(1)])[2:]
    assert first_tokens([next(rank)]) == first_tokens([next(whole)])[3:]
    with pytest.raises(SnapshotError, match="another seed"):
        dcp.load({"loader": Loader(output, global_batch_size=6, seed=3)}, checkpoint_id=tmp_path, no_dist=True)


RANK = """
import os, sys
from itertools import islice
import torch.distributed as dist, torch.distributed.checkpoint as dcp
from datapipe.loader import Loader

output, checkpoint, rendezvous, rank, world_size, what = sys.argv[1:]
rank, world_size = int(rank), int(world_size)
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
loader = Loader(output, global_batch_size=6, rank=rank, world_size=world_size)
if what == "save":
    for _ in islice(loader, 7):
        pass
    dcp.save({"loader": loader}, checkpoint_id=checkpoint)
else:
    dcp.load({"loader": loader}, checkpoint_id=checkpoint)
print(loader.step, next(iter(loader))["input_ids"][:, 0].tolist())
dist.destroy_process_group()
"""


def in_world(world_size: int, what: str, output: Path, folder: Path) -> list[tuple[int, list[int]]]:
    """Runs RANK in `world_size` processes; the step and the first tokens that each printed."""
    paths = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo"}
    paths_given = [str(output), str(folder / "checkpoint"), str(folder / f"{what}-{world_size}")]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, *paths_given, str(rank), str(world_size), what],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(world_size)
    ]
    found = []
    for process in running:
        printed, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        step, tokens = printed.split(maxsplit=1)
        found.append((int(step), [int(token) for token in tokens.strip("[]\n").split(",")]))
    return found


@pytest.mark.slow
def test_checkpoint_of_two_processes_serves_a_world_of_another_size(output: Path, tmp_path: Path) -> None:
    expected = Loader(output, global_batch_size=6).batch(7)["input_ids"][:, 0].tolist()
    for world_size, what in ((2, "save"), (3, "load")):
        found = in_world(world_size, what, output, tmp_path)
        assert {step for step, _ in found} == {7}
        assert [token for _, tokens in found for token in tokens] == expected


@pytest.mark.needs("torchdata")
def test_stateful_data_loader_behind_prefetch_to_device_counts_batches_handed_out(output: Path) -> None:
    def open_batches() -> Any:
        dataset = loader_torch.StreamingDataset(output, global_batch_size=6, fields=("step",))
        return device.prefetch_to_device(stateful_dataloader.StatefulDataLoader(dataset, batch_size=None), "cpu", 3)

    batches, restored = open_batches(), open_batches()
    assert steps_of(batches, 5) == [0, 1, 2, 3, 4]
    restored.load_state_dict(batches.state_dict())
    assert next(restored)["step"] == 5
