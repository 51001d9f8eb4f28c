"""What `datapipe status` prints."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from datapipe.engine.watching.time_left import TimeLeft
from datapipe.quantities import counted, duration, size

_SHOWN = 8
_SHOWN_LINES = 3
"""The last lines that the run said: a node that is gone, a task that has a second attempt."""

_SILENT_S = 45.0
"""A run writes every few seconds, on an object store every 15."""


def status_lines(status: Mapping[str, Any], output: str) -> Iterator[str]:
    """How far a run is, in lines."""
    yield _heading(status, output)
    if "following" in status:
        follower = status["following"]
        yield f"followed by process {follower['process']}: {follower['doing']}" if follower else "followed by no process now"
    yield from step_lines(status["steps"])
    for source, documents in status["documents"].items():
        parts = ", ".join(f"{number:,} {fate}" for fate, number in documents.items() if number)
        yield f"{source}: {parts}" if parts else f"{source}: nothing read yet"
    if status["state"] == "running":
        yield from _at_work(status)
    if status["failures"]:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in status["failures"].items())
        yield f"failed attempts, tried again: {kinds}. The last: {status['last_failure']}"
    for line in status["said"][-_SHOWN_LINES:] if status["state"] != "finished" else ():
        yield f"said: {line.strip()}"


def step_lines(steps: Sequence[Mapping[str, Any]], left: str = "") -> Iterator[str]:
    """The number of completed steps, with the time left of all, and a line for each with running tasks."""
    states = [step["state"] for step in steps]
    yield ", ".join(filter(None, (f"{states.count('committed')} of {counted(len(states), 'step')} done", left)))
    yield from (f"  {step_text(step)}" for step in steps if step["state"] == "running")


def step_text(step: Mapping[str, Any]) -> str:
    """The numbers of a step as far as they are known, and its title."""
    slowest, written = step["slowest"], step["written"]
    done = f"{step['kept']:,} kept" if step["kept"] else ""
    took_s = step["seconds"] / max(1, step["committed"])
    parts = [
        f"{step['committed']:,}/{step['tasks']:,}",
        "" if step["seconds_left"] is None else f"{duration(step['seconds_left'])} left",
        f"{counted(written['rows'], 'row')}, {size(written['bytes'])}" if written else done,
        f"{step['mb_per_s']:,.1f} MB/s" if step["mb_per_s"] else "",
        step["title"],
        f"{took_s:,.1f} s a task, the slowest {slowest['seconds']:,.1f} s ({slowest['task']})" if step["committed"] else "",
    ]
    return "  ".join(filter(None, parts))


def _heading(status: Mapping[str, Any], output: str) -> str:
    match status["state"]:
        case "running":
            left = f"; {text}" if (text := left_text(status)) else ""
            silent_s = time.time() - status.get("written", time.time())
            silent = f"; it has said nothing for {duration(silent_s)}" if silent_s > _SILENT_S else ""
            ran = duration(time.time() - status["started"])
            return f"{output}: running for {ran}, process {status['holder']}{left}{silent}"
        case "finished":
            return f"{output}: finished"
        case "killed":
            return f"{output}: killed: process {status['process']} is gone without a word. Run the same command again to go on"
        case "stopped":
            return f"{output}: stopped. Run the same command again to go on"
    return f"{output}: failed: {status['outcome']}"


def left_text(status: Mapping[str, Any]) -> str:
    """The time left; empty where the run does not know it."""
    left_s = status["seconds_left"]
    return "" if left_s is None else str(TimeLeft(seconds=left_s, is_least=status["is_least"]))


def _at_work(status: Mapping[str, Any]) -> Iterator[str]:
    """The attempts that run, the longest first."""
    now = time.time()
    slots, queued = counted(status["slots"], "slot"), counted(status["queued"], "task")
    yield f"{status['num_running']:,} running in {slots}; {queued} in the queue"
    for each in status["running"][:_SHOWN]:
        memory = f", {size(each['memory_bytes'])}" if each["memory_bytes"] else ""
        node = each["node"]
        there = f"  on {node}" if node and not status["process"].endswith(f" on {node}") else ""
        yield f"  for {duration(now - each['since'])}  {each['task']}{there}  {each['at']}{memory}"
    if status["num_running"] > _SHOWN:
        yield f"  and {counted(status['num_running'] - _SHOWN, 'more attempt')}"
    for what in status["waiting"]:
        yield f"  waits: {what}"
