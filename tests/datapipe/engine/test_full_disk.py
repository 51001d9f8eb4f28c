"""A run on a disk that is full: it reports that, gives back what failed attempts wrote, and goes on where room is made."""

from dataclasses import replace
from pathlib import Path

import pytest

from datapipe.engine import retries
from datapipe.engine.events import Event, Retried, UserMessage
from datapipe.errors import DatapipeError
from datapipe.records.names import ATTEMPTS
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.cli_processes import run as run_process
from tests.support.ledger_files import stored_text
from tests.support.small_disk import small_disk

pytestmark = pytest.mark.slow

ROOMY = 256 << 20
_TAIL = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 64}"


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    for number in range(4):
        corpora.write_jsonl(tmp_path / f"web/{number}.jsonl", corpora.documents(number, 400, exact=0, near=0))
    tail = f"{_TAIL}\nexecution: {{split_bytes: 64KiB, check_disk: false}}"
    return runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/web/*.jsonl\n", "stages: [normalize.unicode]", tail)


def test_full_disk_stops_the_run_with_what_is_free_and_the_same_command_goes_on(tmp_path, mixture, monkeypatch):
    monkeypatch.setattr(retries, "POLICY", replace(retries.POLICY, most_s=1.5))
    output, watcher = tmp_path / "disk/out", runs.Watcher()
    with small_disk(tmp_path / "disk", 512 << 10) as resize:
        with pytest.raises(DatapipeError, match=rf"{output}: the disk is full, [\d.]+ k?B free"):
            runs.run_mixture(mixture, output=output, watcher=watcher)
        told = [failure.message for failure in watcher.retries] + watcher.lines
        assert len(set(told)) == len(told) < 8
        root = Root(str(output))
        assert [path for path, _ in root.list_files(ATTEMPTS) if path not in stored_text(root)] == []
        resize(ROOMY)
        plain = runs.run_mixture(mixture, make_engine=runs.InProcess)
        assert runs.run_mixture(mixture, output=output).snapshot == plain.snapshot


def test_run_goes_on_by_itself_when_room_is_made(tmp_path, mixture):
    with small_disk(tmp_path / "disk", 512 << 10) as resize:

        class Frees(runs.Watcher):
            def __call__(self, event: Event) -> None:
                super().__call__(event)
                if isinstance(event, Retried | UserMessage):
                    resize(ROOMY)

        watcher = Frees()
        done = runs.run_mixture(mixture, output=tmp_path / "disk/out", watcher=watcher)
        assert watcher.retries or watcher.lines
        assert done.snapshot == runs.run_mixture(mixture, make_engine=runs.InProcess).snapshot


def test_command_on_a_disk_without_any_room_ends_in_plain_lines(tmp_path, mixture):
    disk = tmp_path / "disk"
    with small_disk(disk, 64 << 10):
        (disk / "filler").write_bytes(b"x" * (60 << 10))
        few = ["--set", "execution.max_infrastructure_retries=2"]
        done = run_process(["run", str(mixture), "--output", str(disk / "out"), *few])
    assert done.returncode == 1
    assert f"datapipe: {disk}/out" in done.stderr and "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr and "defect" not in done.stderr
