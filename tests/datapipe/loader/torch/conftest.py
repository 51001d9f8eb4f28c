"""A run of 15 steps, and what trainers have that must leave nothing behind."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.late_import import late_import
from tests.support.snapshots import make_snapshot

torch = late_import("torch")
accelerate = late_import("accelerate")


@pytest.fixture(scope="session")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 rows of 16 tokens, and 12 held-out ones."""
    folder = tmp_path_factory.mktemp("snapshot")
    return make_snapshot(folder, {"code": 31, "web": 83}, total_tokens=16 * 60, validation={"web": 12})


@pytest.fixture
def accelerator() -> Iterator[Callable[..., Any]]:
    """Makes an Accelerator, and leaves none of its state behind."""
    pytest.importorskip("accelerate")
    yield lambda **options: accelerate.Accelerator(cpu=True, **options)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


@pytest.fixture
def begin_world() -> Iterator[Callable[[int, int], None]]:
    """Makes this process a rank of a world without its other ranks."""
    store = pytest.importorskip("torch.testing._internal.distributed.fake_pg").FakeStore

    def end() -> None:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def begin(rank: int, size: int) -> None:
        end()
        torch.distributed.init_process_group("fake", rank=rank, world_size=size, store=store())

    yield begin
    end()
