"""Ctrl-C while a program waits for a batch: its own traceback, with one line of the loader, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from datapipe.loader import Loader
from datapipe.loader.batches import BatchBuilder
from tests.support.service import served
from tests.support.snapshots import make_snapshot

PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")

def main():
    how, output = sys.argv[1:]
    if how.startswith("dataloader"):
        from datapipe.loader.torch import dataloader
        batches = iter(dataloader(output, batch_size=64, num_workers=int(how[-1])))
    else:
        from datapipe.loader import Loader
        loader = Loader(output, batch_size=64, prefetch=0 if how == "no prefetch" else 8)
        batches = iter(loader) if how == "iter" else loader
    for number in range(10**9):
        next(batches)
        if number == 3:
            print("ready", flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"web": 200}, sequence_length=1024, rows_per_shard=100)


def check_interrupt(how: str, output: Path | str) -> None:
    """The program prints its own traceback, with at most one line of the loader."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how, str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[3]), *sys.path])},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it, too
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert errors.count("Traceback") == 1
    assert errors.count("datapipe/loader/") <= 1  # none where it came between two batches


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize("how", ["next", "iter", "no prefetch", "dataloader 0", "dataloader 2"])
def test_interrupt_prints_one_line_of_the_loader(output: Path, how: str) -> None:
    check_interrupt(how, output)


@pytest.mark.slow
def test_interrupt_of_a_loader_of_a_service_prints_one_line_of_it(output: Path, tmp_path: Path) -> None:
    with served(tmp_path, f"web={output}", "--no-files") as server:
        check_interrupt("next", f"{server.location}/web")


def test_interrupted_loader_goes_on_with_the_same_batch(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, expected = Loader(output, batch_size=8, prefetch=0), Loader(output, batch_size=8)
    list(islice(loader, 3))
    with monkeypatch.context() as patch:
        patch.setattr(BatchBuilder, "build_many", _interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            next(loader)
        assert [entry.name for entry in caught.traceback][1:] == ["__next__"]
        with pytest.raises(KeyboardInterrupt) as caught:
            next(iter(loader))
        assert [entry.name for entry in caught.traceback][1:] == ["__next__"]
    assert next(loader)["input_ids"].tolist() == expected.batch(3)["input_ids"].tolist()


def _interrupt(builder: BatchBuilder, steps: object) -> None:
    raise KeyboardInterrupt
