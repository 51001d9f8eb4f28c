"""The log of events: every attempt starts once and ends once, and each of its events names it and its node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from datapipe.engine.protocol import Attempt, Failure, Message
from datapipe.metrics import TaskMetrics
from datapipe.plan.work import MapTask, Record
from datapipe.watching.events import EventLog

TASK = MapTask(step="web/read", fingerprint="0123456789abcdef", seed=0)
OTHER = replace(TASK, fingerprint="fedcba9876543210")
RECORD = Record(step="web/read", fingerprint=TASK.fingerprint, outputs={}, metrics=TaskMetrics())


def _seen(attempt: str, node: str, task: MapTask = TASK) -> Message:
    return Message(attempt=attempt, task=task.label, node=node)


def _ended(attempt: str, node: str = "", kind: str = "", task: MapTask = TASK) -> Attempt:
    failure = Failure(kind=kind, message="it failed") if kind else None
    record = None if kind else replace(RECORD, fingerprint=task.fingerprint)
    return Attempt(task=task, attempt=attempt, node=node, record=record, failure=failure)


def _written(path: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(event.pop("time").endswith("Z") for event in events)
    return events


def test_an_attempt_that_fails_and_the_next_one_are_told_with_their_nodes(tmp_path: Path) -> None:
    with EventLog(str(tmp_path / "log.jsonl")) as log:
        log.tick([_seen("a", "")])
        for _ in range(2):
            log.tick([_seen("a", "n1")])
        log.ended(_ended("a", kind="task"))
        log.retried(TASK, Failure(kind="task", message="it failed, once more"))
        log.tick([_seen("b", "n2")])
        log.ended(_ended("b", "n2"))
        log.committed(RECORD)
    about = {"step": "web/read", "task": "0123456789ab"}
    first, second = about | {"attempt": "a", "node": "n1"}, about | {"attempt": "b", "node": "n2"}
    assert _written(tmp_path / "log.jsonl") == [
        {"event": "task_started"} | first,
        {"event": "task_failed", "kind": "task", "message": "it failed"} | first,
        {"event": "task_retried", "kind": "task", "message": "it failed, once more"} | first,
        {"event": "task_started"} | second,
        {"event": "task_committed", "seconds": 0.0, "peak_bytes": 0, "read": 0, "kept": 0} | second,
    ]


def test_an_attempt_between_two_looks_starts_when_it_ends_and_one_that_came_to_no_node_never(tmp_path: Path) -> None:
    with EventLog(str(tmp_path / "log.jsonl")) as log:
        log.ended(_ended("short", "n1"))
        log.ended(_ended("unplaced", kind="node", task=OTHER))
    events = [(event["event"], event["attempt"], event.get("node")) for event in _written(tmp_path / "log.jsonl")]
    assert events == [("task_started", "short", "n1"), ("task_failed", "unplaced", None)]


def test_of_two_attempts_at_a_task_the_one_that_is_ended_is_told_as_cancelled(tmp_path: Path) -> None:
    with EventLog(str(tmp_path / "log.jsonl")) as log:
        log.tick([_seen("a", "n1"), _seen("b", "n2"), _seen("c", "n3"), _seen("d", "n1", OTHER)])
        log.ended(_ended("a", "n1", kind="infrastructure"))
        log.ended(_ended("b", "n2"))
        log.committed(RECORD)
    events = [(event["event"], event["attempt"], event["node"]) for event in _written(tmp_path / "log.jsonl")]
    assert events[4:] == [("task_failed", "a", "n1"), ("task_cancelled", "c", "n3"), ("task_committed", "b", "n2")]
