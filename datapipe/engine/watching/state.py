"""How far the runs of a command are: the sums of their events. The thread of the events writes, others read.

Numbers are of all committed tasks of the plan, also those of an earlier process, so that a resumed run continues where it
was. The size is that of the plan's steps and of the workers, never of the tasks. A command has one run, or with `--follow`
one after the other, which find the committed tasks of the runs before: steps, failures and messages are of the last one, and
`totals` of all.
"""

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

from datapipe.dataclass import replace
from datapipe.engine import events
from datapipe.engine.protocol import Message
from datapipe.engine.watching.time_left import StepState, TimeLeft, time_left
from datapipe.steps.kind import Step
from datapipe.steps.tokenize import TokenizeMetrics
from datapipe.steps.totals import TASK_SECONDS, Records, Totals

_LAST_LINES = 20
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WINDOW_S = 60.0

BOUNDS: Mapping[str, Sequence[float]] = {
    "task_duration_seconds": TASK_SECONDS,
    "driver_lag_seconds": _SECONDS,
    "commit_seconds": _SECONDS,
    "commit_records": (1, 3, 10, 30, 100, 300, 1000, 3000),
}
"""The histograms."""


class Figures(dict[tuple[str, ...], float]):
    """Sums by the name of a figure and its labels. A histogram has one for each bucket, "+Inf" the last, and "sum"."""

    def __missing__(self, key: tuple[str, ...]) -> float:
        return 0

    def observe(self, name: str, *labels: str, value: float) -> None:
        bounds = BOUNDS[name]
        index = bisect_left(bounds, value)
        self[name, *labels, str(bounds[index]) if index < len(bounds) else "+Inf"] += 1
        self[name, *labels, "sum"] += value


def sums_of(steps: Mapping[str, StepState]) -> Figures:
    """Sums over the committed tasks of a plan, as `metrics.py` names them. Documents are by source
    and fate: read, kept, dropped, quarantined."""
    sums, of_documents = Figures(), dict[str, list[Totals]]()
    for name, state in steps.items():
        totals, kind, source = state.totals, state.step.kind, state.step.source
        sums["task_seconds", name] = totals.seconds
        for number, count in dict(totals.durations).items():
            sums["task_duration_seconds", kind, str([*TASK_SECONDS, "+Inf"][number])] += count
        sums["task_duration_seconds", kind, "sum"] += totals.seconds
        sums["tokens", source] += totals.own.tokens if isinstance(totals.own, TokenizeMetrics) else 0
        for end, count in dict(totals.second_attempts).items():
            sums["second_attempts", end] += count
        sums["output_bytes", kind] += totals.bytes
        if kind == "map":
            of_documents.setdefault(source, []).append(totals)
    for source, listed in of_documents.items():
        first, last = listed[0].documents, listed[-1].documents
        sums["documents", source, "read"], sums["input_bytes", source] = first.read, first.read_bytes
        sums["documents", source, "kept"] = last.kept
        sums["documents", source, "dropped"] = sum(sum(dict(each.documents.dropped).values()) for each in listed)
        sums["documents", source, "quarantined"] = sum(each.documents.quarantined for each in listed)
    return sums


def _growing(step: Step) -> Totals:
    """The sums of a step, to which those of its next tasks can be added. A copy takes 0.3 ms, and most of the steps of a large
    plan are committed or wait: they need none."""
    if step.is_committed:
        return step.totals
    return deepcopy(step.totals) if step.records else Records().totals(step.work.metrics_type)


class Pauses:
    """The longest time between two updates of the driver, of the last one or two minutes. `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.end()

    def update(self) -> None:
        now = self._clock()
        if now - self._window >= _WINDOW_S:
            self._window, self._longest = now, (0.0, self._longest[0])
        if self._updated is not None:
            self._longest = max(self._longest[0], now - self._updated), self._longest[1]
        self._updated = now

    def end(self) -> None:
        self._window, self._longest = 0.0, (0.0, 0.0)
        self._updated: float | None = None

    @property
    def longest_s(self) -> float:
        updated = self._updated
        return max(*self._longest, 0.0 if updated is None else self._clock() - updated)


class RunState:
    """An observer that sums.

    Attributes: steps: by id, in the order of the plan. failures: failed attempts that are tried
        again, by the kind of the failure. failed: the last one, in words. since: when each of
        `messages` was first seen. slots, queued: as of the last `Progress`. pauses: between them.
        lines: the last lines of the run. num_published: new snapshots of all runs. listed_at: when
        the sources were last listed, in seconds since 1970; None where they are not followed.
    """

    def __init__(self) -> None:
        self.num_published = 0
        self.listed_at: float | None = None
        self.pauses = Pauses()
        self._planned: Mapping[str, StepState] = {}  # the steps of the last plan, also while the next run has none
        self._of_process = Figures()  # of all runs, whatever they found committed
        self._begin()

    def _begin(self) -> None:
        self.started = time.time()
        self.steps: dict[str, StepState] = {}
        self.failures: Counter[str] = Counter()
        self.messages: Sequence[Message] = ()
        self.since: dict[str, float] = {}
        self.slots = self.queued = 0
        self.lines: list[str] = []
        self.failed = self._blocked_by = self._waits_for = ""

    def observe(self, event: events.Event) -> None:
        match event:
            case events.RunStarted():
                self._begin()
            case events.Planned():
                self._plan(event)
            case events.Committed():
                self._commit(event)
            case events.Retried():
                assert event.attempt.failure is not None
                self.failures[event.attempt.failure.kind] += 1
                self._of_process["failures", event.attempt.failure.kind] += 1
                self.failed = str(event)
            case events.Progress():
                self._progress(event)
            case events.Blocked():
                self._blocked_by = event.by
            case events.UserMessage():
                self.lines = [*self.lines[1 - _LAST_LINES :], event.line]
            case events.RunEnded():
                self._progress(events.Progress(is_last=True))  # nothing runs any more, also if the last update found a worker
                self.num_published += event.is_new
            case events.SourcesListed():
                self.listed_at = time.time()
            case events.Published():  # that of a run has been counted
                self.num_published += not event.is_generation
            case _:
                pass

    def _plan(self, event: events.Planned) -> None:
        steps: dict[str, StepState] = {}
        for step in event.plan.steps:
            num_tasks, totals = None if step.tasks is None else len(step.tasks), _growing(step)
            state = steps[step.id] = StepState(step=step, planned=num_tasks, totals=totals, estimate=event.costs.get(step.id))
            if (before := self.steps.get(step.id)) is not None:
                state.began, state.bytes_here = before.began, before.bytes_here
            if num_tasks is not None:
                state.began = state.began or time.monotonic()
        self.steps = self._planned = steps  # as a whole, so that no scrape sees a counter fall

    def _commit(self, event: events.Committed) -> None:
        self._blocked_by = ""
        self._of_process.observe("commit_seconds", value=event.seconds)
        self._of_process.observe("commit_records", value=len(event.attempts))
        for attempt, lag_s in zip(event.attempts, event.lags_s):
            assert attempt.record is not None
            self._of_process.observe("driver_lag_seconds", value=lag_s)
            state = self.steps[attempt.task.step]
            state.bytes_here += attempt.record.metrics.document_counts.read_bytes
            state.totals.add(attempt.record)

    def _progress(self, event: events.Progress) -> None:
        now = time.time()
        self.since = {message.attempt: self.since.get(message.attempt, now) for message in event.messages}
        self.messages, self.slots, self.queued = event.messages, event.slots, event.queued
        self._waits_for = event.waits_for
        if event.is_last:
            self.pauses.end()
            self._blocked_by = ""
        else:
            self.pauses.update()

    @property
    def sums(self) -> Figures:
        """Over the committed tasks of the last plan."""
        return sums_of(self._planned)

    def totals(self) -> Figures:
        totals = self.sums
        for key, value in dict(self._of_process).items():
            totals[key] += value
        return totals

    @property
    def running(self) -> Counter[str]:
        return Counter(message.step for message in self.messages)

    def time_left(self) -> TimeLeft | None:
        """Until all steps are committed; None while unknown."""
        now, since, messages = time.time(), self.since, self.messages
        running: defaultdict[str, list[float]] = defaultdict(list)
        for each in messages:
            running[each.step].append(max(0.0, now - since.get(each.attempt, now)))
        steps = [replace(step, running_s=running[name]) for name, step in self.steps.items()]
        return time_left(steps, self.slots)

    def waiting(self) -> list[str]:
        """What tasks wait for: another process, a node that has what they need or compiles kernels, a disk or store that
        does not answer."""
        works = {str(each.activity.work) for each in self.messages if each.activity and each.activity.is_waiting}
        return sorted((works | {self._blocked_by, self._waits_for}) - {""})
