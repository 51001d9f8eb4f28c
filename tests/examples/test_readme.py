"""The examples of the READMEs run as they stand there, in order."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.loader import Loader
from tests.support.cli_processes import DEADLINE_S, end, start
from tests.support.cli_processes import run as datapipe
from tests.support.snapshots import make_snapshot

ROOT = Path(__file__).resolve().parents[2]
LOADER = (ROOT / "datapipe/loader/README.md", ROOT / "datapipe/loader/parallel.md")
TEN_FILES, TRAINING = "Your own ten files to batches", "Into a training loop"


def blocks(language: str, heading: str, readme: str = "README.md") -> list[str]:
    """The code blocks of one language under a heading of a README."""
    section = (ROOT / readme).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.S)


def run_lines(block: str, folder: Path) -> list[str]:
    """What each `datapipe …` line of a shell block prints; of a page, its address, after it was opened."""
    printed = []
    for line in block.splitlines():
        arguments = line.partition("  #")[0].split()[1:]
        if arguments[0] == "browse":
            printed.append(open_page(arguments, folder))
            continue
        done = datapipe(arguments, cwd=folder)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        printed.append(done.stdout)
    return printed


def open_page(arguments: list[str], folder: Path) -> str:
    """The address that a server prints, once its page was read and the server ended by Ctrl-C."""
    server = start(arguments, cwd=folder, env=os.environ | {"BROWSER": "true"})  # a command that opens nothing
    assert server.stdout is not None
    try:
        address = server.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
            assert answer.status == 200
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=DEADLINE_S)
    finally:
        end(server)
    assert server.returncode == 128 + signal.SIGINT, errors
    return address


@pytest.mark.slow
def test_readme_takes_ten_files_to_batches_and_adds_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (write_files,) = blocks("python", TEN_FILES)
    exec(compile(write_files, "README.md", "exec"), {})
    assert len(list((tmp_path / "data").iterdir())) == 10

    (mixture,) = blocks("yaml", TEN_FILES)
    (tmp_path / "mine.yaml").write_text(mixture, encoding="utf-8")
    build, look = blocks("sh", TEN_FILES)
    _, printed = run_lines(build, tmp_path)
    assert "dropped: filter.gopher_quality 24" in printed
    (trial,) = re.findall(r"`(datapipe run mine.yaml --output runs/b [^`]*)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    run_lines(trial, tmp_path)
    page, full, compared, dropped, _ = run_lines(look, tmp_path)
    assert page.startswith("http://127.0.0.1:")
    assert "too_few_words" in full
    assert "runs/b" in compared
    assert "threshold 50" in dropped

    opened = re.search(r'`(Loader\("runs/mine"[^`]*\))`', (ROOT / "README.md").read_text(encoding="utf-8"))
    assert opened is not None
    batch = next(eval(opened[1], {"Loader": Loader}))
    assert (batch["input_ids"].shape, batch["labels"].dtype) == ((8, 512), np.int64)

    (stage,) = blocks("python", "A class", "mixtures/guides/own-stage.md")
    (tmp_path / "shouting.py").write_text(stage, encoding="utf-8")
    (stage,) = blocks("python", "Adding a stage", "stages/README.md")
    (tmp_path / "strip.py").write_text(stage, encoding="utf-8")
    added = ["strip:Strip", "shouting:Shouting: {max_capital_share: 0.1}", "dedup.exact"]
    mixture = mixture.replace("  - dedup.exact\n", "".join(f"  - {stage}\n" for stage in added))
    (tmp_path / "mine.yaml").write_text(mixture, encoding="utf-8")
    _, printed = run_lines(build, tmp_path)
    assert "shouting:Shouting" in printed
    _, full, *_ = run_lines(look, tmp_path)
    assert "shouting:Shouting:too_many_capitals" in full
    assert "strip:Strip" in full

    (encode,) = (block for block in blocks("python", "Encoding", "datapipe/tokens/README.md") if "Encoder" in block)
    names: dict[str, Any] = {}
    exec(compile(encode.replace("runs/quickstart", "runs/mine"), "datapipe/tokens/README.md", "exec"), names)
    assert names["offsets"].tolist()[::2] == [0, len(names["ids"])]


@pytest.mark.needs("torch")
@pytest.mark.slow
@pytest.mark.usefixtures("quickstart")
def test_loader_readme_runs_as_it_is_written() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    names: dict[str, Any] = {}
    text = "".join(path.read_text(encoding="utf-8") for path in LOADER)
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block.replace("9400", port), "loader", "exec"), names)
        if "load_state_dict" in block:
            assert names["loader"].step == names["state"]["step"] == 1
    key, seen = names["key"], names["seen"]
    assert (seen[0].step, len(key)) == (0, 32)
    assert next(iter(names["loader"]))["input_ids"].shape == (16, 8)


def make_model() -> Any:
    """What the READMEs call `model`: takes tokens and labels, returns the loss. It remembers the tokens in `seen`."""
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Embedding(256, 8), torch.nn.Linear(8, 256))
            self.seen: list[np.ndarray] = []

        def forward(self, tokens: Any, labels: Any) -> Any:
            self.seen.append(tokens.numpy(force=True))
            return torch.nn.functional.cross_entropy(self.layers(tokens).flatten(0, 1), labels.flatten())

    return Model()


@pytest.fixture
def quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a snapshot where the READMEs have it."""
    make_snapshot(tmp_path / "runs/quickstart", {"code": 70, "docs": 60}, sequence_length=32, vocab_size=256)
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("quickstart")
def test_readme_trains_as_it_is_written() -> None:
    model = make_model()
    names: dict[str, Any] = {"model": model}
    for block in blocks("python", TRAINING):
        exec(compile(block, "README.md", "exec"), names)
    assert names["state"]["step"] == 1
    assert names["checkpoint"]["loader"]["step"] == len(model.seen) == 20
    loader = Loader("runs/quickstart", batch_size=8)
    np.testing.assert_array_equal(np.stack(model.seen), [loader.batch(step)["input_ids"] for step in range(20)])
