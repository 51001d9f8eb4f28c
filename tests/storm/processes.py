"""Processes of the storm: each in its own session, with a mark by which every descendant is found, and with a deadline.

    start ─▶ unshare --mount: /dev/shm is a folder of the round ─▶ datapipe …      DATAPIPE_STORM=<mark> in the environment

A process that lost its parent keeps the mark, so orphans are found whoever adopted them. Where mounting is not permitted,
/dev/shm is the machine's, and what is left there is not searched.
"""

import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.cli_processes import COMMAND, children, is_running, wait_until

MARK = "DATAPIPE_STORM"
DEADLINE_S = 300.0
"""Of one command. One takes 2 to 8 s on an idle machine; the storm runs at the lowest priority beside other work."""

_PRIVATE_SHM = ("unshare", "--mount", "--propagation", "slave", "sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"')


class HangError(AssertionError):
    """Something did not end by its deadline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A command that ended. `status` is negative for a signal."""

    status: int
    printed: str
    errors: str

    @property
    def last_line(self) -> str:
        """The reason, if it failed."""
        lines = self.errors.strip().splitlines()
        return lines[-1] if lines else ""


@dataclass(kw_only=True, slots=True)
class Command:
    """A `datapipe` command that runs. Its output goes to files, which never fill up as pipes do."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def wait(self, deadline_s: float = DEADLINE_S) -> Ended:
        """Waits for its end. Raises HangError, once the whole session is killed."""
        try:
            status = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill_group()
            raise HangError(f"no end after {deadline_s:.0f} s: {self.process.args}; see {self.folder}") from None
        printed, errors = ((self.folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))
        return Ended(status=status, printed=printed, errors=errors)

    def says(self, text: str) -> bool:
        """Whether it has printed the text, on either stream."""
        return any(text in (self.folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))

    def signal(self, number: int) -> None:
        """To the first process alone."""
        if not self.is_over:
            os.kill(self.pid, number)

    def kill_group(self) -> None:
        if not self.is_over:
            os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()


def start(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    shm: Path | None,
    before: Callable[[], None] | None = None,
) -> Command:
    """Starts a `datapipe` command.

    Args:
        folder: for its output, made here.
        shm: what it sees as /dev/shm; None for the machine's.
        before: called in the new process.
    """
    folder.mkdir(parents=True)
    prefix = (*_PRIVATE_SHM, str(shm)) if shm is not None and can_mount() else ()
    with open(folder / "stdout", "wb") as printed, open(folder / "stderr", "wb") as errors:
        process = subprocess.Popen(
            [*prefix, *COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=errors,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=before,  # noqa: PLW1509  # it sets limits, and takes no lock
        )
    return Command(process=process, folder=folder)


@functools.cache
def can_mount() -> bool:
    """Whether this user may mount, in its own mount namespace."""
    try:
        tried = subprocess.run([*_PRIVATE_SHM, "/tmp", "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return tried.returncode == 0


def marked(mark: str) -> dict[int, str]:
    """Running processes with the mark, this one excepted: command lines by process id."""
    wanted, found = f"{MARK}={mark}".encode(), {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0") and is_running(int(entry.name)):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
        except OSError:  # it has just ended
            continue
    return found


def workers_of(command: Command) -> list[int]:
    """Processes that the driver started to do its tasks."""
    found = []
    for process_id in children(command.pid):
        with contextlib.suppress(OSError):  # it has just ended
            if b"datapipe.engine.workers" in Path(f"/proc/{process_id}/cmdline").read_bytes():
                found.append(process_id)
    return found


def without_orphans(mark: str, deadline_s: float = 30.0) -> None:
    """Waits until no process has the mark. Raises AssertionError with those that stay, once they are killed."""
    try:
        wait_until(lambda: not marked(mark), "end of all processes", deadline_s)
    except AssertionError:
        left = marked(mark)
        for process_id in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        raise AssertionError(f"orphans: {left}") from None
