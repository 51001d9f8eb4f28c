"""Training goes on while the corpus grows and processes die: what it was given follows from its last state alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from datapipe.loader import Loader
from tests.support import corpora, runs
from tests.support.cli_processes import run as run_process
from tests.support.cli_processes import start, wait_until
from tests.support.service import served

pytest.importorskip("torch")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TAIL = (
    "tokenizer: {train: {vocab_size: 400}}\npack: {sequence_length: 64}\n"
    "execution: {split_bytes: 16KiB, bucket_bytes: 64KiB, check_disk: false}\n"
)


def _add(folder: Path, number: int) -> None:
    corpora.write_jsonl(folder / f"in/{number:02}.jsonl", corpora.documents(number, 50))


class _Trainer:
    """The training loop, which is started again in other worlds."""

    def __init__(self, output: str, folder: Path) -> None:
        self.output, self.folder = output, folder
        folder.mkdir()
        self.process: subprocess.Popen | None = None

    def begin(self, world: int) -> None:
        command = [sys.executable, "-m", "tests.support.growing_trainer", self.output, str(self.folder), str(world)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def steps(self) -> list[dict]:
        path = self.folder / "steps.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []

    def wait_for(self, num_snapshots: int, more_steps: int) -> None:
        """Until it has trained on so many snapshots, and on some steps of the last."""
        assert self.process is not None

        def is_there() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.process.communicate()[0]
            names = [step["snapshot"] for step in self.steps()]
            return len(set(names)) >= num_snapshots and names.count(names[-1]) > more_steps

        wait_until(is_there, f"{num_snapshots} snapshots")

    def end(self, number: signal.Signals | None) -> None:
        """Kills it by a signal; without one, waits for its own end."""
        assert self.process is not None
        if number is not None:
            self.process.send_signal(number)
        said, _ = self.process.communicate(timeout=120)
        assert number is not None or self.process.returncode == 0, said


@pytest.mark.parametrize("over", ["files", "service"])
def test_training_across_published_snapshots_kills_and_worlds_is_what_its_state_tells(tmp_path: Path, over: str) -> None:
    """Three snapshots that `run --follow` publishes while it trains; killed twice; on two, three and one rank."""
    (tmp_path / "in").mkdir()
    _add(tmp_path, 0)
    path = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/in/*.jsonl\n", "stages: [dedup.exact]\n", TAIL)
    output = str(tmp_path / "out")
    assert run_process(["run", str(path), "--workers", "1"]).returncode == 0
    with ExitStack() as stack:
        follower = start(["run", str(path), "--workers", "1", "--follow", "0.2"])
        stack.callback(follower.communicate)
        stack.callback(os.killpg, follower.pid, signal.SIGKILL)
        url = output
        if over == "service":
            url = f"{stack.enter_context(served(tmp_path / 'server', f'web={output}', '--no-files')).location}/web"
        trainer = _Trainer(url, tmp_path / "trainer")
        for number, world in ((1, 2), (2, 3), (3, 1)):
            trainer.begin(world)
            trainer.wait_for(number, 3)
            _add(tmp_path, number)
            trainer.wait_for(number + 1, 7)
            if number < 3:
                trainer.end(signal.SIGKILL)
        (tmp_path / "trainer/stop").touch()
        trainer.end(None)
    told = trainer.steps()
    state = json.loads((tmp_path / "trainer/state.json").read_text())
    assert len({step["snapshot"] for step in told}) == 4
    assert {step["step"] for step in told} == set(range(state["step"]))
    by_step: dict[int, dict] = {}
    for step in told:  # steps since the last checkpoint were done twice, with the same loss
        assert by_step.setdefault(step["step"], step) == step
    _check_batches(output, state, by_step)


def _check_batches(output: str, state: dict, by_step: dict[int, dict]) -> None:
    from tests.support.growing_trainer import SIZE, digest

    again = Loader(output, snapshot=state["snapshot"], global_batch_size=SIZE)
    again.load_state_dict(state)
    for number, step in by_step.items():
        batch = again.batch(number)
        assert digest(batch["input_ids"], batch["labels"]) == step["digest"]
    again.close()
