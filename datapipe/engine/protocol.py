"""The contract of engines: they take tasks and return the result of each attempt, in any order. They decide nothing else."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Protocol

from datapipe.errors import DatapipeError, StageError, UserError, is_retryable
from datapipe.plan.work import Record, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why an attempt failed, in a form that travels between processes.

    Attributes:
        kind: "user" and "stage" (never retried), "task" (retried a few times), "infrastructure" (retried generously).
        message: for the user, in plain lines.
        details: the traceback, for a log.
    """

    kind: str
    message: str
    details: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """The end of one attempt at a task: a record to commit, or a failure."""

    task: Task
    record: Record | None = None
    failure: Failure | None = None


class Engine(Protocol):
    """Workers, wherever they are. Used by one thread, the driver's."""

    @property
    def slots(self) -> int:
        """Tasks that run at once. The driver submits at most twice as many."""
        ...

    def submit(self, task: Task, attempt: str) -> None: ...

    def next_attempt(self, timeout_s: float) -> Attempt | None:
        """Waits for the next attempt to end; None if none ends in time."""
        ...

    def close(self) -> None:
        """Stops all workers at once. Their running tasks are not committed."""
        ...


def failure_of(error: BaseException) -> Failure:
    """Classifies an exception that a task raised."""
    kind = _kind_of(error)
    notes = " ".join(getattr(error, "__notes__", []))
    name = "" if isinstance(error, DatapipeError) else f"{type(error).__name__}: "
    message = f"{name}{error}" + (f" ({notes})" if notes else "")
    return Failure(kind=kind, message=message, details="".join(traceback.format_exception(error)))


def _kind_of(error: BaseException) -> str:
    if isinstance(error, StageError) or not isinstance(error, Exception):  # SystemExit and its like end no worker
        return "stage"
    return "user" if isinstance(error, UserError) else "infrastructure" if is_retryable(error) else "task"
