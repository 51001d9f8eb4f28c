"""A supervisor on a node: what it reports, and what it does when its node is taken away."""

from __future__ import annotations

import os
import signal
import time

import pytest

from datapipe.engine.workers import supervisor
from datapipe.engine.workers.limits import NO_LIMITS
from datapipe.engine.workers.supervisor import Board, supervise


@pytest.fixture(autouse=True)
def _no_worker_stays(monkeypatch):
    monkeypatch.setattr(supervisor, "_worker", None)
    yield
    supervisor._worker[1].stop()


class _Endless:
    """What a worker takes for a task: loading it never ends."""

    label = "a task"

    def __reduce__(self):
        return time.sleep, (1e6,)


@pytest.mark.medium
def test_supervisor_whose_attempt_was_withdrawn_ends_it_and_stays_for_the_next(tmp_path):
    board, reports = Board(), []

    def report(told) -> bool:
        reports.append(told)
        if len(reports) == 2:
            board.withdraw("one")
        return board.tell("node", told)

    record, failure = supervise(_Endless(), str(tmp_path), "one", NO_LIMITS, report)
    assert (record, failure.kind, len(reports)) == (None, "node", 2)
    assert board.latest(["one"]) == {"one": ("node", reports[1])}


@pytest.mark.medium
def test_supervisor_that_gets_sigterm_gives_its_task_back_and_stays_for_the_next(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    processes = []
    for attempt in ("one", "two"):
        record, failure = supervise(
            _Endless(), str(tmp_path), attempt, NO_LIMITS, lambda report: os.kill(report.process_id, signal.SIGTERM) is None
        )
        processes.append((record, failure.kind, failure.message))
    assert processes == [(None, "node", "a task was given back: its supervisor got SIGTERM")] * 2
    assert signal.getsignal(signal.SIGTERM) == before
