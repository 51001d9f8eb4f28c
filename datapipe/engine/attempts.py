"""The attempts that an engine has: one at each task, and a second one at a task that takes much longer than others do.

    ready ─▶ largest first ─▶ attempt ─▶ record: the task is done, its other attempt is cancelled
                                 └─────▶ failure: its other attempt goes on, if there is one; else `retries.py`

A slow node, a disk that hangs or a process that stands still holds up a whole step. So the slowest task gets a second attempt
where slots are free and no task waits for them, as by the backup tasks of MapReduce (Dean and Ghemawat, OSDI 2004). Attempts
write to folders of their own and yield the same bytes, and the first that ends is committed.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from datapipe.engine.events import Cancelled, Committed, Failed, Observer, Started
from datapipe.engine.protocol import Attempt, Engine, Message
from datapipe.records.ledger import MOST_RECORDS
from datapipe.records.outputs import Record
from datapipe.steps.kind import Task

SILENCE_S = 45.0
"""Silence of an attempt that the user is told of, and after which a second one may start."""

SLOW = 2.0
"""An attempt is slow once it has run for so many times as long as others of its step took for as much input."""

LEAST_S = 15.0
"""No attempt is slow before: to start a process and to wait for a kernel may take as long."""

LARGE = 2.0
"""Tasks of more than so many times the usual input go first. One that began last would keep one core busy alone at the end."""

LONGEST_WAIT_S = 0.1
"""That a finished task waits for its commit. A run that is killed loses what was finished in that time."""

_MOST_SAMPLES = 255
_FINAL = frozenset({"user", "stage", "damage"})
"""Kinds of failures that another attempt would meet as well."""


@dataclass(slots=True)
class _Running:
    """A task, and its attempts that have not ended.

    Attributes:
        second: the one that started while the first was running; empty for none so far.
    """

    task: Task
    attempts: list[str]
    second: str = ""


@dataclass(slots=True)
class Attempts:
    """The attempts that an engine has. Bounded by its slots and by the steps of the plan.

    Args:
        emit: gets the start and the end of each, but for the commit of its record.
        clock: seconds, monotonic.
    """

    engine: Engine
    emit: Observer
    clock: Callable[[], float] = time.monotonic
    _running: dict[str, _Running] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)  # attempt → fingerprint of its task
    _nodes: dict[str, str] = field(default_factory=dict)  # attempt that has started → its node
    _messages: Sequence[Message] = ()
    _since: dict[str, float] = field(default_factory=dict)
    _rates: dict[str, deque[float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._names)

    def submit(self, task: Task) -> str:
        """Hands a task to the engine; the name of the attempt."""
        attempt = uuid.uuid4().hex[:12]
        running = self._running.setdefault(task.fingerprint, _Running(task, []))
        running.attempts.append(attempt)
        self._names[attempt] = task.fingerprint
        self.engine.submit(task, attempt)
        return attempt

    def located(self, ended: Attempt) -> Attempt:
        """The end of an attempt, with the node on which the attempt was seen where the engine does not name it."""
        return ended if ended.node else replace(ended, node=self._nodes.get(ended.attempt, ""))

    def is_settled(self, ended: Attempt) -> bool:
        """Takes the end of an attempt. Whether it settles its task, by a record or by a failure.

        It does not where another attempt has settled the task before, or goes on with it after this one failed.
        """
        name = self._names.pop(ended.attempt, None)
        if name is None:
            return False
        running = self._running[name]
        if self._nodes.pop(ended.attempt, None) is None and (ended.record is not None or ended.node):
            self.emit(Started(ended))
        if ended.failure is not None:
            self.emit(Failed(ended))
        running.attempts.remove(ended.attempt)
        if running.attempts and ended.failure is not None and ended.failure.kind not in _FINAL:
            return False
        for attempt in running.attempts:
            del self._names[attempt]
            self.engine.cancel(attempt)
            if (node := self._nodes.pop(attempt, None)) is not None:
                self.emit(Cancelled(Attempt(task=ended.task, attempt=attempt, node=node)))
        del self._running[name]
        if ended.record is not None:
            metrics = ended.record.metrics
            rates = self._rates.setdefault(ended.task.step, deque(maxlen=_MOST_SAMPLES))
            rates.append(metrics.seconds / input_bytes(ended.task))
            if running.second:
                metrics.second_attempt = "won" if ended.attempt == running.second else "lost"
        return True

    # ---------------------------------------------------------------------------------------------- second attempts

    def look(self, messages: Sequence[Message]) -> None:
        """Takes what the running attempts are at."""
        now = self.clock()
        self._since = {message.attempt: self._since.get(message.attempt, now) for message in messages}
        self._messages = messages
        for message in messages:
            name = self._names.get(message.attempt)
            if name is not None and message.node and message.attempt not in self._nodes:
                self._nodes[message.attempt] = message.node
                self.emit(Started(Attempt(task=self._running[name].task, attempt=message.attempt, node=message.node)))

    def start_second(self) -> str:
        """Starts a second attempt at the task that is late by most, if one is; what it did, for the user.

        A task has at most one, whatever becomes of it: what is slow twice is slow by itself.
        """
        late = [found for message in self._messages if (found := self._late(message)) is not None]
        if not late:
            return ""
        _, name, text = max(late)
        running = self._running[name]
        running.second = self.submit(running.task)
        return f"{running.task.label} {text}: a second attempt starts, and the first that ends counts"

    def _late(self, message: Message) -> tuple[float, str, str] | None:
        """By how many seconds an attempt is late, the fingerprint of its task, and why, in words; None where it is not."""
        name = self._names.get(message.attempt, "")
        running = self._running.get(name)
        if running is None or running.second:
            return None
        if message.silent_s >= SILENCE_S:
            return message.silent_s, name, f"has said nothing for {message.silent_s:.0f} s"
        rates = self._rates.get(running.task.step)
        if not rates or (message.activity is not None and message.activity.is_waiting):
            return None
        usual_s = median(rates) * input_bytes(running.task)
        took_s = self.clock() - self._since[message.attempt]
        if took_s < max(LEAST_S, SLOW * usual_s):
            return None
        return took_s - usual_s, name, f"has run for {took_s:.0f} s, and others took {usual_s:.0f} s for as much"


# ---------------------------------------------------------------------------------------------------- commits


@dataclass(slots=True)
class Pending:
    """Attempts whose records wait for their commit.

    Attributes:
        by_step: how many of each step.
        since: when each was added, by the clock.
        clock: seconds, monotonic.
    """

    clock: Callable[[], float] = time.monotonic
    attempts: list[Attempt] = field(default_factory=list)
    by_step: Counter[str] = field(default_factory=Counter)
    since: list[float] = field(default_factory=list)

    def add(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self.since.append(self.clock())
        self.by_step[attempt.task.step] += 1

    @property
    def records(self) -> list[Record]:
        return [attempt.record for attempt in self.attempts if attempt.record is not None]

    @property
    def due_in_s(self) -> float:
        """Seconds until the group is to be committed; infinite while there is none."""
        if not self.attempts:
            return float("inf")
        return 0.0 if len(self.attempts) >= MOST_RECORDS else max(0.0, self.since[0] + LONGEST_WAIT_S - self.clock())

    def take(self, records: Sequence[Record], seconds: float) -> Committed:
        """The commit of all of them, which wait no longer.

        Args:
            records: those that stand.
            seconds: that the commit took.
        """
        now = self.clock()
        attempts = [replace(attempt, record=record) for attempt, record in zip(self.attempts, records, strict=True)]
        lags_s = [now - since for since in self.since]
        self.attempts, self.since = [], []
        self.by_step.clear()
        return Committed(attempts=attempts, lags_s=lags_s, seconds=seconds)


# ---------------------------------------------------------------------------------------------------- sizes


def largest_first(tasks: Sequence[Task]) -> list[Task]:
    """The tasks in their order, behind those of more than `LARGE` times the usual input, of which the largest is first."""
    if not tasks:
        return []
    sizes = [input_bytes(task) for task in tasks]
    limit = LARGE * median(sizes)
    large = sorted((place for place, size in enumerate(sizes) if size > limit), key=lambda place: -sizes[place])
    return [*(tasks[place] for place in large), *(task for task, size in zip(tasks, sizes) if size <= limit)]


def input_bytes(task: Task) -> float:
    """About how many bytes a task reads; at least 1. For comparisons with tasks of the same step."""
    return max(1.0, task.input_bytes)
