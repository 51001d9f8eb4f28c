"""The Python of datapipe/loader/README.md runs as it is written, in order, on an output at the path that it names."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.snapshots import make_snapshot

README = Path(__file__).resolve().parents[2] / "datapipe/loader/README.md"


@pytest.mark.needs("torch")
@pytest.mark.slow
def test_loader_readme_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_snapshot(tmp_path / "runs/quickstart", {"code": 70, "docs": 60}, sequence_length=32, vocab_size=256)
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S):
        exec(compile(block.replace("9400", port), str(README), "exec"), names)
        if "load_state_dict" in block:
            assert names["loader"].step == names["state"]["step"] == 1
    key, seen = names["key"], names["seen"]
    assert (seen[0].step, len(key)) == (0, 32)
    assert next(iter(names["loader"]))["input_ids"].shape == (16, 8)
