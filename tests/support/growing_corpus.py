"""A corpus that grows, a run that follows it, and a training loop that moves with it, each its own process."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from datapipe.loader import Loader
from tests.support import corpora, runs
from tests.support.cli_processes import end, wait_until
from tests.support.growing_trainer import SIZE, digest

_TAIL = (
    "tokenizer: {train: {vocab_size: 400}}\npack: {sequence_length: 64}\n"
    "execution: {split_bytes: 16KiB, bucket_bytes: 64KiB, check_disk: false}\n"
)


def write_mixture(folder: Path) -> Path:
    """A mixture over the files in FOLDER/in, of which there is one."""
    (folder / "in").mkdir(parents=True)
    add_file(folder, 0)
    return runs.write_mixture(folder, f"  web:\n    path: {folder}/in/*.jsonl\n", "stages: [dedup.exact]\n", _TAIL)


def add_file(folder: Path, number: int) -> None:
    corpora.write_jsonl(folder / f"in/{number:02}.jsonl", corpora.documents(number, 50))


class Trainer:
    """The training loop, which is started again in other worlds.

    Args:
        output: a folder or a URL of a service.
        folder: for its checkpoint, and a line for each step.
    """

    def __init__(self, output: str, folder: Path) -> None:
        self.output, self.folder = output, folder
        self.process: subprocess.Popen[str]
        folder.mkdir()

    def begin(self, world: int) -> None:
        command = [sys.executable, "-m", "tests.support.growing_trainer", self.output, str(self.folder), str(world)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def steps(self) -> list[dict[str, Any]]:
        path = self.folder / "steps.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []

    def wait_for(self, num_snapshots: int, more_steps: int) -> None:
        """Until it has trained on so many snapshots, and on some steps of the last."""

        def is_there() -> bool:
            assert self.process.poll() is None, self.process.communicate()[0]
            names = [step["snapshot"] for step in self.steps()]
            return len(set(names)) >= num_snapshots and names.count(names[-1]) > more_steps

        wait_until(is_there, f"{num_snapshots} snapshots")

    def kill(self) -> None:
        end(self.process)

    def end(self) -> None:
        """Lets it end by itself."""
        (self.folder / "stop").touch()
        said, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, said

    def check(self, output: str) -> list[dict[str, Any]]:
        """Checks every step that it has done against the batches that follow from its last state alone; returns the steps."""
        told = self.steps()
        state = json.loads((self.folder / "state.json").read_text())
        assert {step["step"] for step in told} == set(range(state["step"]))
        again = Loader(output, snapshot=state["snapshot"], global_batch_size=SIZE)
        again.load_state_dict(state)
        by_step: dict[int, dict[str, Any]] = {}
        for step in told:
            assert by_step.setdefault(step["step"], step) == step, "a step that was done twice differs"
        for number, step in by_step.items():
            batch = again.batch(number)
            assert digest(batch["input_ids"], batch["labels"]) == step["digest"], f"step {number}"
        again.close()
        return told
