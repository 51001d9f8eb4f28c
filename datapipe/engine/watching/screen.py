"""What `datapipe status` prints, once or with `--watch` until the run ends."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from datapipe.credentials import masked
from datapipe.engine.watching.time_left import TimeLeft
from datapipe.quantities import counted, duration, size
from datapipe.report.layout import fitting, print_text

_SHOWN = 8
_SHOWN_LINES = 3  # the last of the run
_KILLED = 3  # Exit status for a run that was killed, and so has none
_SILENT_S = 45.0  # A run writes every few seconds, on an object store every 15
Status = Mapping[str, Any]


def status_lines(status: Status, output: str) -> Iterator[str]:
    yield _heading(status, output)
    if "following" in status:
        follower = status["following"]
        yield f"followed by process {follower['process']}: {follower['doing']}" if follower else "followed by no process now"
    yield from step_lines(status["steps"])
    for source, documents in status["documents"].items():
        parts = ", ".join(f"{number:,} {fate}" for fate, number in documents.items() if number)
        yield f"{source}: {parts}" if parts else f"{source}: nothing read yet"
    if status["state"] == "running":
        yield from _running_lines(status)
    if status["failures"]:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in status["failures"].items())
        yield f"failed attempts, tried again: {kinds}. The last: {status['last_failure']}"
    for line in status["messages"][-_SHOWN_LINES:] if status["state"] != "finished" else ():
        yield f"message: {line.strip()}"


def step_lines(steps: Sequence[Mapping[str, Any]], left: str = "") -> Iterator[str]:
    """The number of completed steps, with the time left, and each running step."""
    states = [step["state"] for step in steps]
    yield ", ".join(filter(None, (f"{states.count('committed')} of {counted(len(states), 'step')} done", left)))
    yield from (f"  {step_text(step)}" for step in steps if step["state"] == "running")


def step_text(step: Mapping[str, Any]) -> str:
    slowest, written = step["slowest"], step["written"]
    done = f"{step['kept']:,} kept" if step["kept"] else ""
    took_s = step["seconds"] / max(1, step["committed"])
    parts = [
        f"{step['committed']:,}/{step['tasks']:,}",
        f"{duration(step['seconds_left'])} left" if (step["seconds_left"] or 0) >= 1 else "",
        f"{counted(written['rows'], 'row')}, {size(written['bytes'])}" if written else done,
        f"{step['mb_per_s']:,.1f} MB/s" if step["mb_per_s"] else "",
        step["title"],
        f"{took_s:,.1f} s a task, the slowest {slowest['seconds']:,.1f} s ({slowest['task']})" if step["committed"] else "",
    ]
    return "  ".join(filter(None, parts))


def _heading(status: Status, output: str) -> str:
    match status["state"]:
        case "running":
            left = f"; {text}" if (text := left_text(status)) else ""
            silent_s = time.time() - status.get("written", time.time())
            silent = f"; it has reported nothing for {duration(silent_s)}" if silent_s > _SILENT_S else ""
            ran = duration(time.time() - status["started"])
            return f"{output}: running for {ran}, process {status['holder']}{left}{silent}"
        case "finished":
            return f"{output}: finished"
        case "killed":
            return f"{output}: killed: process {status['process']} is gone. Run the same command again to go on"
        case "stopped":
            return f"{output}: stopped. Run the same command again to go on"
    return f"{output}: failed: {status['outcome']}"


def left_text(status: Status) -> str:
    left_s = status["seconds_left"]
    return "" if left_s is None else str(TimeLeft(seconds=left_s, is_least=status["is_least"]))


def _running_lines(status: Status) -> Iterator[str]:
    now = time.time()
    slots, queued = counted(status["slots"], "slot"), counted(status["queued"], "task")
    is_seen = status["num_running"] or not status["queued"] or status["waiting"]  # short tasks end before they are reported
    running = f"{status['num_running']:,} running in {slots}; {queued}" if is_seen else f"{queued} running in {slots} or"
    yield f"{running} in the queue"
    for each in status["running"][:_SHOWN]:
        memory = f", {size(each['memory_bytes'])}" if each["memory_bytes"] else ""
        node = each["node"]
        there = f"  on {node}" if node and not status["process"].endswith(f" on {node}") else ""
        yield f"  for {duration(now - each['since'])}  {each['task']}{there}  {each['at']}{memory}"
    if status["num_running"] > _SHOWN:
        yield f"  and {counted(status['num_running'] - _SHOWN, 'more attempt')}"
    for what in status["waiting"]:
        yield f"  waits: {what}"


def watch(
    read: Callable[[], Status], output: str, every_s: float, console: Console, wait: Callable[[float], None] = time.sleep
) -> int:
    """Shows the status of a run until the run ends; the exit status of the run.

    Args:
        output: for display.
    """
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        status, before = None, None
        for status, problem in _polls(read, every_s, wait):
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


def _polls(read: Callable[[], Status], every_s: float, wait: Callable[[float], None]) -> Iterator[tuple[Status | None, str]]:
    """The status again and again, the last one of a run that has ended; and an error while it cannot be read.

    A run counts as killed when two polls find it killed: between its last commit and its end no process holds the output.
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
    if status["state"] != "running":
        return next(status_lines(status, output))
    num_failed = sum(status["failures"].values())
    failed = counted(num_failed, "failed attempt") if num_failed else ""
    parts = [*map(str.strip, step_lines(status["steps"])), failed, left_text(status)]
    return f"{output}: {'; '.join(filter(None, parts))}"
