"""What installed code reaches is kept on disk, and is never that of other code."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from datapipe import machine_cache
from datapipe.source_code import installed
from datapipe.source_code.installed import reached_by_names
from datapipe.source_code.reach import Reached

ROOT = Path(__file__).resolve().parents[3]
QUESTION = ("datapipe.tasks.pack:run_pack",)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _forget()
    yield tmp_path / "datapipe" / "source_code"
    _forget()


def _forget() -> None:
    reached_by_names.cache_clear()
    installed.source_digest.cache_clear()


def _answers(kept: Path) -> list[Path]:
    return sorted(kept.glob("*/*.bin"))


def _ask_again() -> Reached:
    _forget()
    return reached_by_names(QUESTION)


@pytest.mark.medium
def test_answer_is_kept_and_read_without_an_analysis(kept: Path, monkeypatch: pytest.MonkeyPatch):
    first = reached_by_names(QUESTION)
    (path,) = _answers(kept)
    content = path.read_bytes()
    monkeypatch.setattr(installed, "reach", None)
    assert _ask_again() == first
    assert "datapipe.tasks.pack:run_pack" in first.names
    assert first.kernels < first.names
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept.parents[1]))
    path.write_bytes(content[:60] + bytes([content[60] ^ 1]) + content[61:])
    assert _ask_again() == first
    assert path.read_bytes() == content
    question = ("datapipe.tasks.map:run_map",)
    assert reached_by_names(question, ("words",)).names > reached_by_names(question).names
    assert len(_answers(kept)) == 3


@pytest.mark.medium
def test_cache_that_cannot_be_written_is_done_without(kept: Path):
    kept.parent.parent.joinpath("datapipe").write_text("a file where the folder should be")
    assert reached_by_names(QUESTION).names


@pytest.mark.slow
def test_edit_of_any_file_asks_again_and_changes_what_it_must(tmp_path: Path):
    for package in ("datapipe", "stages"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))

    def digest() -> str:
        code = f"from datapipe.source_code.installed import reached_by_names as r; print(r({QUESTION!r}).digest)"
        environment = {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    before = digest()
    pack = tmp_path / "datapipe/tasks/pack.py"
    text = pack.read_text()
    pack.write_text(f"# a comment\n{text}")
    assert digest() == before
    pack.write_text(text.replace("def run_pack(", "def run_pack(unused=1, *, ", 1))
    assert digest() != before
    pack.write_text(text)
    assert digest() == before
    assert len(list((tmp_path / "cache/datapipe/source_code").glob("*"))) == 3


def test_unused_files_are_deleted_and_used_ones_marked(tmp_path: Path):
    path = tmp_path / "answer.bin"
    machine_cache.write_checked(path, b"data")
    stat = path.stat()
    machine_cache.remove_older(path, stat.st_mtime - 1)
    assert machine_cache.read_checked(path) == b"data"
    machine_cache.remove_older(path, stat.st_mtime + 1)
    assert machine_cache.read_checked(path) is None
    assert list(tmp_path.iterdir()) == []
