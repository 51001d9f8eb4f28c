"""The log of `run --log-json`: the events of a run, a JSON object a line. README.md lists them."""

from dataclasses import asdict
from typing import Any

from datapipe.engine import events
from datapipe.engine.protocol import Attempt
from datapipe.machine.json_log import JsonLog
from datapipe.steps.kind import Plan


class EventLog:
    def __init__(self, log: JsonLog) -> None:
        self._write = log.write
        self._states: dict[str, str] = {}

    def observe(self, event: events.Event) -> None:
        match event:
            case events.RunStarted():
                self._states = {}
                self._write("run_started", **asdict(event))
            case events.Planned():
                self._planned(event.plan)
            case events.AttemptEvent():
                self._write(f"task_{event.state}", **_facts(event.attempt))
            case events.Committed():
                for attempt in event.attempts:
                    self._write("task_committed", **_facts(attempt))
            case events.Retried():
                self._write("task_retried", **_facts(event.attempt) | {"message": event.text})
            case events.Said():
                self._write("said", message=event.line)
            case events.RunEnded(problem=None):
                self._write("run_finished", snapshot=event.snapshot or None)
            case events.RunEnded(problem=KeyboardInterrupt()):
                self._write("run_stopped")
            case events.RunEnded():
                self._write("run_failed", kind=type(event.problem).__name__, message=str(event.problem))
            case events.Waiting() | events.Adding() | events.Published():
                self._write(type(event).__name__.lower(), **asdict(event))
            case _:
                pass

    def _planned(self, plan: Plan) -> None:
        self._write("planned", steps=len(plan.steps), tasks=sum(len(step.tasks or ()) for step in plan.steps))
        for step in plan.steps:
            state = "committed" if step.is_committed else "waiting" if step.tasks is None else "started"
            if state != self._states.get(step.id) and state != "waiting":
                self._write(f"step_{state}", step=step.id, title=step.title, tasks=len(step.tasks or ()))
            self._states[step.id] = state


def _facts(attempt: Attempt) -> dict[str, Any]:
    facts: dict[str, Any] = {"step": attempt.task.step, "task": attempt.task.fingerprint[:12], "attempt": attempt.attempt}
    if attempt.node:
        facts["node"] = attempt.node
    if attempt.failure is not None:
        facts |= {"kind": attempt.failure.kind, "message": attempt.failure.message}
    if attempt.record is not None:
        metrics = attempt.record.metrics
        counts = metrics.document_counts
        facts |= {"seconds": round(metrics.seconds, 3), "peak_bytes": metrics.peak_bytes}
        facts |= {"read": counts.read, "kept": counts.kept}
    return facts
