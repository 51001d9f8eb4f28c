"""Attempts that run on other machines: a supervisor there keeps a worker process, and reports what it is at.

    node: supervise(task) ─▶ its worker process         driver: Reported, one for each attempt
                │                                                  ▲
                └── Report, every `_REPORT_EVERY_S` ─▶ Board ──────┘

Knows no cluster: the engine starts supervisors, carries their reports to the board, and kills those that report nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from datapipe.config.execution import ExecutionSpec
from datapipe.engine.protocol import Failure, Message
from datapipe.engine.workers.process import WorkerProcess, stat_of, state_of
from datapipe.machine.activity import Activity
from datapipe.records.outputs import Record
from datapipe.steps.kind import Task

_LOOK_EVERY_S = 0.2
_REPORT_EVERY_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A message, and the supervisor that sent it.

    Attributes:
        number: of the report, from 1 on: the driver sees that the supervisor lives.
        process_id, started: of the supervisor's process; the time of its start, in ticks, tells it from a later one.
    """

    number: int
    message: Message
    process_id: int
    started: str


class Board:
    """The latest report of each attempt, and the node that sent it. Bounded by the attempts that the driver asks for, and by
    those that it has withdrawn."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[str, Report]] = {}
        self._withdrawn: set[str] = set()

    def tell(self, node_id: str, report: Report) -> bool:
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
class Reported:
    """An attempt on another machine, as the driver knows it.

    Attributes:
        report: the latest; None while it waits for a place to run.
        node_id: where it runs. node: its name, for display.
        unheard_s: seconds since a new report came.
        excluded: the ids of nodes that it was not sent to.
        lack: what it reserves and no node of the cluster has; empty where some node has it.
        lacking_s: for how long no node has had it.
    """

    task: Task
    attempt: str
    report: Report | None = None
    node_id: str = ""
    node: str = ""
    unheard_s: float = 0.0
    excluded: frozenset[str] = frozenset()
    lack: str = ""
    lacking_s: float = 0.0

    def miss(self, lack: str, step_s: float) -> None:
        """Takes what no node has, looked for `step_s` after the time before."""
        self.lack, self.lacking_s = lack, self.lacking_s + step_s if lack and self.lack else 0.0

    def hear(self, node_id: str, report: Report | None, step_s: float) -> float:
        """Takes the latest report, looked at `step_s` after the one before; for how long none was new."""
        is_new = report is not None and report != self.report
        self.unheard_s = 0.0 if is_new or self.report is None else self.unheard_s + step_s
        if report is not None:
            self.node_id, self.report = node_id, report
        return self.unheard_s

    @property
    def message(self) -> Message | None:
        if self.report is None:
            waiting = Activity(work=f"waiting for {self.lack}", is_waiting=True)
            lacking = Message(
                attempt=self.attempt,
                task=self.task.label,
                activity=waiting,
                silent_s=self.lacking_s,
                idle_s=self.lacking_s,
            )
            return lacking if self.lack else None
        message, unheard_s = self.report.message, self.unheard_s
        return replace(message, node=self.node, silent_s=message.silent_s + unheard_s, idle_s=message.idle_s + unheard_s)

    def __str__(self) -> str:
        return self.task.label if self.message is None else f"{self.task.label}. It was at: {state_of(self.message)}"


# ------------------------------------------------------------------------------------------------ on the node

_worker: tuple[Any, WorkerProcess] | None = None
"""The worker of this process, and what it was started with."""


def supervise(
    task: Task, url: str, attempt: str, limits: ExecutionSpec, report: Callable[[Report], bool]
) -> tuple[Record | None, Failure | None]:
    """Runs one attempt in a worker process, which stays for the next one. A supervisor that gets SIGTERM, as where its node is
    taken away, gives the task back.

    Args:
        url: of OUTPUT.
        report: sends a report to the driver; returns whether the driver still wants the attempt, as last heard. Must not wait.
    """
    worker = _worker_for(url)
    worker.give(task, attempt)
    number, due = 0, time.monotonic()
    with _notice() as notice:
        while True:
            ended = worker.watch(limits) or worker.next_attempt(_LOOK_EVERY_S)
            if ended is not None:
                return ended.record, ended.failure
            if notice.is_set():
                worker.stop()
                return None, Failure(kind="node", message=f"{task.label} was given back: its supervisor got SIGTERM")
            if worker.message is not None and time.monotonic() >= due:
                number, due = number + 1, time.monotonic() + _REPORT_EVERY_S
                process_id = os.getpid()
                told = Report(number=number, message=worker.message, process_id=process_id, started=start_time(process_id))
                if not report(told):
                    worker.stop()
                    return None, Failure(kind="node", message=f"{task.label} was ended: the driver does not want it any more")


@contextmanager
def _notice() -> Iterator[threading.Event]:
    """An event that SIGTERM sets, in the place of ending this process. Signals come to the main thread alone."""
    notice = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield notice
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: notice.set())
    try:
        yield notice
    finally:
        signal.signal(signal.SIGTERM, before)


def _worker_for(url: str) -> WorkerProcess:
    """The worker of the task before, where it lives and was started with the same paths and GPUs; otherwise a new one."""
    global _worker  # noqa: PLW0603  # the process runs one task after another, and nothing else of it outlives a task
    setting = url, tuple(sys.path), os.environ.get("CUDA_VISIBLE_DEVICES")
    if _worker is not None and (_worker[0] != setting or not _worker[1].is_alive):
        _worker[1].stop()
        _worker = None
    if _worker is None:
        _worker = setting, WorkerProcess(url, {})
    return _worker[1]


def kill_supervisor(report: Report) -> None:
    """Kills the supervisor that sent a report, and with it its worker. Runs on its node."""
    if start_time(report.process_id) == report.started:
        os.kill(report.process_id, signal.SIGKILL)


def start_time(process_id: int) -> str:
    """When a process was started, in ticks; empty where it is gone."""
    told = stat_of(process_id)
    return told[19] if told else ""
