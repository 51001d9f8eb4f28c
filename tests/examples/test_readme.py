"""The training examples of the README run as they stand there, in order, on an output that is where they say it is."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.needs("torch")

ROOT = Path(__file__).resolve().parents[2]


def recording_model() -> Any:
    """What the README calls `model`: takes tokens and labels, gives the loss, and keeps the tokens in `seen`."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Embedding(256, 8), torch.nn.Linear(8, 256))
            self.seen: list[np.ndarray] = []

        def forward(self, tokens: Any, labels: Any) -> Any:
            self.seen.append(tokens.numpy(force=True))
            return torch.nn.functional.cross_entropy(self.layers(tokens).flatten(0, 1), labels.flatten())

    return Model()


def python_blocks(heading: str) -> list[str]:
    """The Python under a heading of the README."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.S)


@pytest.mark.slow
def test_readme_trains_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_snapshot(tmp_path / "runs/quickstart", {"code": 70, "docs": 60}, sequence_length=32, vocab_size=256)
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    model = recording_model()
    names: dict[str, Any] = {"model": model}
    blocks = python_blocks("Into a training loop")
    for block in blocks:
        exec(compile(block.replace("9400", port), "README.md", "exec"), names)
        if "AdamW" in block:
            trained = len(model.seen)
            assert names["checkpoint"]["loader"]["step"] == trained
            expected = [names["loader"].batch(step)["input_ids"] for step in range(trained)]
            np.testing.assert_array_equal(np.stack(model.seen), np.stack(expected))
    assert trained == 20
    assert names["checkpoint"]["loader"]["step"] == 1
    for block in python_blocks("When a run changes on the way"):
        exec(compile(block, "README.md", "exec"), names)
        if "Mesh" not in block:
            assert names["loader"].step in (0, 1)
    assert names["seen"][0].step == 0
    assert next(iter(names["loader"]))["input_ids"].shape == (16, 8)
