"""How far a run is: the sums over its committed tasks, and what its workers are at. The driver's thread writes, others read.

Numbers are of all committed tasks of the plan, also those that an earlier process committed, so that a resumed run goes on
where it was. Its size is that of the plan's steps and of the workers, never of the tasks.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datapipe.engine.driver import Observer
from datapipe.engine.protocol import Attempt, Failure, Message
from datapipe.figures import DriverFigures, Histogram
from datapipe.plan.compile import Plan, Step
from datapipe.plan.estimate import StepTime
from datapipe.plan.work import Record, Task
from datapipe.watching.time_left import StepProgress, TimeLeft, time_left

_LAST_LINES = 20
_TASK_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


@dataclass(slots=True)
class StepState:
    """One step.

    Attributes:
        planned: tasks; None while the steps before it are not committed.
        seconds: summed over the committed tasks.
        bytes: of text that its tasks have read.
        done_here: tasks that this process has committed.
        slowest_s, slowest: of the committed tasks: the longest time, and the first digits of the task's fingerprint.
    """

    step: Step
    planned: int | None
    committed: int = 0
    seconds: float = 0.0
    bytes: int = 0
    done_here: int = 0
    slowest_s: float = 0.0
    slowest: str = ""

    @property
    def state(self) -> str:
        if self.planned is None:
            return "waiting"
        return "committed" if self.committed >= self.planned else "running"

    def add(self, record: Record) -> None:
        self.committed += 1
        self.seconds += record.metrics.seconds
        if record.metrics.seconds > self.slowest_s:
            self.slowest_s, self.slowest = record.metrics.seconds, record.fingerprint[:12]
        self.bytes += record.metrics.document_counts.read_bytes


class Sums:
    """Sums over the committed tasks of a plan.

    Attributes:
        documents: by (source, fate): read, kept, dropped, quarantined.
        input_bytes, tokens: by source. output_bytes: by kind of task.
        task_seconds: by kind of task.
        second_attempts: tasks that had two attempts at once, by whether the second one "won" or "lost".
    """

    def __init__(self, plan: Plan | None = None) -> None:
        self.documents: Counter[tuple[str, str]] = Counter()
        self.input_bytes: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.output_bytes: Counter[str] = Counter()
        self.task_seconds: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(_TASK_SECONDS))
        self.second_attempts: Counter[str] = Counter()
        maps = [] if plan is None else plan.of_kind("map")
        self._first = {step.source: step.id for step in reversed(maps)}
        self._last = {step.source: step.id for step in maps}

    def add(self, state: StepState, records: Iterable[Record]) -> None:
        source, kind = state.step.source, state.step.kind
        for record in records:
            state.add(record)
            self.task_seconds[kind].add(record.metrics.seconds)
            self.tokens[source] += record.metrics.tokens if kind == "tokenize" else 0
            if record.metrics.second_attempt:
                self.second_attempts[record.metrics.second_attempt] += 1
            self.output_bytes[kind] += sum(file.bytes for files in record.outputs.values() for file in files)
            if kind == "map":
                self._add_documents(source, state.step.id, record)

    def _add_documents(self, source: str, step: str, record: Record) -> None:
        counts = record.metrics.document_counts
        self.documents[source, "dropped"] += counts.dropped.total()
        self.documents[source, "quarantined"] += counts.quarantined
        if step == self._first[source]:
            self.documents[source, "read"] += counts.read
            self.input_bytes[source] += counts.read_bytes
        if step == self._last[source]:
            self.documents[source, "kept"] += counts.kept


class RunState(Observer):
    """An observer that sums.

    Attributes:
        steps: by id, in the order of the plan.
        sums: over the committed tasks. Replaced as a whole: a scrape in the middle of a new plan sees no counter fall.
        failures: failed attempts by the kind of the failure.
        driver: what the driver counts of itself.
        estimate: about how long each step of a plan takes.
        messages: what each running attempt is at.
        lines: the last that the run said. failed: the last failed attempt, in words.
    """

    def __init__(self) -> None:
        self.started = time.time()
        self.steps: dict[str, StepState] = {}
        self.sums = Sums()
        self.failures: Counter[str] = Counter()
        self.driver = DriverFigures()
        self.estimate: Callable[[Plan], Mapping[str, StepTime]] = lambda plan: {}
        self.messages: Sequence[Message] = ()
        self.since: dict[str, float] = {}
        self.lines: list[str] = []
        self.failed = ""
        self._times: Mapping[str, StepTime] = {}

    # ---------------------------------------------------------------------------------------------- called by the driver

    def planned(self, plan: Plan) -> None:
        done = {name: step.done_here for name, step in self.steps.items()}
        steps = {step.id: StepState(step, None if step.tasks is None else len(step.tasks)) for step in plan.steps}
        sums = Sums(plan)
        for step in plan.steps:
            steps[step.id].done_here = done.get(step.id, 0)
            sums.add(steps[step.id], step.records)
        self._times = self.estimate(plan)
        self.steps, self.sums = steps, sums

    def committed(self, record: Record) -> None:
        state = self.steps[record.step]
        state.done_here += 1
        self.sums.add(state, [record])

    def retried(self, task: Task, failure: Failure) -> None:
        self.failures[failure.kind] += 1
        self.failed = f"{task.label}: {failure.message}"

    def tick(self, messages: Sequence[Message]) -> None:
        now = time.time()
        self.since = {message.attempt: self.since.get(message.attempt, now) for message in messages}
        self.messages = messages

    def say(self, line: str) -> None:
        self.lines = [*self.lines[1 - _LAST_LINES :], line]

    # ---------------------------------------------------------------------------------------------- read by others

    @property
    def running(self) -> Counter[str]:
        """Running attempts by step."""
        return Counter(message.step for message in self.messages)

    def time_left(self) -> TimeLeft | None:
        """Until all steps are committed; None while nothing tells."""
        now, since, messages = time.time(), self.since, self.messages
        running: defaultdict[str, list[float]] = defaultdict(list)
        for each in messages:
            running[each.step].append(max(0.0, now - since.get(each.attempt, now)))
        steps = [
            StepProgress(
                planned=state.planned,
                committed=state.committed,
                seconds=state.seconds,
                running_s=running[name],
                estimate=self._times.get(name),
                is_alone=state.step.kind == "train",
            )
            for name, state in self.steps.items()
        ]
        return time_left(steps, self.driver.slots)

    def text_of_time_left(self) -> str:
        """In words, for people; empty while nothing tells."""
        left = self.time_left() if self.steps else None
        return "" if left is None else str(left)

    def waiting(self) -> list[str]:
        """What attempts wait for: another process, a node that has what they need, a disk or store that does not answer."""
        works = {str(each.activity.work) for each in self.messages if each.activity and each.activity.is_waiting}
        return sorted(works | {self.driver.waits_for} - {""})


class Observers(Observer):
    """Tells each of its observers, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = tuple(observers)

    def planned(self, plan: Plan) -> None:
        self._tell("planned", plan)

    def committed(self, record: Record) -> None:
        self._tell("committed", record)

    def ended(self, attempt: Attempt) -> None:
        self._tell("ended", attempt)

    def retried(self, task: Task, failure: Failure) -> None:
        self._tell("retried", task, failure)

    def tick(self, messages: Sequence[Message]) -> None:
        self._tell("tick", messages)

    def say(self, line: str) -> None:
        self._tell("say", line)

    def _tell(self, method: str, *what: object) -> None:
        for observer in self.observers:
            getattr(observer, method)(*what)


def message_json(message: Message, since: float) -> dict[str, Any]:
    """A running attempt, for people and programs."""
    return {
        "task": message.task,
        "attempt": message.attempt,
        "node": message.node,
        "since": since,
        "at": str(message.activity) if message.activity else "starting",
        "silent_s": round(message.silent_s, 1),
        "memory_bytes": message.memory_bytes,
    }
