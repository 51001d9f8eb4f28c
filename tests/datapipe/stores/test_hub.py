"""Data sets of the Hugging Face Hub as sources, from a hub on loopback."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.cli_processes import run as run_process
from tests.support.fake_hub import FakeHub, fake_hub

pytestmark = [pytest.mark.slow, pytest.mark.needs("huggingface_hub")]

_TOKEN = "hf_" + "Secret" * 5


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as started:
        yield started


def _parquet(texts: list[str]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), out)
    return out.getvalue()


def _lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def _run(hub: FakeHub, folder: Path, source: str, status: int = 0, **environment: str) -> str:
    mixture = folder / "mixture.yaml"
    mixture.write_text(
        f"name: hub\nseed: 1\noutput: {folder}/out\nsources:\n  web: {source}\nstages: []\ntokenizer: none\n"
        "documents: {format: parquet}\n"
    )
    ours = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home"), **environment}
    done = run_process(["run", str(mixture)], cwd=folder, env={**os.environ, **ours})
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def _texts(folder: Path) -> list[str]:
    snapshot = json.loads((folder / "out" / "snapshot.json").read_text())
    names = [entry["path"] for entry in snapshot["documents"]] if "documents" in snapshot else None
    paths = [folder / "out" / name for name in names] if names else (folder / "out").rglob("part-*.parquet")
    return sorted(text for path in paths for text in pq.read_table(path).column("text").to_pylist())


def test_hub_files_of_a_branch_are_read_at_one_commit(hub: FakeHub, tmp_path: Path) -> None:
    files = {"train/a.parquet": _parquet(["a1", "a2"]), "train/b.jsonl": _lines(["b"]), "train/no.parquet": _parquet(["no"])}
    commit = hub.commit(files)
    exclude = "exclude: 'hf://datasets/me/data@main/train/no*'"
    source = f"{{path: 'hf://datasets/me/data/train/*', {exclude}}}"
    _run(hub, tmp_path, source)
    assert _texts(tmp_path) == ["a1", "a2", "b"]
    read = [request for request in hub.requests if "/resolve/" in request]
    assert read
    assert all(f"/resolve/{commit}/" in request for request in read)


def test_hub_branch_that_moves_is_read_anew_and_a_commit_is_not(hub: FakeHub, tmp_path: Path) -> None:
    first = hub.commit({"a.jsonl": _lines(["old"])})
    _run(hub, tmp_path, "{path: 'hf://datasets/me/data@main/a.jsonl'}")
    assert _texts(tmp_path) == ["old"]
    hub.commit({"a.jsonl": _lines(["new"])})  # of the same size
    _run(hub, tmp_path, "{path: 'hf://datasets/me/data@main/a.jsonl'}")
    assert "new" in _texts(tmp_path)
    pinned = tmp_path / "pinned"
    pinned.mkdir()
    _run(hub, pinned, f"{{path: 'hf://datasets/me/data@{first}/*.jsonl'}}")
    assert _texts(pinned) == ["old"]


def test_hub_token_is_sent_and_never_printed_or_written(hub: FakeHub, tmp_path: Path) -> None:
    hub.token = _TOKEN
    hub.commit({"a.jsonl": _lines(["private"])})
    _run(hub, tmp_path, "{path: 'hf://datasets/me/data/*.jsonl'}", HF_TOKEN=_TOKEN)
    assert _texts(tmp_path) == ["private"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and _TOKEN.encode() in path.read_bytes()]
    wrong = _TOKEN[::-1]
    refused = tmp_path / "refused"
    refused.mkdir()
    printed = _run(hub, refused, "{path: 'hf://datasets/me/data/*.jsonl'}", 2, HF_TOKEN=wrong)
    assert wrong not in printed
    assert printed.count("\n") == 1
    assert "hf://datasets/me/data" in printed


def test_hub_that_may_not_be_asked_is_told_with_the_way_out(hub: FakeHub, tmp_path: Path) -> None:
    printed = _run(hub, tmp_path, "{path: 'hf://datasets/me/data/*.jsonl'}", 2, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE" in printed
    assert printed.count("\n") == 1
    assert hub.requests == []


@pytest.mark.parametrize("url", ["hf://datasets/me/none/*.jsonl", "hf://datasets/me/data@nobranch/*.jsonl"])
def test_hub_without_the_data_set_or_revision_is_told(hub: FakeHub, tmp_path: Path, url: str) -> None:
    hub.commit({"a.jsonl": _lines(["a"])})
    printed = _run(hub, tmp_path, f"{{path: '{url}'}}", 2)
    assert printed.count("\n") == 1
    assert url.rpartition("/")[0] in printed
