"""The live display of a run: tasks, MB/s, documents kept and time left of each step, and the work of the workers; plain lines
without a terminal. Rates cover the wall time of this process, so a resumed run does not count the work of an earlier process.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from datapipe.credentials import masked
from datapipe.engine.events import Committed, Event, Planned, Progress, RunEnded, RunStarted, line_of
from datapipe.engine.protocol import Message
from datapipe.engine.watching.screen import step_lines, step_text
from datapipe.engine.watching.state import RunState
from datapipe.engine.watching.status import step_json
from datapipe.engine.workers.process import state_of
from datapipe.machine.terminal import harmless
from datapipe.quantities import counted, duration
from datapipe.report.layout import fitting, print_text

_PLAIN_EVERY_S = 10.0

_SILENCE_S = 10.0
"""Silence of an attempt that the live display shows, long before the driver reports it."""


class Terminal:
    """An observer that shows runs. `state` observes each event first."""

    def __init__(self, console: Console, state: RunState) -> None:
        self.console, self._state = console, state
        self._has_plan = False
        self._live: Live | None = None
        self._last_plain = time.monotonic()

    def observe(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._has_plan = False
                if self.console.is_terminal:
                    self._live = Live(console=self.console, get_renderable=self.display, refresh_per_second=4, transient=True)
                    self._live.start()
            case RunEnded() if self._live is not None:
                self._live.stop()
                self._live = None
            case Planned():
                committed = sum(len(step.records) for step in event.plan.steps)
                if not self._has_plan and committed:
                    self._print(f"resuming with {counted(committed, 'committed task')}")
                self._has_plan = True
            case Committed() if self._live is None:
                ended = [self._state.steps[name] for name in dict.fromkeys(each.task.step for each in event.attempts)]
                for step in ended:
                    if step.state == "committed":
                        self._print(step_text(step_json(step, None)))
            case Progress() if self._live is None and time.monotonic() - self._last_plain > _PLAIN_EVERY_S:
                self._print_all()
            case _:
                if line := line_of(event):
                    self._print(line)

    def _print_all(self) -> None:
        if self._state.steps:
            left = self._state.time_left()
            for step in self._state.steps.values():
                if step.state == "running" and step.totals.tasks:
                    self._print(step_text(step_json(step, left)))
            for line in self._training():
                self._print(line)
            if left and str(left):
                self._print(f"all steps: {left}")
            self._last_plain = time.monotonic()

    def _print(self, line: str) -> None:
        print_text(masked(line), self.console)

    def _training(self) -> Iterator[str]:
        for message in self._state.messages:
            step = self._state.steps.get(message.step)
            if step is not None and step.is_alone and step.began is not None:
                place = message.activity.place if message.activity and message.activity.place else state_of(message)
                yield f"{step.step.title}: {duration(time.monotonic() - step.began)}, {place}"

    def display(self) -> Group:
        width = self.console.width
        left = self._state.time_left()
        shown = step_lines([step_json(step, left) for step in self._state.steps.values()], str(left or ""))
        heading, *steps = (fitting(harmless(line), width) for line in shown)
        lines = [fitting(harmless(masked(line)), width) for line in (*worker_lines(self._state.messages), *self._training())]
        return Group(Text(heading, style="italic"), *map(Text, steps), *(Text(line, style="dim") for line in lines))


def worker_lines(messages: Sequence[Message]) -> list[str]:
    """The work of the workers, in one line, and in another the attempt that has been silent longest, if that is long."""
    active = [message for message in messages if message.activity is not None or message.silent_s >= 1.0]
    counts = Counter("starting" if message.activity is None else message.activity.work for message in active)
    del counts[""]  # between two pieces of work
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    lines = ["workers: " + ", ".join(f"{count} {work}" for work, count in ranked)] if ranked else []
    silent = max(messages, key=lambda message: message.silent_s, default=None)
    if silent is not None and silent.silent_s >= _SILENCE_S:
        lines.append(f"no report for {silent.silent_s:.0f} s: {silent.activity or 'starting'}")
    return lines
