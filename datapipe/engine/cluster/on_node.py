"""What a task of the cluster does on its node: it checks the node, makes the user's stages importable, and supervises a worker.

    Order ─▶ node fit? ─▶ install_modules ─▶ supervise ─▶ record or failure
               └─▶ what the node lacks, and the driver sends the task elsewhere

A process looks at its node before its first task, and again after a failure that the node may have caused: mounts go away and
disks fill up during a run. It reports before it looks, so that a disk that hangs is found.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from datapipe.activity import Activity
from datapipe.engine.cluster.arrival import Expectation, lacks_here
from datapipe.engine.cluster.modules import install_modules
from datapipe.engine.protocol import Failure, Message
from datapipe.engine.workers.process import Limits
from datapipe.engine.workers.supervisor import Report, start_time, supervise
from datapipe.errors import UserError
from datapipe.plan.work import Record, Task

Ended = tuple[list[str], Record | None, Failure | None]
"""What the node lacks, and the end of the attempt; of a node that was not fit before it, neither a record nor a failure."""

_MAY_BE_OF_THE_NODE = frozenset({"infrastructure", "task", "user"})
"""Kinds of failure."""

_fit_for: set[str] = set()
"""Probes of the runs that this process has checked its node for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One attempt at a task, as it travels.

    Attributes:
        task: pickled: it is read once the node has the same versions.
        label: of the task.
        modules: of the user, as `user_modules` returns them.
    """

    expectation: Expectation
    task: bytes
    label: str
    attempt: str
    modules: Mapping[str, str]
    limits: Limits

    @classmethod
    def of(cls, task: Task, attempt: str, expectation: Expectation, modules: Mapping[str, str], limits: Limits) -> bytes:
        content = pickle.dumps(task)
        return pickle.dumps(
            cls(expectation=expectation, task=content, label=task.label, attempt=attempt, modules=modules, limits=limits)
        )


def opened(order: bytes) -> Order:
    """An order of the driver. Raises an exception where the node's datapipe has no such orders."""
    return pickle.loads(order)


def run_attempt(order: Order, tell: Callable[[Report], bool]) -> Ended:
    """Runs an order. Failures come back as values, so that errors of the cluster mean that the cluster lost the task."""
    lacks = _lacks(order, tell)
    if lacks:
        return lacks, None, None
    record, failure = supervise(pickle.loads(order.task), order.expectation.output, order.attempt, order.limits, tell)
    is_doubtful = failure is not None and failure.kind in _MAY_BE_OF_THE_NODE
    return lacks_here(order.expectation) if is_doubtful else [], record, failure


def _lacks(order: Order, tell: Callable[[Report], object]) -> list[str]:
    probe = order.expectation.probe
    if probe not in _fit_for:
        message = Message(attempt=order.attempt, task=order.label, activity=Activity(work="look at the node"))
        process_id = os.getpid()
        tell(Report(number=0, message=message, process_id=process_id, started=start_time(process_id)))
        if lacks := lacks_here(order.expectation):
            return lacks
        _fit_for.add(probe)
    try:
        install_modules(order.modules)
    except (OSError, UserError) as error:
        return [f"it cannot keep the modules of the stages: {error}"]
    return []
