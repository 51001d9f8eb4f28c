"""A run on a disk that is full: it says so, gives back what failed attempts wrote, and goes on where room is made."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from pathlib import Path

import pytest

from datapipe.engine import patience
from datapipe.errors import DatapipeError
from datapipe.ledger.names import ATTEMPTS
from datapipe.outages import OutageError
from datapipe.plan.work import MapTask
from datapipe.stage.base import Map
from datapipe.storage import Root
from datapipe.tasks import run_task as runner
from tests.support import corpora, runs
from tests.support.cli_processes import run as run_process
from tests.support.ledger_files import stored_text
from tests.support.small_disk import small_disk

ROOMY = 256 << 20
_TAIL = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 64}"


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    for number in range(4):
        corpora.write_jsonl(tmp_path / f"web/{number}.jsonl", corpora.documents(number, 400, exact=0, near=0))
    tail = f"{_TAIL}\nexecution: {{split_bytes: 64KiB, check_disk: false}}"
    return runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/web/*.jsonl\n", "stages: [normalize.unicode]", tail)


def _files_of_uncommitted_attempts(root: Root) -> list[str]:
    committed = stored_text(root)
    return [path for path, _ in root.list_files(ATTEMPTS) if path not in committed]


@pytest.mark.slow
def test_full_disk_stops_the_run_with_what_is_free_and_the_same_command_goes_on(tmp_path, mixture, monkeypatch):
    monkeypatch.setattr(patience, "PATIENCE_S", 1.5)
    output = tmp_path / "disk/out"
    with small_disk(tmp_path / "disk", 512 << 10) as resize:
        watcher = runs.Watcher()
        with pytest.raises(DatapipeError, match=rf"{output}: the disk is full, [\d.]+ k?B free \(\d attempts in") as stopped:
            runs.run_mixture(mixture, output=output, watcher=watcher)
        assert "run the same command again" in str(stopped.value)
        told = [failure.message for _, failure in watcher.retries] + watcher.lines
        assert len(set(told)) == len(told) < 8
        assert re.fullmatch(
            rf"{output}: the disk is full, [\d.]+ k?B free\. Attempt 1 of at most \d failed; the next is in 0\.2 s\. "
            r"The run stops in \d s unless space is freed",
            told[0],
        )
        assert _files_of_uncommitted_attempts(Root(str(output))) == []
        resize(ROOMY)
        assert runs.run_mixture(mixture, output=output).snapshot == runs.run_mixture(mixture).snapshot


@pytest.mark.slow
def test_run_goes_on_by_itself_when_room_is_made(tmp_path, mixture):
    output = tmp_path / "disk/out"
    with small_disk(tmp_path / "disk", 512 << 10) as resize:

        class Frees(runs.Watcher):
            def retried(self, task, failure) -> None:
                super().retried(task, failure)
                resize(ROOMY)

            def say(self, line: str) -> None:
                super().say(line)
                resize(ROOMY)

        watcher = Frees()
        done = runs.run_mixture(mixture, output=output, watcher=watcher)
        assert watcher.retries or watcher.lines
        assert done.snapshot == runs.run_mixture(mixture).snapshot


@pytest.mark.slow
def test_command_on_a_disk_without_any_room_ends_in_plain_lines(tmp_path, mixture):
    disk = tmp_path / "disk"
    with small_disk(disk, 64 << 10):
        (disk / "filler").write_bytes(b"x" * (60 << 10))
        done = run_process(
            ["run", str(mixture), "--output", str(disk / "out"), "--set", "execution.max_infrastructure_retries=2"]
        )
    assert done.returncode == 1
    assert f"datapipe: {disk}/out" in done.stderr
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert "defect" not in done.stderr


class _FullDisk(Map):
    """Raises as a write to a full disk does, once documents are written."""

    def process(self, batch):
        if "doc-3-0" in batch.record.column("id").to_pylist():
            raise OSError(errno.ENOSPC, "No space left on device")
        return {}


@pytest.mark.medium
def test_failed_attempt_deletes_what_it_has_written(tmp_path, mixture, monkeypatch):
    monkeypatch.setattr("datapipe.tasks.read_batches.TARGET_BATCH_BYTES", 1)  # a batch is written for each file
    left: list[list[str]] = []

    class Engine(runs.InProcess):
        def next_attempt(self, timeout_s):
            task, attempt = self.tasks.pop(0)
            assert isinstance(task, MapTask)
            bound = replace(task.stages[0], stage=_FullDisk(), digest=attempt)
            failing = replace(task, stages=(bound,))
            with pytest.raises(OutageError, match="the disk is full"):
                runner.run_task(failing, self.root, attempt)
            left.append([path for path, _ in self.root.list_files(ATTEMPTS)])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.run_mixture(mixture, make_engine=Engine, overrides=["execution.split_bytes=64MiB"])
    assert left == [[]]
