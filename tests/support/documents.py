"""Runs a document: every file that it names is written, and every command runs, in their order.

`NAME`:  ```yaml, ```python    a file of this name
         ```sh                 commands; those with ` &` run beside the next ones, and a server until the document ends
         ```                   after commands: lines that they print, in which numbers may differ and … leaves something out
         ```python             a program, which shares its names with the other programs of the document
         ```text               neither commands nor what they print
"""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.chat_server import chat_server
from tests.support.cli_processes import DEADLINE_S, terminate, wait_until
from tests.support.fake_hub import REPOSITORY, fake_hub
from tests.support.object_store import CREDENTIALS, object_store

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("datapipe", "stages", "mixtures", "tests", "deploy", ".ci", ".github")
DOCUMENTS = sorted(
    [ROOT / "README.md", *(path for room in ROOMS for path in (ROOT / room).rglob("*.md"))],
    key=lambda path: path.relative_to(ROOT).as_posix(),
)


class Elsewhere(NamedTuple):
    """Commands that do not run with their document: why, and what runs instead. `place` does it, and has the text `there`."""

    command: str
    reason: str
    runs: str
    place: str
    there: str


_INDEX = "needs a package index"
ELSEWHERE = (
    Elsewhere(r"pip install .* && (datapipe|pytest) .*", _INDEX, "as it stands", ".ci/environment", "readme_command"),
    Elsewhere(r"pip install --no-deps .*", _INDEX, "such a client", "tests/datapipe/service/test_serve.py", "--no-deps"),
    Elsewhere(r"pip install .*", _INDEX, "the locked versions alone", ".ci/environment", "requirements-test"),
    Elsewhere(r"python3?(\.11)? -m venv .*", _INDEX, "the same", ".ci/environment", "-m venv"),
    Elsewhere(r"\.ci/versions .*", _INDEX, "as it stands", ".ci/full", ".ci/versions pyarrow==26.0.0"),
    Elsewhere(r"prometheus .*", "needs Prometheus", "as it stands", "tests/deploy/test_prometheus.py", "prometheus --config"),
    Elsewhere(r"ruff check .*", "takes minutes", "the same, and nothing is rewritten", ".ci/environment", "lint-imports"),
    Elsewhere(r".* --budget 600 .*", "takes ten minutes", "the same, with another seed", ".ci/full", "--budget 600"),
)

PROGRAMS = r"datapipe|python|pytest|openssl|printf|curl|ray|export"
"""What a line of a document begins with to run here."""

PROGRAMS_HERE = {
    "datapipe": """-c 'from datapipe.cli.main import main; main()' "$@\"""",
    "python": '"$@"',
    "pytest": '-m pytest "$@" --collect-only -n 0 -p no:cacheprovider',
}
"""Programs of this interpreter. Tests are found, and not run."""

SERVERS = (["datapipe", "browse"], ["datapipe", "serve"], ["ray", "start"])
PORTS = r"(?<=[:= ])(?:8815|8816|9400|8080|8000|6379)\b"


def newest(folder: Path) -> str:
    return json.loads((folder / "runs/web-and-code/snapshot.json").read_bytes())["fingerprint"][:6]


def digest(folder: Path) -> str:
    return f"sha256: {hashlib.sha256((folder / 'token').read_bytes().strip()).hexdigest()}"


STAND_INS: dict[str, Callable[[Path], str]] = {
    "a:8815,b:8815": lambda folder: "127.0.0.1:8815",
    "HEAD:6379": lambda folder: "127.0.0.1:6379",
    "--head": lambda folder: "--head --port=6379",
    "3f0c…": lambda folder: "3f0c" * 16,
    "3f2a81": newest,
    "sha256: …": digest,
    "--only kill,flip": lambda folder: "--only flip --budget 1",
    "peers --against": lambda folder: "peers --figures tests/benchmarks/peers.json --against",  # measures nothing
}
"""What a reader has in the place of a word."""


class Block(NamedTuple):
    """A block of code: the name of its file, its language, and its text."""

    file: str
    language: str
    text: str


def blocks(text: str) -> list[Block]:
    """The blocks of a document. A name begins the line before its file, or ends it."""
    name = r"`([\w/-]+\.(?:py|yaml))`"
    found = re.finditer(rf"(?:(?:^{name}[^`\n]*|{name}):\n+)?^( *)```(\w*)\n(.*?)^ *```$", text, re.S | re.M)
    named = ((each, (each[1] or each[2] or "") if each[4] in ("yaml", "python") else "") for each in found)
    return [Block(file, each[4], re.sub(rf"^{each[3]}", "", each[5], flags=re.M)) for each, file in named]


def commands(block: Block) -> list[str]:
    return [line for line in block.text.replace("\\\n", " ").splitlines() if line] if block.language == "sh" else []


def place_of(command: str) -> Elsewhere | None:
    return next((each for each in ELSEWHERE if re.fullmatch(each.command, command)), None)


def masked(text: str) -> str:
    """A text without numbers, digests, times, lines of tables and breaks of lines."""
    text = re.sub(r"[0-9a-f]*[0-9][0-9a-f.,]*", "0", re.sub(r"[─━│┃┏┓└┘┡┩╇┳┴╋┼╈]+", " ", text))
    return " ".join(text.split())


class Shell:
    """Runs commands in a folder. Servers, and commands with ` &`, end with the document."""

    def __init__(self, folder: Path, environment: dict[str, str], exits: ExitStack) -> None:
        self.folder, self.exits = folder, exits
        self.ports: dict[str, str] = {}
        self.is_followed, self.num_snapshots = False, 0
        self.server: subprocess.Popen[str] | None = None
        programs = folder / ".bin"
        programs.mkdir()
        for name, code in PROGRAMS_HERE.items():
            (programs / name).write_text(f"#!/bin/sh\nexec {sys.executable} {code}\n")
            (programs / name).chmod(stat.S_IRWXU)
        scripts = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = environment | {"PATH": scripts, "BROWSER": "true"}

    def filled(self, text: str) -> str:
        """A text with the ports and names of this machine."""
        for word, stands in STAND_INS.items():
            text = text.replace(word, stands(self.folder)) if word in text else text
        return re.sub(PORTS, lambda found: self.port(found[0]), text)

    def port(self, written: str) -> str:
        """The free port in the place of one in the text."""
        if written not in self.ports:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.ports[written] = str(free.getsockname()[1])
        return self.ports[written]

    def run(self, line: str) -> str:
        """Runs a line; returns what it prints."""
        line = self.filled(line)
        words = shlex.split(line, comments=True)
        if words[0] == "export":
            self.environment |= dict(word.split("=", 1) for word in words[1:])
            return ""
        if words[-1] == "&" or words[:2] in SERVERS:
            return self._beside(words)
        if self.is_followed and words[1] == "snapshots":
            wait_until(lambda: self._count(words[2]) > self.num_snapshots, f"a snapshot more: {line}")
            self.num_snapshots = self._count(words[2])
        options = {"cwd": self.folder, "env": self.environment, "text": True, "timeout": DEADLINE_S}
        primary, terminal = pty.openpty()
        os.write(primary, b"y\n")  # to whatever a command asks
        try:
            bash = ["bash", "-euo", "pipefail", "-c", line]
            done = subprocess.run(bash, stdin=terminal, capture_output=True, check=False, **options)
        finally:
            os.close(primary)
            os.close(terminal)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _beside(self, words: list[str]) -> str:
        """Starts a command; returns the first line that it prints. A page is opened, and its server ended by Ctrl-C."""
        words = words[:-1] if words[-1] == "&" else words
        if words[1] == "serve" and self.server:
            terminate(self.server)
        if words[1] == "serve":
            words += [] if "--port" in words else ["--port", self.port("8815")]
        if words[0] == "ray":
            words += ["--block", "--disable-usage-stats", "--num-cpus=1", "--object-store-memory=80000000"]
            self.environment["RAY_ADDRESS"] = f"127.0.0.1:{self.port('6379')}"
        options: dict[str, Any] = {"cwd": self.folder, "env": self.environment, "text": True, "start_new_session": True}
        with (self.folder / f".{words[1]}.log").open("a") as log:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, **options)
        self.exits.callback(process.communicate)
        self.exits.callback(terminate, process)
        if words[1] == "serve":
            self.server = process
        self.is_followed |= "--follow" in words
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, f"{words}\n{Path(log.name).read_text()}"
        if words[0] == "ray":
            assert any("Ray runtime started" in printed for printed in process.stdout), words
        if words[1] == "browse":
            with urllib.request.urlopen(first.strip(), timeout=DEADLINE_S) as answer:
                assert answer.status == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 128 + signal.SIGINT
        return first

    def _count(self, output: str) -> int:
        """How many snapshots an output has."""
        return len(list((self.folder / output / "snapshots").glob("*/publication.json")))


def run_document(document: Path, folder: Path, given: dict[str, Any]) -> Iterator[str]:
    """Writes the files of a document into a folder, and runs its commands and programs there; yields each.

    Args:
        given: names that its programs use.
    """
    text, environment = document.read_text(encoding="utf-8"), dict(os.environ)
    with ExitStack() as exits:
        if "s3://my-bucket" in text:
            endpoint = exits.enter_context(object_store("my-bucket")).partition("=")[2].partition("&")[0]
            environment |= {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}
        if f"hf://datasets/{REPOSITORY}" in text:
            hub = exits.enter_context(fake_hub())
            environment |= {
                "HF_ENDPOINT": hub.url,
                "HF_HOME": str(folder / ".hf"),
                "HF_HUB_DISABLE_XET": "1",
                "HF_TOKEN": "hf_x",
            }
        shell, printed = Shell(folder, environment, exits), ""
        if "127.0.0.1:8000" in text:
            exits.enter_context(chat_server(int(shell.port("8000"))))
        exits.enter_context(chdir(folder))
        names, before = given | {"__name__": "document"}, ""
        for block in blocks(text):
            if block.file:
                assert not Path(block.file).is_symlink(), block.file
                Path(block.file).parent.mkdir(parents=True, exist_ok=True)
                Path(block.file).write_text(shell.filled(block.text), encoding="utf-8")
            elif block.language == "sh":
                printed = ""
                for command in commands(block):
                    if place_of(command) is None:
                        printed += shell.run(command)
                        yield command
            elif block.language == "python":
                exec(compile(shell.filled(block.text), document, "exec"), names)
                yield block.text
            elif not block.language and before == "sh":
                shown = [masked(part) for line in block.text.splitlines() for part in line.split("…")]
                missing = [part for part in shown if part not in masked(printed)]
                assert not missing, f"{missing} in\n{printed}"
            before = block.language or before
