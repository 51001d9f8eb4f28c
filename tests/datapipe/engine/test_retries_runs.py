"""Whole runs with a stage that crashes or stalls its worker: the document is named, and the run ends or goes on without it."""

from dataclasses import replace

import pytest

from datapipe.engine import driver as driver_module
from datapipe.engine import retries as retries_module
from datapipe.engine.protocol import Message
from datapipe.engine.workers import process as process_module
from datapipe.errors import DatapipeError
from datapipe.explore.documents import Inspector
from tests.support import hostile_stages, runs

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _stage(tmp_path, monkeypatch):
    hostile_stages.write_module(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(retries_module, "POLICY", replace(retries_module.POLICY, first_s=0.0))


@pytest.mark.parametrize(
    ("word", "causes"), [("SEGFAULT", ["SIGSEGV"] * 2), ("KILLS-ITSELF", ["SIGKILL"] * 3), ("TERMINATES", ["SIGTERM"] * 3)]
)
def test_document_that_ends_its_worker_is_named_with_its_stage_and_a_traceback(tmp_path, word, causes):
    """After the batch of a crash, or after two kills on a batch, the document comes alone; one kill of it may be by chance."""
    mixture, watcher = hostile_stages.write_mixture(tmp_path, {17: word}), runs.Watcher()
    with pytest.raises(DatapipeError, match=rf"doc-5-17 \(\w+/web\.jsonl:\d+\) crashes hostile_\w+:Hostile: {causes[0]}"):
        runs.run_mixture(mixture, watcher=watcher)
    assert [failure.cause for failure in watcher.retries] == causes
    if word == "SEGFAULT":
        failure = (tmp_path / "out/work/failure.txt").read_text()
        assert "doc-5-17" in failure and "in process" in failure


def test_crashes_with_quarantine_cost_their_documents_alone_as_if_they_had_raised(tmp_path):
    marks = {3: "SEGFAULT", 18: "RAISE-IT", 59: "SEGFAULT"}  # of one length, so that all positions are the same
    mixture, option = hostile_stages.write_mixture(tmp_path, marks), "execution.on_crash=quarantine"
    crashed = [runs.run_mixture(mixture, output=tmp_path / name, overrides=[option]) for name in ("one", "two")]
    raising = hostile_stages.write_mixture(tmp_path, dict.fromkeys(marks, "RAISE-IT"))
    raised = runs.run_mixture(raising, output=tmp_path / "raised", make_engine=runs.InProcess)
    assert crashed[0].snapshot == crashed[1].snapshot
    assert crashed[0].checksums == raised.checksums
    assert crashed[0].report["total"]["documents"]["quarantined"] == len(marks)
    found = Inspector.open(str(tmp_path / "one")).find(outcome="quarantined", count=100)
    assert sorted("SIGSEGV" in document["error"] for document in found) == [False, True, True]


def test_task_that_takes_more_memory_than_it_may_runs_with_a_smaller_batch_to_the_same_bytes(tmp_path, monkeypatch):
    mixture = hostile_stages.write_mixture(tmp_path, {17: "GREEDY"})
    plain = runs.run_mixture(mixture, output=tmp_path / "plain", make_engine=runs.InProcess)
    monkeypatch.setattr("datapipe.engine.attempts.LEAST_S", float("inf"))  # no second attempt on a busy machine
    monkeypatch.setenv("GREEDY", "1")
    options, watcher = ["execution.memory=700MB", "execution.max_retries=0"], runs.Watcher()
    halved = runs.run_mixture(mixture, output=tmp_path / "halved", overrides=options, watcher=watcher)
    told = [failure.message for failure in watcher.retries]
    assert all(any(f"Hostile on {num_docs} documents" in text for text in told) for num_docs in (30, 15))
    assert all("execution.memory allows 700.0 MB" in text for text in told)
    assert (halved.checksums, halved.snapshot) == (plain.checksums, plain.snapshot)


def test_crash_that_one_document_alone_does_not_cause_is_survived(tmp_path):
    plain = runs.run_mixture(hostile_stages.write_mixture(tmp_path, {17: "TOGETHER"}))
    assert plain.report["total"]["documents"]["kept"] == 60
    assert [failure.cause for failure in plain.watcher.retries] == ["SIGSEGV"] * 2


def _is_in_the_stage(message: Message, stall_s: float) -> bool:
    """Whether a worker is silent within the stage: nothing else may stall, however slow the machine of the test is."""
    activity = message.activity
    return activity is not None and activity.work.endswith(":Hostile") and message.silent_s >= stall_s


def test_stage_that_never_returns_is_reported_and_ended_and_its_document_named(tmp_path, monkeypatch):
    monkeypatch.setattr(driver_module, "SILENCE_S", 0.5)
    monkeypatch.setattr(process_module, "is_stalled", _is_in_the_stage)
    mixture, watcher = hostile_stages.write_mixture(tmp_path, {17: "FOREVER"}), runs.Watcher()
    with pytest.raises(DatapipeError, match=r"document is doc-5-17 \(\w+/web\.jsonl:\d+\).*stall_s, now 2"):
        runs.run_mixture(mixture, watcher=watcher, overrides=["execution.stall_s=2"])
    assert len(watcher.retries) == 1
    assert any("no report for" in line and ":Hostile on" in line for line in watcher.lines)
    assert "in process" in (tmp_path / "out/work/failure.txt").read_text()


def test_stage_that_is_stopped_costs_one_attempt(tmp_path, monkeypatch):
    monkeypatch.setattr(process_module, "is_stalled", lambda message, stall_s: message.is_stopped)
    done = runs.run_mixture(hostile_stages.write_mixture(tmp_path, {17: "STOPPED"}))
    assert (tmp_path / "was-stopped").exists()
    [failure] = done.watcher.retries
    assert (failure.kind, "SIGSTOP" in failure.message) == ("infrastructure", True)
    assert done.report["total"]["documents"]["kept"] == 60
