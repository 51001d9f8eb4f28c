"""The guides run as they stand: every file that they name is written, and every command runs, in their order.

`NAME`:  ```yaml, ```python    a file of this name           ```sh    commands that run
                                                              ```      commands and output that do not
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_processes import DEADLINE_S
from tests.support.cli_processes import run as datapipe

GUIDES = Path(__file__).resolve().parents[2] / "mixtures/guides"
SHORTER = {"train.py": ["4", "8"]}  # the last steps of training, instead of those in the text
WITH_COMMANDS = sorted(path.name for path in GUIDES.glob("*.md") if "```sh\n" in path.read_text(encoding="utf-8"))
NEEDS = {"tutorial.md": pytest.mark.needs("torch")}


def blocks(guide: Path) -> Iterator[tuple[str, str, str]]:
    """(name of the file, language, text) of each block of code that has a language."""
    text = guide.read_text(encoding="utf-8")
    for found in re.finditer(r"(?:`([\w/-]+\.\w+)`[^`\n]*:\n\n)?```(\w*)\n(.*?)```", text, re.S):
        if found[2]:
            yield found[1] or "", found[2], found[3]


def run_line(line: str, folder: Path, lengths: dict[str, Iterator[str]]) -> None:
    program, *arguments = shlex.split(line.partition("  #")[0])
    if program == "datapipe":
        done = datapipe(arguments, cwd=folder)
    else:
        assert program == "python", line
        if arguments[0] in lengths:
            arguments[-1] = next(lengths[arguments[0]])
        command, options = [sys.executable, *arguments], {"capture_output": True, "text": True, "timeout": DEADLINE_S}
        done = subprocess.run(command, check=False, cwd=folder, **options)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS.get(name, ())) for name in WITH_COMMANDS])
def test_guide_runs_as_it_is_written(name: str, tmp_path: Path) -> None:
    lengths = {program: iter(steps) for program, steps in SHORTER.items()}
    for file, language, text in blocks(GUIDES / name):
        if file:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text, encoding="utf-8")
        elif language == "sh":
            for line in filter(None, text.splitlines()):
                run_line(line, tmp_path, lengths)
