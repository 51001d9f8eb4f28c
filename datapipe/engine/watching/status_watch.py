"""`datapipe status --watch`: the status of a run until the run ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from datapipe.credentials import masked
from datapipe.engine.watching.screen import left_text, status_lines, step_lines
from datapipe.quantities import counted
from datapipe.report.layout import fitting, print_text

_KILLED = 3
"""Exit status for a run that was killed: it has told none."""

Status = Mapping[str, Any]


def watch(
    read: Callable[[], Status], output: str, every_s: float, console: Console, wait: Callable[[float], None] = time.sleep
) -> int:
    """Shows the status of a run until the run ends.

    Args:
        read: reads the status.
        output: for display.

    Returns:
        The exit status of the run.
    """
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        status, before = None, None
        for status, problem in _looks(read, every_s, wait):
            if live is not None:
                lines = [*(status_lines(status, output) if status is not None else ()), *([problem] if problem else [])]
                live.update(Group(*(Text(fitting(masked(line), console.width)) for line in lines)), refresh=True)
            elif problem:
                print_text(masked(f"{output}: {problem}"), console)
            elif status is not None:
                now = status["state"], [step["committed"] for step in status["steps"]], status["failures"]
                if now != before:
                    print_text(masked(_line(status, output)), console)
                before = now
    assert status is not None
    return status.get("exit_status", _KILLED)


def _looks(read: Callable[[], Status], every_s: float, wait: Callable[[float], None]) -> Iterator[tuple[Status | None, str]]:
    """The status again and again, the last one of a run that has ended; with what is wrong where it cannot be read.

    A run counts as killed when two looks find it killed: between its last commit and its last word nobody holds the output.
    """
    status: Status | None = None
    was_killed = False
    while True:
        problem = ""
        try:
            status = read()
        except OSError as error:
            problem = f"cannot be read now: {error.strerror or error}"
        else:
            is_killed = status["state"] == "killed"
            if status["state"] != "running" and (was_killed or not is_killed):
                yield status, ""
                return
            was_killed = is_killed
        if not was_killed:
            yield status, problem
        wait(every_s)


def _line(status: Status, output: str) -> str:
    """How far a run is, in one line."""
    if status["state"] != "running":
        return next(status_lines(status, output))
    num_failed = sum(status["failures"].values())
    failed = counted(num_failed, "failed attempt") if num_failed else ""
    parts = [*map(str.strip, step_lines(status["steps"])), failed, left_text(status)]
    return f"{output}: {'; '.join(filter(None, parts))}"
