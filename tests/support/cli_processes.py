"""Real `datapipe` processes for tests that kill them. Every process started here is ended by id."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

DEADLINE_S = 120.0

COMMAND = [sys.executable, "-c", "from datapipe.cli.main import main; main()"]


def start(arguments: Sequence[str], **options) -> subprocess.Popen:
    """Starts the command line in a session of its own, so that its whole group can be killed."""
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options
    )


def run(arguments: Sequence[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False, **options)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Watches for a condition without pausing; fails after `DEADLINE_S`."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        os.sched_yield()


def children(process_id: int) -> list[int]:
    """Process ids whose parent is `process_id`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _stat(int(entry.name))[1:2] == [str(process_id)]:
            found.append(int(entry.name))
    return found


def is_running(process_id: int) -> bool:
    return _stat(process_id)[:1] not in ([], ["Z"], ["X"])


def _stat(process_id: int) -> list[str]:
    """State, parent and so on of a process; empty where there is none."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
