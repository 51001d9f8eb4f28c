"""One JSON object a line for each event of a run, for programs that collect logs.

    {"time": "2026-11-23T09:00:00.123Z", "event": "task_committed", "step": "web/read", "task": "0a1b2c3d4e5f",
     "attempt": "9c0d…", "node": "host-7", "seconds": 1.25}

run_started  planned  step_started  task_started ┬ task_committed                 step_committed ┬ run_finished      said
                                                 ├ task_failed    task_retried                   ├ run_stopped
                                                 └ task_cancelled: another attempt ended first   └ run_failed

With --follow, runs come one after the other, and between them:  waiting  adding  published

Each attempt starts once, and ends once unless the run ends before. One that is shorter than the time between two looks of the
driver is told to start when it ends.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from datapipe.credentials import masked
from datapipe.engine.driver import Observer
from datapipe.engine.protocol import Attempt, Failure, Message
from datapipe.errors import UserError
from datapipe.records.record import Record
from datapipe.steps.kind import Plan, Task


def _short(fingerprint: str) -> str:
    """As the label of a task has it."""
    return fingerprint[:12]


def _where(attempt: str, node: str) -> dict[str, str]:
    return {"attempt": attempt, **({"node": node} if node else {})}


class EventLog(Observer):
    """An observer that writes. A disk that fails ends the log and not the run.

    Args:
        where: a file, which is appended to, or "-" for stdout.
    """

    def __init__(self, where: str) -> None:
        self._stream: TextIO | None = sys.stdout if where == "-" else None
        self._where = where
        self.is_on_stdout = where == "-"
        self._states: dict[str, str] = {}
        self._running: dict[str, dict[str, str]] = {}  # label of a task → attempt → node
        self._where_of: dict[str, dict[str, str]] = {}  # fingerprint of a task that is not committed → its last attempt
        if not self.is_on_stdout:
            try:
                self._stream = open(Path(where), "a", encoding="utf-8")  # noqa: SIM115  # closed by `close`
            except OSError as error:
                raise UserError(f"--log-json {where}: {error.strerror}. Expected a file that can be written, or -.") from error

    def write(self, event: str, **facts: Any) -> None:
        """Writes one event."""
        if self._stream is None:
            return
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        try:
            line = masked(json.dumps({"time": time, "event": event, **facts}, ensure_ascii=False))
            self._stream.write(line.encode("utf-8", "backslashreplace").decode() + "\n")
            self._stream.flush()
        except OSError as error:
            self._stream = None
            warnings.warn(f"the log {self._where} ends here: {error.strerror}", stacklevel=2)

    def begin_run(self, **facts: Any) -> None:
        """Writes `run_started`; nothing of a run before is known to the next."""
        self._states, self._running, self._where_of = {}, {}, {}
        self.write("run_started", **facts)

    def planned(self, plan: Plan) -> None:
        self.write("planned", steps=len(plan.steps), tasks=sum(len(step.tasks or ()) for step in plan.steps))
        for step in plan.steps:
            state = "committed" if step.is_committed else "waiting" if step.tasks is None else "started"
            if state != self._states.get(step.id) and state != "waiting":
                self.write(f"step_{state}", step=step.id, title=step.title, tasks=len(step.tasks or ()))
            self._states[step.id] = state

    def committed(self, record: Record) -> None:
        metrics = record.metrics
        counts = metrics.document_counts
        facts = {
            "seconds": round(metrics.seconds, 3),
            "peak_bytes": metrics.peak_bytes,
            "read": counts.read,
            "kept": counts.kept,
        }
        where = self._where_of.pop(record.fingerprint, {})
        self.write("task_committed", step=record.step, task=_short(record.fingerprint), **where, **facts)

    def tick(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if not message.node:  # it waits for one
                continue
            running = self._running.setdefault(message.task, {})
            if message.attempt not in running:
                running[message.attempt] = message.node
                digits = message.task.partition(" (")[2].rstrip(")")
                self._start({"step": message.step, "task": digits}, message.attempt, message.node)

    def ended(self, attempt: Attempt) -> None:
        task, failure = attempt.task, attempt.failure
        about = {"step": task.step, "task": _short(task.fingerprint)}
        others = self._running.pop(task.label, {})
        if attempt.attempt not in others and (attempt.record is not None or attempt.node):  # others never came to a node
            self._start(about, attempt.attempt, attempt.node)
        node = attempt.node or others.get(attempt.attempt, "")
        others.pop(attempt.attempt, None)
        where = self._where_of[task.fingerprint] = _where(attempt.attempt, node)
        if failure is not None:
            self.write("task_failed", **about, **where, kind=failure.kind, message=failure.message)
            if others:
                self._running[task.label] = others
            return
        for other, its_node in others.items():
            self.write("task_cancelled", **about, **_where(other, its_node))

    def retried(self, task: Task, failure: Failure) -> None:
        facts = {"kind": failure.kind, "message": failure.message}
        where = self._where_of.get(task.fingerprint, {})
        self.write("task_retried", step=task.step, task=_short(task.fingerprint), **where, **facts)

    def _start(self, about: dict[str, str], attempt: str, node: str) -> None:
        self.write("task_started", **about, **_where(attempt, node))

    def say(self, line: str) -> None:
        self.write("said", message=line)

    def close(self) -> None:
        if not self.is_on_stdout and self._stream is not None:
            self._stream.close()
