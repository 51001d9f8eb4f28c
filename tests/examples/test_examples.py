"""The examples train, and a resumed example has the losses of one that was not stopped."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.needs("torch")

EXAMPLES = Path(__file__).resolve().parent
STEPS, STOPPED_AT = 15, 5


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83}, vocab_size=256)


@pytest.mark.slow
def test_plain_loop_resumed_has_the_losses_of_one_that_was_not(output: Path, tmp_path: Path) -> None:
    from tests.examples.plain_loop import train

    whole = train(str(output), STEPS, tmp_path / "whole.pt")
    assert len(set(whole)) == STEPS
    assert train(str(output), STOPPED_AT, tmp_path / "parts.pt") == whole[:STOPPED_AT]
    assert train(str(output), STEPS, tmp_path / "parts.pt") == whole[STOPPED_AT:]


RANK = """
import runpy, sys
example, output, folder = sys.argv[1:]
for name, steps in (("whole", 15), ("parts", 5), ("parts", 15)):
    here = f"{folder}/{name}"
    sys.argv = [example, output, "--steps", str(steps), "--checkpoint", f"{here}.pt", "--init", f"file://{here}-{steps}"]
    runpy.run_path(example, run_name="__main__")
"""
"""Three runs of the example in one process, which has to import torch once."""


@pytest.mark.slow
def test_ddp_resumed_has_the_losses_of_one_that_was_not(output: Path, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(EXAMPLES.parents[1]), *sys.path])
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(EXAMPLES / "ddp.py"), str(output), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "RANK": str(rank), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    wholes = []
    for process in running:
        printed, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        whole, first, second = (ast.literal_eval(line) for line in printed.splitlines())
        assert (len(set(whole)), len(first)) == (STEPS, STOPPED_AT)
        assert first + second == whole
        wholes.append(whole)
    assert wholes[0] != wholes[1]  # each rank has its own rows


@pytest.mark.slow
@pytest.mark.needs("transformers", "accelerate")
@pytest.mark.filterwarnings("ignore")  # those of a library that is not ours
def test_hugging_face_trainer_resumed_has_the_losses_of_one_that_was_not(output: Path, tmp_path: Path) -> None:
    train = importlib.import_module("tests.examples.hf_trainer").train
    whole = train(str(output), STEPS, tmp_path / "whole")
    assert len(set(whole)) == STEPS
    assert train(str(output), STOPPED_AT, tmp_path / "parts") == whole[:STOPPED_AT]
    assert train(str(output), STEPS, tmp_path / "parts") == whole


@pytest.mark.slow
@pytest.mark.needs("lightning")
@pytest.mark.filterwarnings("ignore")  # those of a library that is not ours
def test_lightning_resumed_has_the_losses_of_one_that_was_not(output: Path, tmp_path: Path) -> None:
    train = importlib.import_module("tests.examples.lightning_module").train
    whole = train(str(output), STEPS, tmp_path / "whole.ckpt")
    assert len(set(whole)) == STEPS
    assert train(str(output), STOPPED_AT, tmp_path / "parts.ckpt") == whole[:STOPPED_AT]
    assert train(str(output), STEPS, tmp_path / "parts.ckpt") == whole[STOPPED_AT:]
