"""Real `datapipe` processes for tests that kill them. Tests end each process by its id."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

DEADLINE_S = 600.0
_POLL_S, _NEVER = 0.003, threading.Event()

COMMAND = [sys.executable, "-c", "from datapipe.cli.main import main; main()"]


def start(arguments: Sequence[str], **options) -> subprocess.Popen:
    """Starts the command line in its own session, so that a test can kill its whole process group."""
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options
    )


def end(process: subprocess.Popen) -> None:
    """Kills a process that still runs, and waits for it."""
    if process.poll() is None:
        process.kill()
    process.communicate()


def terminate(process: subprocess.Popen) -> None:
    """Ends a process by SIGTERM, or, where it takes longer than 20 s, by SIGKILL."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run(arguments: Sequence[str], **options) -> subprocess.CompletedProcess:
    """Runs the command line to its end."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False, **options)


def on_terminal(arguments: Sequence[str], columns: int, cwd: Path) -> tuple[int, str]:
    """Runs the command line on a terminal of so many columns. Returns its exit status and what the terminal got."""
    primary, terminal = pty.openpty()
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        hidden = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM"}
        environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"TERM": "xterm"}
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=terminal, stdout=terminal, stderr=terminal, cwd=cwd, env=environment
        )
    finally:
        os.close(terminal)
    printed = b""
    with suppress(OSError), open(primary, "rb", buffering=0) as stream:  # Linux ends a terminal that nobody holds with EIO
        while part := stream.read(1 << 16):
            printed += part
    return process.wait(DEADLINE_S), printed.decode().replace("\r\n", "\n")


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Polls a condition a few hundred times a second: oftener would take a core from what it waits for."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {deadline_s:.0f} s waiting for {what}"
        _NEVER.wait(_POLL_S)


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
