"""Arguments of a loader that are wrong; what it imports; and Ctrl-C while a program waits for a batch."""

import importlib
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.batches import BatchBuilder
from datapipe.loader.share import Mesh
from tests.support.service import served
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
        ({"batch_size": 1 << 31}, "batch_size"),
        ({"batch_size": np.int64(4)}, "batch_size=.*int64"),
        ({"seed": -(1 << 63) - 1}, "seed=-9223372036854775809"),
        ({"batchsize": 4}, "no argument 'batchsize'. Did you mean 'batch_size'?"),
        ({"seed": 1 << 64}, "seed"),
        ({"window": 1 << 31}, "window"),
        ({"cache_bytes": -1}, "cache_bytes=-1"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"prefetch": (1 << 16) + 1}, "prefetch=65537"),
        ({"rank": 0, "world_size": 0}, "rank 0 of a world of 0"),
        ({"rank": 2, "world_size": 2}, "rank 2 of a world of 2"),
        ({"mesh": object()}, "mesh"),
        ({"fields": ["input_id"]}, "'input_ids'"),
        ({"labels": "moved"}, "shifted"),
        ({"dtype": "float32"}, "int32"),
        ({"split": "test"}, "validation"),
        ({"split": "validation", "drop_last": True}, "drop_last"),
        ({"split": "validation", "group_rows": 4}, "training split"),
        ({"split": "validation", "skip_shards": ["shards/web/train-0000-00000.arrow"]}, "training split"),
        ({"group_rows": 3}, "global batch of 4"),
        ({"group_rows": 0}, "group_rows=0"),
        ({"skip": [(4, 4)]}, "range of steps"),
        ({"skip_shards": ["shards/web/train-0000-0000.arow"]}, "no shard"),
        ({"skip_documents": ["12"]}, "SOURCE/PATH:POSITION"),
        ({"skip_documents": ["web/none.jsonl:12"]}, "no such file"),
        ({"skip_documents": ["f" * 32]}, "skip_documents: f+: no file of this snapshot"),
        ({"restart": ["wbe"], "migrate": True}, "'web'"),
        ({"restart": "web"}, "migrate=True"),
        ({"mixture": {"wbe": 1}}, "'web'"),
        ({"mixture": {"web": -1}}, "at least 0"),
        ({"mixture": {"web": 0}}, "above 0"),
        ({"mixture": {"web": "much"}}, "number"),
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


@pytest.mark.parametrize(
    "sizes",
    [
        {"data_size": 0},
        {"data_size": -1},
        {"data_rank": 1},
        {"data_rank": 0.0},
        {"context_size": 0},
        {"context_rank": -1, "context_size": 2},
        {"context_rank": 3, "context_size": 2},
        {"context_size": 3},
        {"context_size": 16, "layout": "zigzag"},
        {"layout": "striped"},
    ],
)
def test_impossible_mesh_is_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Mesh(**{"data_rank": 0, "data_size": 1, **sizes}).check(16)


@pytest.mark.parametrize("step", [1.5, "3", None, True, 2**70])
def test_what_is_no_number_of_a_step_is_refused(output: Path, step: Any) -> None:
    loader = Loader(output, batch_size=1)
    for take in (loader.batch, loader.seek):
        with pytest.raises(UserError, match="step"):
            take(step)


@pytest.mark.medium
def test_loader_imports_no_torch_ray_or_yaml() -> None:
    program = "import sys, datapipe.loader; print(sorted({'torch', 'ray', 'ruamel', 'pandas'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_torch_dataset_without_torch_reports_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "datapipe.loader.torch", raising=False)
    with pytest.raises(ImportError, match=r"pip install datapipe\[torch\]"):
        importlib.import_module("datapipe.loader.torch")


PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")

def main():
    how, stored = sys.argv[1:]
    if how.startswith("dataloader"):
        from datapipe.loader.torch import dataloader
        batches = iter(dataloader(stored, batch_size=64, num_workers=int(how[-1])))
    else:
        from datapipe.loader import Loader
        loader = Loader(stored, batch_size=64, prefetch=0 if how == "no prefetch" else 8)
        batches = iter(loader) if how == "iter" else loader
    for number in range(10**9):
        next(batches)
        if number == 3:
            print("ready", flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"web": 200}, sequence_length=1024, rows_per_shard=100)


def check_interrupt(how: str, output: Path | str) -> None:
    """The program prints one traceback."""
    command = [sys.executable, "-c", PROGRAM, how, str(output)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it, too
        _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert errors.count("Traceback") == 1


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize("how", ["next", "iter", "no prefetch", "dataloader 0", "dataloader 2", "service"])
def test_interrupt_prints_one_traceback(stored: Path, tmp_path: Path, how: str) -> None:
    if how != "service":
        check_interrupt(how, stored)
        return
    with served(tmp_path, f"web={stored}", "--no-files") as server:
        check_interrupt("next", f"{server.location}/web")


@pytest.mark.medium
def test_interrupted_loader_goes_on_with_the_same_batch(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(builder: BatchBuilder, steps: object, ahead: object) -> None:
        raise KeyboardInterrupt

    loader, expected = Loader(stored, batch_size=8, prefetch=0), Loader(stored, batch_size=8)
    list(islice(loader, 3))
    with monkeypatch.context() as patch:
        patch.setattr(BatchBuilder, "build_many", interrupt)
        for take in (lambda: next(loader), lambda: next(iter(loader))):
            with pytest.raises(KeyboardInterrupt):
                take()
    assert next(loader)["input_ids"].tolist() == expected.batch(3)["input_ids"].tolist()
