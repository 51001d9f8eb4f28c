"""The progress of a run on a terminal and in a log."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from datapipe.activity import Activity
from datapipe.engine.protocol import Message
from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.plan.compile import Plan, Step
from datapipe.plan.steps import lay_out
from datapipe.plan.work import MapTask, Record, TrainTask
from datapipe.report import progress as progress_module
from datapipe.report.progress import Progress, at_work


def _record(number: int) -> Record:
    metrics = TaskMetrics(document_counts=DocumentCounts(read=10, read_bytes=1000, kept=7))
    return Record(step="web/read", fingerprint=str(number), outputs={}, metrics=metrics)


def _plan(num_tasks: int, *records: Record) -> Plan:
    tasks = tuple(MapTask(step="web/read", fingerprint=str(number), seed=0) for number in range(num_tasks))
    first = Step(id="web/read", kind="map", label="read", source="web", tasks=tasks, records=records)
    return Plan(pipeline=lay_out({"web": []}), steps=[first, Step(id="web/pack", kind="pack", label="pack", source="web")])


def _message(work: str, place: str, silent_s: float) -> Message:
    activity = Activity(work=work, place=place, key=bytes(range(16)), num_docs=80)
    return Message(attempt=place, task="web/read", activity=activity, silent_s=silent_s)


def _watched(terminal: bool) -> str:
    stream = io.StringIO()
    with Progress(Console(file=stream, force_terminal=terminal, width=100), lambda: "about 4:10 left") as progress:
        progress.planned(_plan(2))
        progress.committed(_record(0))
        progress.tick([_message("filter.length", "a.jsonl:7", 11.0), *[_message("redact.pii", "b.jsonl:120", 0.5)] * 2])
        if progress._live is not None:
            progress._live.refresh()
        progress.committed(_record(1))
    return stream.getvalue()


def test_progress_on_a_terminal_shows_tasks_documents_and_time_left():
    shown = _watched(terminal=True)
    assert "0 of 2 steps done, about 4:10 left" in shown
    assert "1/2" in shown
    assert "7 kept" in shown
    assert "left" in shown


def test_progress_in_a_log_is_a_plain_line_when_a_step_ends():
    lines = _watched(terminal=False).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("web: read  2/2")
    assert lines[0].endswith("14 kept")


def test_progress_on_a_terminal_shows_what_the_workers_are_at_and_who_is_silent():
    shown = _watched(terminal=True)
    assert "workers: 2 redact.pii, 1 filter.length" in shown
    assert "no word for 11 s: filter.length on 80 documents, from a.jsonl:7" in shown


def test_work_of_workers_that_start_rest_or_are_not_long_silent():
    starting, fresh = (Message(attempt="a", task="web/read", silent_s=silent_s) for silent_s in (1.5, 0.1))
    resting = Message(attempt="b", task="web/read", activity=Activity(), silent_s=9.0)
    assert at_work([starting, resting, fresh]) == ["workers: 1 starting"]
    assert at_work([resting]) == at_work([]) == []


def _shown_training(terminal: bool, monkeypatch: pytest.MonkeyPatch, width: int = 120) -> str:
    """What is shown 75 s after the training began."""
    now = [1000.0]
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    task = TrainTask(step="tokenizer/train", fingerprint="t", seed=0, vocab_size=300, eos="<|endoftext|>")
    step = Step(id="tokenizer/train", kind="train", label="train the tokenizer", tasks=(task,))
    activity = Activity(work="train tokenizer", place="counting words, 64 MB of 256 MB, about 225 s left")
    stream = io.StringIO()
    with Progress(Console(file=stream, force_terminal=terminal, width=width)) as progress:
        progress.planned(Plan(pipeline=lay_out({"web": []}), steps=[step]))
        now[0] += 75
        progress.tick([Message(attempt="a", task=task.label, activity=activity, silent_s=0.1)])
        if progress._live is not None:
            progress._live.refresh()
    return stream.getvalue()


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (120, "train the tokenizer: 1:15, counting words, 64 MB of 256 MB, about 225 s left"),
        (80, "train the tokenizer: 1:15, counting words, 64 MB of 256 MB, about 225 s left"),
        (70, "train the tokenizer: 1:15, counting words, about 225 s left"),
        (50, "train the tokenizer: 1:15, about 225 s left"),
    ],
)
def test_progress_of_training_keeps_the_time_left_on_a_small_terminal(
    width: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line in _shown_training(True, monkeypatch, width)
    assert width < 80 or line in _shown_training(False, monkeypatch)
