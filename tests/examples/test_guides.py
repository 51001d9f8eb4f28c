"""The guides run as they stand: every file that they name is written, and every command runs, in their order.

`NAME`:  ```yaml, ```python    a file of this name           ```sh    commands that run; with ` &` beside the next ones
                                                              ```      commands and output that do not
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cli_processes import DEADLINE_S, end, start, wait_until
from tests.support.cli_processes import run as datapipe
from tests.support.object_store import CREDENTIALS, object_store

GUIDES = Path(__file__).resolve().parents[2] / "mixtures/guides"
SHORTER = {"train.py": ["4", "8"]}  # the last steps of training, instead of those in the text
WITH_COMMANDS = sorted(path.name for path in GUIDES.glob("*.md") if "```sh\n" in path.read_text(encoding="utf-8"))
NEEDS = {
    "cluster.md": (pytest.mark.ray, pytest.mark.needs("ray", "moto")),
    "mixture-search.md": pytest.mark.needs("sklearn"),
    "trained-filters.md": pytest.mark.needs("sklearn"),
    "trainers.md": pytest.mark.needs("torch"),
    "tutorial.md": pytest.mark.needs("torch"),
    "web-crawl.md": pytest.mark.needs("resiliparse", "trafilatura"),
}


def blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """(name of the file, language, text) of each block of code that has a language."""
    for found in re.finditer(r"(?:`([\w/-]+\.\w+)`[^`\n]*:\n\n)?```(\w*)\n(.*?)```", text, re.S):
        if found[2]:
            yield found[1] or "", found[2], found[3]


class Shell:
    """Runs the commands of a guide in a folder. Those with ` &` are ended with the guide."""

    def __init__(self, folder: Path, environment: dict[str, str], exits: ExitStack) -> None:
        self.folder, self.exits, self.environment = folder, exits, environment
        self.lengths = {program: iter(steps) for program, steps in SHORTER.items()}
        self.is_followed, self.num_snapshots = False, 0

    def run(self, line: str) -> str:
        """Runs a line; returns what it prints."""
        program, *arguments = shlex.split(line.partition("  #")[0])
        options = {"cwd": self.folder, "env": self.environment}
        if arguments[-1:] == ["&"]:
            process = start(arguments[:-1], **options)
            self.exits.callback(end, process)
            self.is_followed = "--follow" in arguments
            assert process.stdout is not None
            return process.stdout.readline()
        if self.is_followed and arguments[0] == "snapshots":
            wait_until(lambda: self._count(arguments[1]) > self.num_snapshots, f"a snapshot more: {line}")
            self.num_snapshots = self._count(arguments[1])
        if program == "datapipe":
            done = datapipe(arguments, **options)
        else:
            assert program == "python", line
            if arguments[0] in self.lengths:
                arguments[-1] = next(self.lengths[arguments[0]])
            options |= {"capture_output": True, "text": True, "timeout": DEADLINE_S}
            done = subprocess.run([sys.executable, *arguments], check=False, **options)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _count(self, output: str) -> int:
        """How many snapshots an output has."""
        return len(list((self.folder / output / "snapshots").glob("*/publication.json")))


def run_guide(name: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Writes the files of a guide, and runs its commands; yields each with what it printed."""
    with ExitStack() as exits:
        text, environment = (GUIDES / name).read_text(encoding="utf-8"), dict(os.environ)
        if "s3://" in text:
            endpoint = exits.enter_context(object_store("my-bucket")).partition("=")[2].partition("&")[0]
            environment |= {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}
        with socket.create_server(("127.0.0.1", 0)) as free:
            text = text.replace("8815", str(free.getsockname()[1]))
        shell = Shell(folder, environment, exits)
        for file, language, block in blocks(text):
            if file:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_text(block, encoding="utf-8")
            elif language == "sh":
                for line in filter(None, block.splitlines()):
                    yield line, shell.run(line)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS.get(name, ())) for name in WITH_COMMANDS])
def test_guide_runs_as_it_is_written(name: str, tmp_path: Path) -> None:
    assert list(run_guide(name, tmp_path))
