"""Prefetch to the device: the same batches in order, at most `depth` pending; states count those handed out.

Loaders in checkpoints of torch.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from tests.support.late_import import late_import
from tests.support.loader_rows import first_tokens, steps_of
from tests.support.snapshots import make_snapshot

torch = late_import("torch")
torch_data = late_import("torch.utils.data")
device = late_import("datapipe.loader.device")
loader_torch = late_import("datapipe.loader.torch")
dcp = late_import("torch.distributed.checkpoint")
stateful_dataloader = late_import("torchdata.stateful_dataloader")

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # that is what no_dist=True asks for
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # StatefulDataLoader of torchdata 0.11 under newer torch
]

S = 16
ALL_FIELDS = ("input_ids", "labels", "cu_seqlens", "piece_offsets", "document_keys", "sources", "step")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(
        tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83}, total_tokens=S * 60, validation={"web": 9}
    )


class Counted:
    """A source that counts what was taken from it, fails before `failing`, and remembers that it was closed."""

    def __init__(self, count: int, failing: int | None = None) -> None:
        self.count, self.failing = count, failing
        self.taken, self.closed = 0, False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            for number in range(self.count):
                if number == self.failing:
                    raise OSError(f"cannot read batch {number}")
                self.taken += 1
                yield {"input_ids": np.full(3, number), "step": number}
        finally:
            self.closed = True


@pytest.mark.parametrize("depth", [1, 40])
@pytest.mark.parametrize("kind", ["loader", pytest.param("workers", marks=pytest.mark.medium)])
def test_batches_come_unchanged_and_in_order(output: Path, depth: int, kind: str) -> None:
    options: dict[str, Any] = {"global_batch_size": 4, "fields": ALL_FIELDS}
    source: Any = Loader(output, **options)
    if kind == "workers":
        source = torch_data.DataLoader(loader_torch.StreamingDataset(output, **options), batch_size=None, num_workers=1)
    found = list(device.prefetch_to_device(source, "cpu", depth))
    for batch, expected in zip(found, Loader(output, **options), strict=True):
        assert list(batch) == list(expected)
        assert batch["step"] == expected["step"]
        for name in ALL_FIELDS[:-1]:
            assert batch[name].numpy().dtype == expected[name].dtype
            np.testing.assert_array_equal(batch[name].numpy(), expected[name])


def test_batches_are_no_views_of_the_source() -> None:
    source = [{"input_ids": np.zeros(3, np.int64)} for _ in range(2)]
    first = next(device.prefetch_to_device(source, "cpu"))
    source[0]["input_ids"][:] = 7
    assert first["input_ids"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("depth", [1, 3])
def test_at_most_depth_copies_are_pending(depth: int) -> None:
    source = Counted(20)
    for handed_out, _ in enumerate(device.prefetch_to_device(source, "cpu", depth), start=1):
        assert source.taken == min(20, handed_out + depth)


def test_error_is_raised_in_the_turn_of_its_batch() -> None:
    batches = device.prefetch_to_device(Counted(9, failing=4), "cpu", 3)
    assert [next(batches)["step"] for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(OSError, match="batch 4"):
        next(batches)


def test_validation_passes_are_all_the_same(output: Path) -> None:
    batches = device.prefetch_to_device(Loader(output, global_batch_size=4, split="validation"), "cpu")
    for _ in range(2):
        assert [len(batch["input_ids"]) for batch in batches] == [4, 4, 1]


def test_close_ends_the_source_and_moves_it_back(output: Path) -> None:
    loader = Loader(output, global_batch_size=4, fields=("step",))
    with device.prefetch_to_device(loader, "cpu", 4) as batches:
        assert steps_of(batches, 3) == [0, 1, 2]
        assert loader.step > 3
    assert loader.step == 3
    source = Counted(9)
    with device.prefetch_to_device(source, "cpu") as batches:
        next(batches)
    assert source.closed


def test_state_of_a_source_without_one_is_refused_with_advice(output: Path) -> None:
    workers = torch_data.DataLoader(loader_torch.StreamingDataset(output, global_batch_size=4), batch_size=None, num_workers=1)
    with pytest.raises(UserError, match="DataLoader has no state"):
        device.prefetch_to_device(workers, "cpu").state_dict()
    with pytest.raises(UserError, match="depth=0"):
        device.prefetch_to_device(workers, "cpu", 0)


def test_batches_on_a_gpu_are_the_same_while_it_is_busy(output: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    sums = []
    for batch in device.prefetch_to_device(Loader(output, global_batch_size=4), "cuda", 3):
        assert batch["input_ids"].is_cuda
        busy = torch.ones(2048, 2048, device="cuda")
        for _ in range(20):
            busy = busy @ busy / 2048
        sums.append({"input_ids": batch["input_ids"] + 0})
        del batch
    assert first_tokens(sums) == first_tokens(Loader(output, global_batch_size=4))


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

    def load(loader: Any) -> None:
        dcp.load({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)

    before = Loader(output, global_batch_size=4, fields=("input_ids", "step"))
    steps_of(before, 2)
    options: dict[str, Any] = {"global_batch_size": 6, "fields": ("input_ids", "step")}
    loader = KINDS[kind](output, **options, skip=[(4, 6)])
    assert isinstance(loader, dcp.stateful.Stateful)
    loader.load_state_dict(before.state_dict())
    assert steps_of(loader, 4) == [2, 3, 6, 7]
    dcp.save({"loader": loader, "weights": torch.arange(3.0)}, checkpoint_id=tmp_path, no_dist=True)
    for other in ("Loader", kind):
        restored = KINDS[other](output, **options)
        load(restored)
        assert restored.state_dict() == loader.state_dict()
        assert steps_of(restored, 2) == [8, 9]
    whole, rank = Loader(output, **options), Loader(output, rank=1, world_size=2, **options)
    for each in (whole, rank):
        load(each)
    assert first_tokens([rank.batch(1)]) == first_tokens([before.batch(1)])[2:]
    assert first_tokens([next(rank)]) == first_tokens([next(whole)])[3:]
    with pytest.raises(SnapshotError):
        load(Loader(output, global_batch_size=6, seed=3))


RANK = """
import sys
from itertools import islice
import torch.distributed as dist, torch.distributed.checkpoint as dcp
from datapipe.loader import Loader

output, checkpoint, rendezvous, rank, world_size = *sys.argv[1:4], *map(int, sys.argv[4:])
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
loader = Loader(output, global_batch_size=6, rank=rank, world_size=world_size)
if world_size == 2:
    list(islice(loader, 7))
    dcp.save({"loader": loader}, checkpoint_id=checkpoint)
else:
    dcp.load({"loader": loader}, checkpoint_id=checkpoint)
print(loader.step, *next(loader)["input_ids"][:, 0])
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_checkpoint_that_two_processes_saved_is_loaded_by_three(output: Path, tmp_path: Path) -> None:
    expected = [str(token) for token in Loader(output, global_batch_size=6).batch(7)["input_ids"][:, 0]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo"}
    for size in (2, 3):
        command = [sys.executable, "-c", RANK, str(output), str(tmp_path / "checkpoint"), str(tmp_path / f"world-{size}")]
        ranks = [
            subprocess.Popen([*command, str(rank), str(size)], env=environment, stdout=subprocess.PIPE, text=True)
            for rank in range(size)
        ]
        found = [rank.communicate(timeout=240)[0].split() for rank in ranks]
        assert [step for step, *_ in found] == ["7"] * size
        assert [token for _, *tokens in found for token in tokens] == expected


@pytest.mark.needs("torchdata")
def test_stateful_data_loader_behind_prefetch_to_device_counts_batches_handed_out(output: Path) -> None:
    def open_batches() -> Any:
        dataset = loader_torch.StreamingDataset(output, global_batch_size=6, fields=("step",))
        return device.prefetch_to_device(stateful_dataloader.StatefulDataLoader(dataset, batch_size=None), "cpu", 3)

    batches, restored = open_batches(), open_batches()
    assert steps_of(batches, 5) == [0, 1, 2, 3, 4]
    restored.load_state_dict(batches.state_dict())
    assert next(restored)["step"] == 5
