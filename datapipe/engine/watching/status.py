"""work/status.json: how far a run is, for another terminal or machine; and what it says together with the lock of the output.

The driver writes it every few seconds and at its end. Its size is bounded by the steps of the plan and by `_MOST_ATTEMPTS`.
A run that was killed leaves a file that says "running", and an output that nobody holds: that is how it is told.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from datapipe.credentials import masked
from datapipe.engine.driver import Observer
from datapipe.engine.protocol import Message
from datapipe.engine.watching.state import RunState, message_json, step_json
from datapipe.errors import UserError, exit_status_of
from datapipe.records.names import FOLLOWER, STATUS
from datapipe.report.report import read_report
from datapipe.shards.snapshots import ADDITIONS
from datapipe.steps.compile import Plan
from datapipe.storage.lock import LEASE, LEASE_S, LOCK
from datapipe.storage.root import Root

_EVERY_S, _EVERY_ON_STORE_S = 2.0, 15.0
_MOST_ATTEMPTS = 200
_VERSION = 1


class StatusFile(Observer):
    """An observer that writes the file. A disk or store that fails never ends the run."""

    def __init__(self, root: Root, state: RunState) -> None:
        self._root, self._state, self._outcome, self._exit_status = root, state, "running", None
        self._every_s = _EVERY_S if root.local is not None else _EVERY_ON_STORE_S
        self._written = float("-inf")

    def planned(self, plan: Plan) -> None:
        self._write()

    def tick(self, messages: Sequence[Message]) -> None:
        if time.monotonic() - self._written >= self._every_s:
            self._write()

    def end(self, problem: BaseException | None) -> None:
        """Writes the file for the last time, with what ended the run early. Nothing where no run began."""
        is_stopped = isinstance(problem, KeyboardInterrupt)
        self._outcome = "finished" if problem is None else "stopped" if is_stopped else str(problem)
        self._exit_status = exit_status_of(problem)
        self._state.tick(())  # nothing runs any more, also where the last look found a worker at work
        if self._state.steps:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        with suppress(OSError):
            self._root.write_atomic(STATUS, masked(json.dumps(self._content(), ensure_ascii=False)).encode())

    def _content(self) -> dict[str, Any]:
        state, sums = self._state, self._state.sums
        attempts = sorted(state.messages, key=lambda message: state.since.get(message.attempt, 0.0))[:_MOST_ATTEMPTS]
        sources = sorted({key[1] for key in sums if key[0] == "documents"})
        fates = ("read", "kept", "dropped", "quarantined")
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
            "steps": list(map(step_json, state.steps.values())),
            "documents": {source: {fate: sums["documents", source, fate] for fate in fates} for source in sources},
            "running": [message_json(message, state.since.get(message.attempt, 0.0)) for message in attempts],
            "num_running": len(state.messages),
            "slots": state.driver.slots,
            "queued": state.driver.queued,
            "waiting": state.waiting(),
            "failures": dict(state.failures),
            "last_failure": state.failed,
            "said": state.lines,
        }


def read_status(root: Root) -> dict[str, Any]:
    """What the file says, with `holder`, the process that holds the output, and `state`: running, killed, finished, stopped or
    failed. Raises UserError where no run has left a file."""
    try:
        status = json.loads(root.read_bytes(STATUS))
    except FileNotFoundError as error:
        raise UserError(f"{root.url}: no run has told how far it is. Expected the output of `datapipe run`.") from error
    except ValueError as error:
        raise UserError(f"{root.child_url(STATUS)}: the file was edited or damaged. A run writes it anew.") from error
    status |= _follower(root)
    holder = _holder(root)
    state = status["outcome"] if status["outcome"] in ("running", "finished", "stopped") else "failed"
    if state == "running" and not holder:
        return {**status, "outcome": "killed", "running": [], "num_running": 0, "holder": holder, "state": "killed"}
    grown = _documents_of_all(root) if state == "finished" and "following" in status else {}
    return {**status, **grown, "holder": holder, "state": state}


def _documents_of_all(root: Root) -> dict[str, Any]:
    """`documents` of a snapshot that grew: of the first run and of all additions, as its report counts them. Nothing where no
    addition was published."""
    with suppress(FileNotFoundError, ValueError):
        report = read_report(root)
        if report.addition is not None:
            counts = {source: entry.documents for source, entry in report.sources.items()}
            return {
                "documents": {
                    source: {
                        "read": documents.read,
                        "kept": documents.kept,
                        "quarantined": documents.quarantined,
                        "dropped": sum(documents.dropped.values()),
                    }
                    for source, documents in counts.items()
                }
            }
    return {}


def _follower(root: Root) -> dict[str, Any]:
    """`following`: the process that follows the sources, and what it does or waits for; None where none does. Nothing of an
    output that nobody has followed."""
    try:
        told = json.loads(root.read_bytes(FOLLOWER))
        holder = _holder(root.within(ADDITIONS))
        return {"following": {"process": holder, "doing": str(told["doing"])} if holder else None}
    except FileNotFoundError:
        return {}
    except (ValueError, LookupError, TypeError):
        return {"following": None}


def _holder(root: Root) -> str:
    """The process that holds the output; empty where none does."""
    if root.local is None:
        with suppress(FileNotFoundError, ValueError, KeyError):
            lease = json.loads(root.read_bytes(LEASE))
            if lease["holder"] and time.time() - lease["renewed"] < LEASE_S:
                return str(lease["process"])
        return ""
    try:
        lock = root.local / LOCK
        inode = lock.stat().st_ino
        # The kernel's list of locks. To ask by taking the lock would stop a run that begins meanwhile.
        locks = map(str.split, Path("/proc/locks").read_text(encoding="ascii").splitlines())
        held = any(len(fields) > 5 and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}") for fields in locks)
        return lock.read_text(errors="replace").strip() or "unknown" if held else ""
    except OSError:
        return ""
