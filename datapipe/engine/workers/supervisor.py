"""Attempts on other machines: a supervisor there keeps a worker process, and reports its activity.

    node: supervise(task) ─▶ its worker process         driver: RemoteAttempt, one for each attempt
                │                                                  ▲
                └── Report, every `_REPORT_EVERY_S` ─▶ ReportActor ┘

Knows no cluster: the engine starts supervisors, carries their reports to the actor, and kills those that report nothing.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from datapipe.config.execution import ExecutionSpec
from datapipe.dataclass import dataclass, replace
from datapipe.engine.protocol import Failure, Message
from datapipe.engine.workers.process import WorkerProcess, stat_of, state_of
from datapipe.machine.activity import Activity
from datapipe.records.outputs import Record
from datapipe.steps.kind import Task

_UPDATE_EVERY_S = 0.2
_REPORT_EVERY_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    number: int  # of the report: a new one shows that the supervisor lives
    message: Message
    process_id: int
    started: str  # when the process started, in ticks, which distinguishes it from a later one


class ReportActor:
    """The latest report of each attempt, and the node that sent it. Bounded by the attempts that
    the driver asks for, and by those that it has withdrawn."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[str, Report]] = {}
        self._withdrawn: set[str] = set()

    def update(self, node_id: str, report: Report) -> bool:
        """Takes a report. Returns whether the driver still wants the attempt."""
        self._reports[report.message.attempt] = node_id, report
        return report.message.attempt not in self._withdrawn

    def withdraw(self, attempt: str) -> None:
        self._withdrawn.add(attempt)

    def latest(self, attempts: Sequence[str]) -> dict[str, tuple[str, Report]]:
        """The reports of these attempts; all others are forgotten."""
        self._reports = {attempt: self._reports[attempt] for attempt in attempts if attempt in self._reports}
        return self._reports


@dataclass(slots=True)
class RemoteAttempt:
    """An attempt on another machine, as the driver knows it."""

    task: Task
    attempt: str
    report: Report | None = None  # the latest; None while it waits for a node
    node_id: str = ""
    node: str = ""  # the name of the node, for display
    report_age_s: float = 0.0  # seconds since a new report came
    excluded: frozenset[str] = frozenset()  # the ids of nodes that it was not sent to
    # the reservation that no node of the cluster has, empty for none; missing_s: for how long
    missing_resource: str = ""
    missing_s: float = 0.0

    def update_resource(self, missing: str, step_s: float) -> None:
        """Takes the resources that no node has, checked `step_s` after the last time."""
        self.missing_s = self.missing_s + step_s if missing and self.missing_resource else 0.0
        self.missing_resource = missing

    def update(self, node_id: str, report: Report | None, step_s: float) -> float:
        """Takes the latest report, read `step_s` after the last one; the age of the newest."""
        is_new = report is not None and report != self.report
        self.report_age_s = 0.0 if is_new or self.report is None else self.report_age_s + step_s
        if report is not None:
            self.node_id, self.report = node_id, report
        return self.report_age_s

    @property
    def message(self) -> Message | None:
        if self.report is not None:
            message, age_s = self.report.message, self.report_age_s
            return replace(message, node=self.node, silent_s=message.silent_s + age_s, idle_s=message.idle_s + age_s)
        if not self.missing_resource:
            return None
        activity, waited_s = Activity(work=f"waiting for {self.missing_resource}", is_waiting=True), self.missing_s
        waiting = Message(attempt=self.attempt, task=self.task.label, activity=activity)
        return replace(waiting, silent_s=waited_s, idle_s=waited_s)

    def __str__(self) -> str:
        return self.task.label if self.message is None else f"{self.task.label}. Its work: {state_of(self.message)}"


_worker: tuple[Any, WorkerProcess] | None = None
"""The worker of this process, and the settings of its start."""


def supervise(
    task: Task, url: str, attempt: str, limits: ExecutionSpec, send: Callable[[Report], bool]
) -> tuple[Record | None, Failure | None]:
    """Runs one attempt in a worker process, which stays for the next one. A supervisor that gets SIGTERM gives the task back.

    Args: send: sends a report to the driver; returns whether the driver still wants the attempt, as
        last known. Must not wait.
    """
    worker = _worker_for(url)
    worker.give(task, attempt)
    number, due, process_id = 0, time.monotonic(), os.getpid()
    with _sigterm_event() as terminated:
        while True:
            ended = worker.watch(limits) or worker.next_attempt(_UPDATE_EVERY_S)
            if ended is not None:
                return ended.record, ended.failure
            why = "given back: its supervisor got SIGTERM" if terminated.is_set() else ""
            if not why and worker.message is not None and time.monotonic() >= due:
                number, due = number + 1, time.monotonic() + _REPORT_EVERY_S
                started = start_time(process_id)
                if not send(Report(number=number, message=worker.message, process_id=process_id, started=started)):
                    why = "ended: the driver does not want it any more"
            if why:
                worker.stop()
                return None, Failure(kind="node", message=f"{task.label} was {why}")


@contextmanager
def _sigterm_event() -> Iterator[threading.Event]:
    """An event that SIGTERM sets instead of ending this process, in the main thread."""
    terminated = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield terminated
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: terminated.set())
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, before)


def _worker_for(url: str) -> WorkerProcess:
    """The worker of the task before, if it lives and was started with the same paths and GPUs; otherwise a new one."""
    global _worker  # noqa: PLW0603  # the process runs one task after another, and nothing else of it outlives a task
    setting = url, tuple(sys.path), os.environ.get("CUDA_VISIBLE_DEVICES")
    if _worker is not None and _worker[0] == setting and _worker[1].is_alive:
        return _worker[1]
    if _worker is not None:
        _worker[1].stop()
    _worker = setting, WorkerProcess(url, {})
    return _worker[1]


def kill_supervisor(report: Report) -> None:
    """Kills the supervisor that sent a report, and with it its worker. Runs on its node."""
    if start_time(report.process_id) == report.started:
        os.kill(report.process_id, signal.SIGKILL)


def start_time(process_id: int) -> str:
    """When a process was started, in ticks; empty where it is gone."""
    fields = stat_of(process_id)
    return fields[19] if fields else ""
