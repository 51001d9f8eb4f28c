"""Real `datapipe` processes for tests that kill them. Tests end each process by its id."""

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
    """Starts the command line in its own session, so that a test can kill its whole process group."""
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options
    )


def run(arguments: Sequence[str], **options) -> subprocess.CompletedProcess:
    """Runs the command line to its end."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False, **options)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Polls a condition without a pause. Fails after `DEADLINE_S`."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        os.sched_yield()


def children(process_id: int) -> list[int]:
    """Process ids whose parent is `process_id`."""
    process_ids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _stat(int(entry.name))[1:2] == [str(process_id)]:
            process_ids.append(int(entry.name))
    return process_ids


def is_running(process_id: int) -> bool:
    return _stat(process_id)[:1] not in ([], ["Z"], ["X"])


def _stat(process_id: int) -> list[str]:
    """State, parent and further fields of a process; empty when it does not exist."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
