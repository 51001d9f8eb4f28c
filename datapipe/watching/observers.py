"""Several observers of one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datapipe.engine.driver import Observer
from datapipe.engine.protocol import Attempt, Message
from datapipe.plan.compile import Plan
from datapipe.plan.work import Record, Task


class Observers:
    """Tells each of its observers, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = tuple(observers)

    def planned(self, plan: Plan) -> None:
        for observer in self.observers:
            observer.planned(plan)

    def committed(self, record: Record) -> None:
        for observer in self.observers:
            observer.committed(record)

    def ended(self, attempt: Attempt) -> None:
        for observer in self.observers:
            observer.ended(attempt)

    def retried(self, task: Task, failure: Any) -> None:
        for observer in self.observers:
            observer.retried(task, failure)

    def tick(self, messages: Sequence[Message]) -> None:
        for observer in self.observers:
            observer.tick(messages)

    def say(self, line: str) -> None:
        for observer in self.observers:
            observer.say(line)
