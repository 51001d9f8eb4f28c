"""How far the runs of a command are: the sums of their events. The thread of the events writes, others read.

Numbers are of all committed tasks of the plan, also those of an earlier process, so that a resumed run continues where it
was. The size is that of the plan's steps and of the workers, never of the tasks. A command has one run, or with `--follow`
one after the other: steps, failures and messages are of the last one, and `totals` of all.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from datapipe.engine.events import (
    Blocked,
    Committed,
    Event,
    Looked,
    Planned,
    Progress,
    Published,
    Retried,
    RunEnded,
    RunStarted,
    Said,
)
from datapipe.engine.protocol import Message
from datapipe.engine.watching.sums import Figures, Pauses, Sums
from datapipe.engine.watching.time_left import StepState, TimeLeft, time_left

_LAST_LINES = 20


class RunState:
    """An observer that sums.

    Attributes:
        steps: by id, in the order of the plan.
        failures: failed attempts that are tried again, by the kind of the failure. failed: the last one, in words.
        since: when each of `messages` was first seen.
        slots, queued: as of the last `Progress`. pauses: between them.
        lines: the last lines of the run.
        num_published: new snapshots of all runs.
        looked_at: when the sources were last listed, in seconds since 1970; None where they are not followed.
    """

    def __init__(self) -> None:
        self.num_published = 0
        self.looked_at: float | None = None
        self.pauses = Pauses()
        self._output = ""
        self._of_process = Figures()  # of all runs, whatever they found committed
        self._counts = Figures(), Sums()  # of runs into other outputs before, and of this one
        self._begin()

    def _begin(self) -> None:
        self.started = time.time()
        self.steps: dict[str, StepState] = {}
        self.failures: Counter[str] = Counter()
        self.messages: Sequence[Message] = ()
        self.since: dict[str, float] = {}
        self.slots = self.queued = 0
        self.lines: list[str] = []
        self.failed = self._blocked_by = ""

    def observe(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._start(event.output)
            case Planned():
                self._plan(event)
            case Committed():
                self._commit(event)
            case Retried():
                assert event.attempt.failure is not None
                self.failures[event.attempt.failure.kind] += 1
                self._of_process["failures", event.attempt.failure.kind] += 1
                self.failed = str(event)
            case Progress():
                self._progress(event)
            case Blocked():
                self._blocked_by = event.by
            case Said():
                self.lines = [*self.lines[1 - _LAST_LINES :], event.line]
            case RunEnded():
                self._progress(Progress(is_last=True))  # nothing runs any more, also if the last update found a worker
                self.num_published += event.is_new
            case Looked():
                self.looked_at = time.time()
            case Published():
                self.num_published += 1
            case _:
                pass

    def _start(self, output: str) -> None:
        """A run into the same output finds the committed tasks of the last one."""
        if output != self._output:
            ended, sums = self._counts
            self._output, self._counts = output, (Figures(ended).add(sums), Sums())
        self._begin()

    def _plan(self, event: Planned) -> None:
        steps, sums = {}, Sums(event.plan)
        for step in event.plan.steps:
            num_tasks = None if step.tasks is None else len(step.tasks)
            state = steps[step.id] = StepState(step=step, planned=num_tasks, estimate=event.costs.get(step.id))
            if (before := self.steps.get(step.id)) is not None:
                state.began, state.done_here, state.bytes_here = before.began, before.done_here, before.bytes_here
            if num_tasks is not None:
                state.began = state.began or time.monotonic()
            records = tuple(step.records)
            for record in records:
                state.add(record)
            sums.count(step, records)
        self.steps, self._counts = steps, (self._counts[0], sums)  # as a whole, so that no scrape sees a counter fall

    def _commit(self, event: Committed) -> None:
        self._blocked_by = ""
        self._of_process.observe("commit_seconds", value=event.seconds)
        self._of_process.observe("commit_records", value=len(event.attempts))
        for attempt, lag_s in zip(event.attempts, event.lags_s):
            assert attempt.record is not None
            self._of_process.observe("driver_lag_seconds", value=lag_s)
            state = self.steps[attempt.task.step]
            state.done_here += 1
            state.bytes_here += attempt.record.metrics.document_counts.read_bytes
            state.add(attempt.record)
            self.sums.count(state.step, [attempt.record])

    def _progress(self, event: Progress) -> None:
        now = time.time()
        self.since = {message.attempt: self.since.get(message.attempt, now) for message in event.messages}
        self.messages, self.slots, self.queued = event.messages, event.slots, event.queued
        if event.is_last:
            self.pauses.end()
            self._blocked_by = ""
        else:
            self.pauses.update()

    @property
    def sums(self) -> Sums:
        """Over the committed tasks of the last plan."""
        return self._counts[1]

    def totals(self) -> Figures:
        ended, sums = self._counts
        return Figures(ended).add(sums).add(self._of_process)

    @property
    def running(self) -> Counter[str]:
        """Running attempts by step."""
        return Counter(message.step for message in self.messages)

    def time_left(self) -> TimeLeft | None:
        """Until all steps are committed; None while unknown."""
        now, since, messages = time.time(), self.since, self.messages
        running: defaultdict[str, list[float]] = defaultdict(list)
        for each in messages:
            running[each.step].append(max(0.0, now - since.get(each.attempt, now)))
        steps = [replace(step, running_s=running[name]) for name, step in self.steps.items()]
        return time_left(steps, self.slots)

    def text_of_time_left(self) -> str:
        """In words, for people; empty while unknown."""
        left = self.time_left() if self.steps else None
        return "" if left is None else str(left)

    def waiting(self) -> list[str]:
        """What attempts wait for: another process, a node that has what they need, a disk or store that does not answer."""
        works = {str(each.activity.work) for each in self.messages if each.activity and each.activity.is_waiting}
        return sorted(works | {self._blocked_by} - {""})
