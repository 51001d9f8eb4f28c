"""The history of an output: its last run, as `inspect` reads it, and runs of an earlier version of datapipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datapipe.engine.history import add_node_hours, last_limit, node_hours, read_history, read_mixture
from datapipe.errors import UserError
from datapipe.ledger.names import CLUSTER, LEDGER, RUN
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root
from tests.support import corpora, runs
from tests.support.ledger_files import stored_records

_TAIL = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 64}"


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    corpora.write_jsonl(tmp_path / "web.jsonl", corpora.documents(1, 30))
    return runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web.jsonl}}", "stages: [filter.length]", _TAIL)


def _as_version_1(root: Root) -> None:
    """work/ as the first version left it: no version in run.json, records of version 1."""
    run = json.loads(root.read_bytes(RUN))
    del run["version"]
    root.write_atomic(RUN, json.dumps(run).encode())
    for fingerprint in stored_records(root.url):
        root.write_atomic(f"{LEDGER}/{fingerprint}.json", b'{"checksum": ""}\n{"version": 1}\n')
    for path, _ in root.list_files(LEDGER):
        if path.endswith(".jsonl"):
            root.delete(path)


@pytest.mark.medium
def test_history_has_the_steps_records_and_files_of_the_last_run(mixture: Path):
    finished = runs.run_mixture(mixture, limit=20, make_engine=runs.InProcess)
    root = Root(finished.mixture.output)
    history = read_history(root)
    assert [(step.id, step.records) for step in history.steps] == [(step.id, step.records) for step in finished.plan.steps]
    assert [(source, file.path) for source, file, _ in history.files.values()] == [("web", "web.jsonl")]
    assert last_limit(root) == 20


def test_hours_of_nodes_are_summed_over_runs_and_a_damaged_file_counts_as_none(tmp_path: Path):
    root = Root(str(tmp_path))
    assert node_hours(root) == 0
    add_node_hours(root, 1.5)
    add_node_hours(root, 0.25)
    assert node_hours(root) == 1.75
    (tmp_path / CLUSTER).write_text('{"node_hours": null}')
    assert node_hours(root) == 0


def test_mixture_of_an_output_that_is_damaged_is_named_where_it_is(tmp_path: Path):
    (tmp_path / "mixture.yaml").write_text("name: [damaged\n")
    with pytest.raises(UserError, match=rf"^{tmp_path}/mixture.yaml:2: "):
        read_mixture(Root(str(tmp_path)))
    with pytest.raises(UserError):  # there was no run
        read_history(Root(str(tmp_path)))


@pytest.mark.medium
def test_output_of_the_version_before_keeps_its_snapshot_and_every_task_runs_again(mixture: Path):
    before = runs.run_mixture(mixture, make_engine=runs.InProcess)
    root = Root(before.mixture.output)
    _as_version_1(root)
    with pytest.raises(UserError, match="version 1"):
        read_history(root)
    assert verify_snapshot(root, read_snapshot(root)) == []
    again = runs.run_mixture(mixture, make_engine=runs.InProcess)
    assert again.watcher.steps == before.watcher.steps
    assert any("another version of datapipe" in line for line in again.watcher.lines)
    assert again.checksums == before.checksums
