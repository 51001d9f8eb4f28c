"""How far a run is, by work/status.json and the lock of its output.

A run that was killed leaves a file that says "running", and an output that nobody holds.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from datapipe.errors import UserError
from datapipe.records.names import FOLLOWER, FOLLOWING, STATUS
from datapipe.storage.lock import LEASE, LEASE_S, LOCK
from datapipe.storage.root import Root


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
    return {**status, "holder": holder, "state": state}


def _follower(root: Root) -> dict[str, Any]:
    """`following`: the process that follows the sources, and what it does or waits for; None where none does. Nothing of an
    output that nobody has followed."""
    try:
        told = json.loads(root.read_bytes(FOLLOWER))
        holder = _holder(root.within(FOLLOWING))
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
