"""How far a run is, for another terminal or machine: work/status.json, and the lock of its output.

The file is written every few seconds and at the end. Its size is bounded by the steps of the plan and by `_MOST_ATTEMPTS`. A
killed run leaves a file with the outcome "running", and an output that no process holds.
"""

import json
import os
import socket
import time
from contextlib import suppress
from typing import Any

from datapipe.credentials import masked
from datapipe.engine.events import Event, Planned, Progress, RunEnded
from datapipe.engine.watching.state import RunState
from datapipe.engine.watching.time_left import StepState, TimeLeft
from datapipe.errors import UserError, exit_status_of
from datapipe.records.names import FOLLOWER, FOLLOWING, STATUS
from datapipe.storage.lock import LeaseLostError, holder
from datapipe.storage.root import Root

_EVERY_S, _EVERY_ON_STORE_S = 2.0, 15.0
_MOST_ATTEMPTS = 200
_VERSION = 1
_FATES = ("read", "kept", "dropped", "quarantined")


class StatusFile:
    """An observer that writes the file, after `state` has observed. A disk or store that fails never ends the run."""

    def __init__(self, root: Root, state: RunState) -> None:
        self._root, self._state, self._outcome, self._exit_status = root, state, "running", None
        self._every_s = _EVERY_S if root.local is not None else _EVERY_ON_STORE_S
        self._written = float("-inf")

    def observe(self, event: Event) -> None:
        match event:
            case Planned():
                self._write()
            case Progress() if time.monotonic() - self._written >= self._every_s:
                self._write()
            case RunEnded() if not isinstance(event.problem, LeaseLostError):  # else it is that of the run with the output
                is_stopped = isinstance(event.problem, KeyboardInterrupt)
                self._outcome = "finished" if event.problem is None else "stopped" if is_stopped else str(event.problem)
                self._exit_status = exit_status_of(event.problem)
                if self._state.steps:
                    self._write()
            case _:
                pass

    def _write(self) -> None:
        self._written = time.monotonic()
        with suppress(OSError):
            self._root.write_atomic(STATUS, masked(json.dumps(self._content(), ensure_ascii=False)).encode())

    def _content(self) -> dict[str, Any]:
        state, sums = self._state, self._state.sums
        attempts = sorted(state.messages, key=lambda message: state.since.get(message.attempt, 0.0))[:_MOST_ATTEMPTS]
        sources = sorted({key[1] for key in sums if key[0] == "documents"})
        left = state.time_left()
        return {
            "version": _VERSION,
            "outcome": self._outcome,
            **({} if self._exit_status is None else {"exit_status": self._exit_status}),
            "process": f"{os.getpid()} on {socket.gethostname()}",
            "started": state.started,
            "written": time.time(),
            "seconds_left": None if left is None else left.seconds,
            "is_least": left is not None and left.is_least,
            "steps": [step_json(step, left) for step in state.steps.values()],
            "documents": {source: {fate: sums["documents", source, fate] for fate in _FATES} for source in sources},
            "running": [
                {
                    "task": message.task,
                    "attempt": message.attempt,
                    "node": message.node,
                    "since": state.since.get(message.attempt, 0.0),
                    "at": str(message.activity) if message.activity else "starting",
                    "silent_s": round(message.silent_s, 1),
                    "memory_bytes": message.memory_bytes,
                }
                for message in attempts
            ],
            "num_running": len(state.messages),
            "slots": state.slots,
            "queued": state.queued,
            "waiting": state.waiting(),
            "failures": dict(state.failures),
            "last_failure": state.failed,
            "messages": state.lines,
        }


def step_json(step: StepState, left: TimeLeft | None) -> dict[str, Any]:
    """How far a step is. The rate is of this process alone. `left`: of the run."""
    here_s = 0.0 if step.began is None else time.monotonic() - step.began
    totals = step.totals
    return {
        "step": step.step.id,
        "title": step.step.title,
        "state": step.state,
        "tasks": step.planned,
        "committed": totals.tasks,
        "seconds": totals.seconds,
        "slowest": {"task": totals.slowest, "seconds": totals.slowest_s},
        "kept": totals.documents.kept,
        "written": {"rows": sum(dict(totals.rows).values()), "bytes": totals.bytes} if step.step.work.is_exchange else None,
        "mb_per_s": step.bytes_here / 1e6 / here_s if here_s else 0.0,
        "seconds_left": None if left is None else left.by_step.get(step.step.id),
    }


def read_status(root: Root) -> dict[str, Any]:
    """The content of the file, with `holder`, the process that holds the output, and `state`:
    running, killed, finished, stopped or failed. Raises UserError where no run has left a file."""
    try:
        status = json.loads(root.read_bytes(STATUS))
    except FileNotFoundError as error:
        raise UserError(f"{root.url}: no run has written its status here. Expected the output of `datapipe run`.") from error
    except ValueError as error:
        raise UserError(f"{root.child_url(STATUS)}: the file was edited or damaged. The next run writes it again.") from error
    status |= _follower(root) | {"holder": holder(root)}
    outcome = status["outcome"]
    status["state"] = outcome if outcome in ("running", "finished", "stopped") else "failed"
    if outcome == "running" and not status["holder"]:
        status |= {"outcome": "killed", "running": [], "num_running": 0, "state": "killed", "seconds_left": None}
        status["steps"] = [{**step, "seconds_left": None} for step in status["steps"]]
    return status


def _follower(root: Root) -> dict[str, Any]:
    """`following`: the process that follows the sources, and what it does or waits for; None where
    none does. Empty for an output that was never followed."""
    try:
        doing = str(json.loads(root.read_bytes(FOLLOWER))["doing"])
    except FileNotFoundError:
        return {}
    except (ValueError, LookupError, TypeError):
        return {"following": None}
    process = holder(root.within(FOLLOWING))
    return {"following": {"process": process, "doing": doing} if process else None}
