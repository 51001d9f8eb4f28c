"""The live display of a run: tasks, MB/s, documents kept and time left of each step, and what the workers are at; plain lines
without a terminal.

Rates cover the wall time of this process, so the work of an earlier process does not raise the rates of a resumed run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from datapipe.credentials import masked
from datapipe.engine.driver import Observer
from datapipe.engine.protocol import Message
from datapipe.engine.workers.process import state_of
from datapipe.metrics import counted, size
from datapipe.plan.compile import EXCHANGES, Plan, Step
from datapipe.plan.work import Record, Task
from datapipe.report.layout import fitting, print_text
from datapipe.terminal import harmless

_PLAIN_EVERY_S = 10.0

_SILENCE_S = 10.0
"""Silence of an attempt that the live display shows, long before the driver tells of it."""


@dataclass(slots=True)
class _Pace:
    """The work of a step in this process."""

    began: float
    done: int = 0
    text_bytes: int = 0

    def left_s(self, remaining: int) -> float | None:
        return (time.monotonic() - self.began) / self.done * remaining if self.done else None

    def mb_per_s(self) -> float | None:
        elapsed = time.monotonic() - self.began
        return self.text_bytes / 1e6 / elapsed if self.text_bytes and elapsed > 0 else None


class Progress(Observer):
    """Observes a run. Use it as a context manager around `Run.execute`.

    Args:
        time_left: the time left of the whole run, in words; empty while nothing tells.
    """

    def __init__(self, console: Console, time_left: Callable[[], str] = lambda: "") -> None:
        self.console, self._time_left = console, time_left
        self._plan: Plan | None = None
        self._paces: dict[str, _Pace] = {}
        self._records: dict[str, list[Record]] = {}
        self._live: Live | None = None
        self._last_plain = time.monotonic()
        self._at_work: list[str] = []
        self._training: list[list[str]] = []

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            live = Live(console=self.console, get_renderable=self._display, refresh_per_second=4, transient=True)
            live.start()
            self._live = live
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    # ---------------------------------------------------------------------------------------------- called by the driver

    def planned(self, plan: Plan) -> None:
        first = self._plan is None
        self._plan = plan
        self._records = {step.id: list(step.records) for step in plan.steps}
        for step in plan.steps:
            if step.tasks is not None and not step.is_committed and step.id not in self._paces:
                self._paces[step.id] = _Pace(began=time.monotonic())
        if first and any(step.records for step in plan.steps):
            committed = sum(len(step.records) for step in plan.steps)
            self.say(f"resuming with {counted(committed, 'committed task')}")

    def committed(self, record: Record) -> None:
        self._records.setdefault(record.step, []).append(record)
        pace = self._paces.setdefault(record.step, _Pace(began=time.monotonic()))
        pace.done += 1
        pace.text_bytes += record.metrics.document_counts.read_bytes
        step = next((step for step in self._plan.steps if step.id == record.step), None) if self._plan else None
        if self._live is None and step is not None and len(self._records[step.id]) == len(step.tasks or ()):
            self._plain(step)

    def retried(self, task: Task, failure: Any) -> None:
        self.say(f"retrying: {task.label}: {failure.message}")

    def tick(self, messages: Sequence[Message]) -> None:
        self._at_work, self._training = at_work(messages), self._training_parts(messages)
        if self._live is None and time.monotonic() - self._last_plain > _PLAIN_EVERY_S and self._plan is not None:
            for step in self._plan.steps:
                if step.tasks and 0 < len(self._records.get(step.id, ())) < len(step.tasks):
                    self._plain(step)
            for parts in self._training:
                self.say(", ".join(parts))
            if left := self._time_left():
                self.say(f"all steps: {left}")
            self._last_plain = time.monotonic()

    def _training_parts(self, messages: Sequence[Message]) -> list[list[str]]:
        """The parts of a line about the training of the tokenizer, which is one task of maybe minutes: for how long, and what
        it is at, in the end the time left."""
        steps = {step.id: step for step in self._plan.steps if step.kind == "train"} if self._plan else {}
        at_work = [(steps.get(message.task.partition(" ")[0]), message) for message in messages]
        return [
            [f"{step.title}: {duration(time.monotonic() - self._paces[step.id].began)}", *_place_of(message).split(", ")]
            for step, message in at_work
            if step is not None and step.id in self._paces
        ]

    def say(self, line: str) -> None:
        print_text(masked(line), self.console)

    # ---------------------------------------------------------------------------------------------- display

    def _row(self, step: Step) -> tuple[str, str, str, str]:
        records = self._records.get(step.id, [])
        pace = self._paces.get(step.id)
        tasks = f"{len(records)}/{'?' if step.tasks is None else len(step.tasks)}"
        rate = pace.mb_per_s() if pace else None
        kept = sum(record.metrics.document_counts.kept for record in records)
        done = f"{kept:,} kept" if kept else ""
        if step.kind in EXCHANGES:
            outputs = [output for record in records for files in record.outputs.values() for output in files]
            seconds = sum(record.metrics.seconds for record in records)
            rows, stored = sum(output.rows for output in outputs), sum(output.bytes for output in outputs)
            done = f"{counted(rows, 'row')}, {size(stored)}, {seconds:,.1f} s"
        remaining = 0 if step.tasks is None else len(step.tasks) - len(records)
        left = pace.left_s(remaining) if pace and remaining else None
        return tasks, "" if rate is None else f"{rate:,.1f} MB/s", done, "" if left is None else f"{duration(left)} left"

    def _plain(self, step: Step) -> None:
        self.say("  ".join(part for part in (step.title, *self._row(step)) if part))

    def _display(self) -> Group:
        width = self.console.width
        training = (", ".join(_fitting_parts(parts, width)) for parts in self._training)
        heading, *steps = (fitting(harmless(line), width) for line in self._steps())
        lines = [fitting(harmless(masked(line)), width) for line in (*self._at_work, *training)]
        return Group(Text(heading, style="italic"), *map(Text, steps), *(Text(line, style="dim") for line in lines))

    def _steps(self) -> Iterator[str]:
        """The number of completed steps, and a line for each with running tasks, its numbers before its title."""
        steps = self._plan.steps if self._plan else []
        done = f"{sum(self._is_done(step) for step in steps)} of {counted(len(steps), 'step')} done"
        yield ", ".join(filter(None, (done, self._time_left())))
        for step in steps:
            if step.tasks and not self._is_done(step):
                tasks, rate, kept, left = self._row(step)
                yield "  " + "  ".join(filter(None, (f"{tasks:>7}", left, kept, rate, step.title)))

    def _is_done(self, step: Step) -> bool:
        return step.tasks is not None and len(self._records.get(step.id, ())) >= len(step.tasks)


def at_work(messages: Sequence[Message]) -> list[str]:
    """What the workers are at, in one line, and in another the attempt that has been silent for longest, if that is long."""
    counts = Counter(_work(message) for message in messages)
    del counts[""]  # between two pieces of work
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    lines = ["workers: " + ", ".join(f"{count} {work}" for work, count in ranked)] if ranked else []
    silent = max(messages, key=lambda message: message.silent_s, default=None)
    if silent is not None and silent.silent_s >= _SILENCE_S:
        lines.append(f"no word for {silent.silent_s:.0f} s: {silent.activity or 'starting'}")
    return lines


def _place_of(message: Message) -> str:
    """What the training is at: "counting words, 64 MB of 256 MB, about 225 s left"."""
    return message.activity.place if message.activity and message.activity.place else state_of(message)


def _fitting_parts(parts: Sequence[str], width: int) -> list[str]:
    """The parts of a line that fit: the later ones are left out first, but for the time left."""
    kept = list(parts)
    while len(kept) > 2 and len(", ".join(kept)) > width:
        del kept[-2 if kept[-1].endswith(" left") else -1]
    return kept


def _work(message: Message) -> str:
    if message.activity is None:  # nobody has looked at it yet, or it imports what it needs
        return "starting" if message.silent_s >= 1.0 else ""
    return message.activity.work


def duration(seconds: float) -> str:
    """1:05, or 2:03:04."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def committed_size(step: Step) -> str:
    """The bytes of a step's committed outputs, with a unit."""
    return size(sum(output.bytes for record in step.records for group in record.outputs.values() for output in group))
