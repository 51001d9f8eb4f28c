"""The attempts that run on an engine: one at each task, and a second one at a task that takes much longer than others.

    ready ─▶ largest first ─▶ attempt ─▶ record: the task is done, its other attempt is cancelled
                                 └─────▶ failure: its other attempt goes on, if there is one; else `retries.py`

A slow node, a disk that hangs or a stopped process holds up a whole step. So the slowest task gets a second attempt where
slots are free and no task waits for them, as by the backup tasks of MapReduce (Dean and Ghemawat, OSDI 2004). Attempts
write to separate folders and yield the same bytes, and the first that ends is committed.
"""

import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from statistics import median

from datapipe.dataclass import dataclass, field, replace
from datapipe.engine.events import AttemptEvent, Committed, Observer, Retried
from datapipe.engine.protocol import Attempt, Engine, Message
from datapipe.records.commit_files import MOST_RECORDS
from datapipe.records.outputs import Record
from datapipe.steps.kind import Task

SILENCE_S = 45.0
"""Silence of an attempt that the user is warned of, and after which a second attempt may start."""

SLOW = 2.0
"""An attempt is slow once it has run so many times as long as others did for as much input."""

LEAST_S = 15.0
"""No attempt is slow before: to start a process and to wait for a kernel may take as long."""

LARGE = 2.0
"""Tasks of more than so many times the usual input go first. One that started last would keep one core busy alone."""

LONGEST_WAIT_S = 0.1
"""Time that a finished task waits for its commit. A killed run loses these tasks."""

_MOST_SAMPLES = 255
_FINAL = frozenset({"user", "stage", "damage"})
"""Kinds of failures that another attempt would have as well."""


@dataclass(slots=True)
class _Open:
    """An attempt that has not ended; `node` is empty until it is seen running."""

    task: Task
    is_second: bool
    node: str = ""
    since: float | None = None


@dataclass(slots=True)
class Attempts:
    """The attempts that run on an engine. Bounded by its slots and by the steps of the plan.

    `emit` gets the start and the end of each, but for the commit of its record. `clock` is monotonic.
    """

    engine: Engine
    emit: Observer
    clock: Callable[[], float] = time.monotonic
    _open: dict[str, _Open] = field(default_factory=dict)
    _of_task: dict[str, list[str]] = field(default_factory=dict)  # the open ones by fingerprint
    _with_second: set[str] = field(default_factory=set)  # fingerprints of tasks
    _messages: Sequence[Message] = ()
    _rates: dict[str, deque[float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def submit(self, task: Task, *, is_second: bool = False) -> str:
        """Hands a task to the engine; the name of the attempt."""
        attempt = uuid.uuid4().hex[:12]
        self._open[attempt] = _Open(task, is_second)
        self._of_task.setdefault(task.fingerprint, []).append(attempt)
        self.engine.submit(task, attempt)
        return attempt

    def ended(self, ended: Attempt) -> Attempt | None:
        """Takes the end of an attempt. Returns it, with its node, if it ends its task: not where
        another attempt has ended the task before, or goes on after this one failed."""
        attempt = self._open.pop(ended.attempt, None)
        if attempt is None:
            return None
        if not attempt.node and (ended.record is not None or ended.node):
            self.emit(AttemptEvent("started", replace(ended, record=None, failure=None)))
        ended, name, failure = replace(ended, node=ended.node or attempt.node), ended.task.fingerprint, ended.failure
        others = self._of_task.pop(name)
        others.remove(ended.attempt)
        if failure is not None:
            self.emit(AttemptEvent("failed", ended))
            if others and failure.kind not in _FINAL:
                self._of_task[name] = others
                text = f"{failure.message}; another attempt at {ended.task.label} goes on"
                self.emit(Retried(attempt=ended, text=text))
                return None
        for other in others:
            node = self._open.pop(other).node
            self.engine.cancel(other)
            if node:
                self.emit(AttemptEvent("cancelled", Attempt(task=ended.task, attempt=other, node=node)))
        if ended.record is not None:
            metrics = ended.record.metrics
            rates = self._rates.setdefault(ended.task.step, deque(maxlen=_MOST_SAMPLES))
            rates.append(metrics.seconds / input_bytes(ended.task))
            if name in self._with_second:
                metrics.second_attempt = "won" if attempt.is_second else "lost"
        self._with_second.discard(name)
        return ended

    def update(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        for message in messages:
            attempt = self._open.get(message.attempt)
            if attempt is None:
                continue
            if attempt.since is None:
                attempt.since = self.clock()
            if message.node and not attempt.node:
                attempt.node = message.node
                running = Attempt(task=attempt.task, attempt=message.attempt, node=message.node)
                self.emit(AttemptEvent("started", running))

    def start_second(self) -> str:
        """Starts a second attempt at the task that is latest, if one is late; a line for the user.
        A task has at most one: a task that is slow twice is slow by itself."""
        late = [late_attempt for message in self._messages if (late_attempt := self._late(message)) is not None]
        if not late:
            return ""
        _, attempt, text = max(late)
        task = self._open[attempt].task
        self._with_second.add(task.fingerprint)
        self.submit(task, is_second=True)
        return f"{task.label} {text}: a second attempt starts, and the first that ends counts"

    def _late(self, message: Message) -> tuple[float, str, str] | None:
        """Seconds that an attempt is late, its name, and the reason; None where it is not."""
        attempt = self._open.get(message.attempt)
        if attempt is None or attempt.task.fingerprint in self._with_second:
            return None
        if message.silent_s >= SILENCE_S:
            return message.silent_s, message.attempt, f"has reported nothing for {message.silent_s:.0f} s"
        rates = self._rates.get(attempt.task.step)
        if not rates or attempt.since is None or (message.activity is not None and message.activity.is_waiting):
            return None
        usual_s = median(rates) * input_bytes(attempt.task)
        took_s = self.clock() - attempt.since
        if took_s < max(LEAST_S, SLOW * usual_s):
            return None
        text = f"has run for {took_s:.0f} s, and others took {usual_s:.0f} s for as much"
        return took_s - usual_s, message.attempt, text


@dataclass(slots=True)
class Pending:
    """Attempts whose records wait for their commit, and their number by step."""

    clock: Callable[[], float] = time.monotonic
    attempts: list[Attempt] = field(default_factory=list)
    by_step: Counter[str] = field(default_factory=Counter)
    _since: list[float] = field(default_factory=list)

    def add(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self._since.append(self.clock())
        self.by_step[attempt.task.step] += 1

    @property
    def records(self) -> list[Record]:
        return [attempt.record for attempt in self.attempts if attempt.record is not None]

    @property
    def due_in_s(self) -> float:
        """Seconds until the group is to be committed; infinite while there is none."""
        if not self.attempts:
            return float("inf")
        return 0.0 if len(self.attempts) >= MOST_RECORDS else max(0.0, self._since[0] + LONGEST_WAIT_S - self.clock())

    def take(self, records: Sequence[Record], seconds: float) -> Committed:
        """Ends the wait of all: `records` were committed for them, in so many seconds."""
        now = self.clock()
        attempts = [replace(attempt, record=record) for attempt, record in zip(self.attempts, records, strict=True)]
        lags_s = [now - since for since in self._since]
        self.attempts, self._since = [], []
        self.by_step.clear()
        return Committed(attempts=attempts, lags_s=lags_s, seconds=seconds)


def largest_first(tasks: Sequence[Task]) -> list[Task]:
    """The tasks in order, behind those of `LARGE` times the usual input, the largest first."""
    if not tasks:
        return []
    limit = LARGE * median(map(input_bytes, tasks))
    large = sorted((task for task in tasks if input_bytes(task) > limit), key=input_bytes, reverse=True)
    return [*large, *(task for task in tasks if input_bytes(task) <= limit)]


def input_bytes(task: Task) -> float:
    """About how many bytes a task reads, at least 1, for comparisons within its step."""
    return max(1.0, task.input_bytes)
