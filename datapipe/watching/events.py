"""One JSON object a line for each event of a run, for programs that collect logs.

    {"time": "2026-11-23T09:00:00.123Z", "event": "task_committed", "step": "web/read", "task": "0a1b…", "seconds": 1.25}

run_started   planned   step_started   step_committed   task_committed   task_retried   said   run_finished   run_failed
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from datapipe.credentials import masked
from datapipe.engine.protocol import Failure, Message
from datapipe.errors import UserError
from datapipe.plan.compile import Plan
from datapipe.plan.work import Record, Task


class EventLog:
    """An observer that writes. A disk that fails ends the log and not the run.

    Args:
        where: a file, which is appended to, or "-" for stdout.
    """

    def __init__(self, where: str) -> None:
        self._stream: TextIO | None = sys.stdout if where == "-" else None
        self._where = where
        self._states: dict[str, str] = {}
        if where != "-":
            try:
                self._stream = open(Path(where), "a", encoding="utf-8")  # noqa: SIM115  # closed by __exit__
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
        self.write("task_committed", step=record.step, task=record.fingerprint[:16], **facts)

    def retried(self, task: Task, failure: Failure) -> None:
        facts = {"kind": failure.kind, "message": failure.message}
        self.write("task_retried", step=task.step, task=task.fingerprint[:16], **facts)

    def tick(self, messages: Sequence[Message]) -> None: ...

    def say(self, line: str) -> None:
        self.write("said", message=line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._where != "-" and self._stream is not None:
            self._stream.close()
