"""The live display of a run: tasks, MB/s, documents kept and time left of each step, and what the workers are at; plain lines
without a terminal.

Rates cover the wall time of this process, so the work of an earlier process does not raise the rates of a resumed run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from datapipe.credentials import masked
from datapipe.engine.driver import Observer
from datapipe.engine.protocol import Message
from datapipe.engine.watching.screen import step_lines, step_text
from datapipe.engine.watching.state import RunState, step_json
from datapipe.engine.workers.process import state_of
from datapipe.machine.terminal import harmless
from datapipe.quantities import counted, duration
from datapipe.records.record import Record
from datapipe.report.layout import fitting, print_text
from datapipe.steps.kind import Plan, Task

_PLAIN_EVERY_S = 10.0

_SILENCE_S = 10.0
"""Silence of an attempt that the live display shows, long before the driver tells of it."""


class Progress(Observer):
    """Shows a run. Use it as a context manager around `Run.execute`.

    Args:
        state: of the run, which hears of each event first.
    """

    def __init__(self, console: Console, state: RunState) -> None:
        self.console, self._state = console, state
        self._has_plan = False
        self._live: Live | None = None
        self._last_plain = time.monotonic()

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
        committed = sum(len(step.records) for step in plan.steps)
        if not self._has_plan and committed:
            self.say(f"resuming with {counted(committed, 'committed task')}")
        self._has_plan = True

    def committed(self, record: Record) -> None:
        step = self._state.steps[record.step]
        if self._live is None and step.state == "committed":
            self.say(step_text(step_json(step)))

    def retried(self, task: Task, failure: Any) -> None:
        self.say(f"retrying: {task.label}: {failure.message}")

    def tick(self, messages: Sequence[Message]) -> None:
        if self._live is None and time.monotonic() - self._last_plain > _PLAIN_EVERY_S and self._state.steps:
            for step in self._state.steps.values():
                if step.state == "running" and step.committed:
                    self.say(step_text(step_json(step)))
            for line in self._training():
                self.say(line)
            if left := self._state.text_of_time_left():
                self.say(f"all steps: {left}")
            self._last_plain = time.monotonic()

    def say(self, line: str) -> None:
        print_text(masked(line), self.console)

    # ---------------------------------------------------------------------------------------------- display

    def _training(self) -> Iterator[str]:
        """A line about the training of the tokenizer, which is one task of maybe minutes: for how long, and what it is at."""
        for message in self._state.messages:
            step = self._state.steps.get(message.step)
            if step is not None and step.is_alone and step.began is not None:
                place = message.activity.place if message.activity and message.activity.place else state_of(message)
                yield f"{step.step.title}: {duration(time.monotonic() - step.began)}, {place}"

    def _display(self) -> Group:
        width = self.console.width
        told = step_lines([step_json(step) for step in self._state.steps.values()], self._state.text_of_time_left())
        heading, *steps = (fitting(harmless(line), width) for line in told)
        lines = [fitting(harmless(masked(line)), width) for line in (*at_work(self._state.messages), *self._training())]
        return Group(Text(heading, style="italic"), *map(Text, steps), *(Text(line, style="dim") for line in lines))


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


def _work(message: Message) -> str:
    if message.activity is None:  # nobody has looked at it yet, or it imports what it needs
        return "starting" if message.silent_s >= 1.0 else ""
    return message.activity.work
