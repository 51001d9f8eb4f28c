"""How far a run is: the sums over its committed tasks, and what its workers are at. The driver's thread writes, others read.

Numbers are of all committed tasks of the plan, also those that an earlier process committed, so that a resumed run goes on
where it was. Its size is that of the plan's steps and of the workers, never of the tasks.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from datapipe.engine.driver import Observer
from datapipe.engine.figures import DriverFigures, Figures
from datapipe.engine.protocol import Attempt, Failure, Message
from datapipe.engine.watching.time_left import StepState, TimeLeft, time_left
from datapipe.metrics import DocumentCounts
from datapipe.records.record import Record
from datapipe.steps.costs import StepCost
from datapipe.steps.kind import Plan, Step, Task
from datapipe.steps.tokenize import TokenizeMetrics, TokenizeTask

_LAST_LINES = 20


class Sums(Figures):
    """Sums over the committed tasks of a plan: documents by source and fate (read, kept, dropped, quarantined), bytes of text
    and tokens by source, and by kind of task, by step and by the end of a second attempt what `metrics.py` names."""

    def __init__(self, plan: Plan | None = None) -> None:
        maps = [] if plan is None else plan.of_kind("map")
        self._first = {step.source: step.id for step in reversed(maps)}
        self._last = {step.source: step.id for step in maps}

    def count(self, state: StepState, records: Iterable[Record]) -> None:
        step = state.step
        for record in records:
            state.add(record)
            metrics = record.metrics
            self["task_seconds", step.id] += metrics.seconds
            self.observe("task_duration_seconds", step.kind, value=metrics.seconds)
            self["tokens", step.source] += metrics.of(TokenizeMetrics).tokens if step.work is TokenizeTask else 0
            if metrics.second_attempt:
                self["second_attempts", metrics.second_attempt] += 1
            self["output_bytes", step.kind] += sum(file.bytes for files in record.outputs.values() for file in files)
            if step.kind == "map":
                self._count_documents(step, metrics.document_counts)

    def _count_documents(self, step: Step, counts: DocumentCounts) -> None:
        source = step.source
        self["documents", source, "dropped"] += counts.dropped.total()
        self["documents", source, "quarantined"] += counts.quarantined
        if step.id == self._first[source]:
            self["documents", source, "read"] += counts.read
            self["input_bytes", source] += counts.read_bytes
        if step.id == self._last[source]:
            self["documents", source, "kept"] += counts.kept


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
        self.estimate: Callable[[Plan], Mapping[str, StepCost]] = lambda plan: {}
        self.messages: Sequence[Message] = ()
        self.since: dict[str, float] = {}
        self.lines: list[str] = []
        self.failed = ""

    # ---------------------------------------------------------------------------------------------- called by the driver

    def planned(self, plan: Plan) -> None:
        steps, sums, times = {}, Sums(plan), self.estimate(plan)
        for step in plan.steps:
            num_tasks = None if step.tasks is None else len(step.tasks)
            before = self.steps.get(step.id) or StepState(step=step, planned=num_tasks)
            began = before.began or (None if num_tasks is None else time.monotonic())
            here = {"began": began, "done_here": before.done_here, "bytes_here": before.bytes_here}
            steps[step.id] = StepState(step=step, planned=num_tasks, estimate=times.get(step.id), **here)
            sums.count(steps[step.id], step.records)
        self.steps, self.sums = steps, sums

    def committed(self, record: Record) -> None:
        state = self.steps[record.step]
        state.done_here += 1
        state.bytes_here += record.metrics.document_counts.read_bytes
        self.sums.count(state, [record])

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
        steps = [replace(step, running_s=running[name]) for name, step in self.steps.items()]
        return time_left(steps, self.driver.slots)

    def text_of_time_left(self) -> str:
        """In words, for people; empty while nothing tells."""
        left = self.time_left() if self.steps else None
        return "" if left is None else str(left)

    def waiting(self) -> list[str]:
        """What attempts wait for: another process, a node that has what they need, a disk or store that does not answer."""
        works = {str(each.activity.work) for each in self.messages if each.activity and each.activity.is_waiting}
        return sorted(works | {self.driver.waits_for} - {""})


class CommandFigures:
    """What the runs of one command have counted in all: one run, or those of `--follow`, one after the other.

    Attributes:
        num_published: new snapshots that this process has published.
        looked_at: when it last looked for new files, in seconds since 1970; None where it does not follow.
    """

    def __init__(self) -> None:
        self.num_published = 0
        self.looked_at: float | None = None
        self._output = ""
        self._shown: tuple[Figures, RunState | None, RunState] = Figures(), None, RunState()

    @property
    def state(self) -> RunState:
        """The run that is at work, or was last."""
        return self._shown[2]

    def begin_run(self, state: RunState, output: str) -> None:
        """Counts the next run, from where the one before has ended. A run into the same output finds the committed tasks of the
        one before, and counts them itself."""
        ended, earlier, before = self._shown
        ended = Figures(ended).add(_of_process(before))
        last = _planned(before, earlier)
        if output != self._output:
            self._output = output
            self._shown = ended.add(last.sums), None, state
        else:
            self._shown = ended, last, state

    def totals(self) -> Figures:
        """Of all runs so far."""
        ended, earlier, state = self._shown
        return Figures(ended).add(_of_process(state)).add(_planned(state, earlier).sums)


def _of_process(state: RunState) -> Figures:
    """What a run has counted in this process alone."""
    return Figures(state.driver.sums).add({("failures", kind): count for kind, count in dict(state.failures).items()})


def _planned(state: RunState, earlier: RunState | None) -> RunState:
    """The run whose committed tasks count: the earlier one into the same output, until the later one has a plan."""
    return state if state.steps or earlier is None else earlier


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


def step_json(step: StepState) -> dict[str, Any]:
    """How far a step is, for people and programs. The rate and the time left are of this process alone."""
    here_s = 0.0 if step.began is None else time.monotonic() - step.began
    remaining = (step.planned or 0) - step.committed
    return {
        "step": step.step.id,
        "title": step.step.title,
        "state": step.state,
        "tasks": step.planned,
        "committed": step.committed,
        "seconds": step.seconds,
        "slowest": {"task": step.slowest, "seconds": step.slowest_s},
        "kept": step.kept,
        "written": {"rows": step.rows, "bytes": step.stored_bytes} if step.step.work.is_exchange else None,
        "mb_per_s": step.bytes_here / 1e6 / here_s if here_s else 0.0,
        "seconds_left": here_s / step.done_here * remaining if step.done_here and remaining > 0 else None,
    }
