"""Servers of batches for tests: each is its own process, `datapipe serve`, with its own cache."""

import os
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

from tests.support.cli_processes import COMMAND, DEADLINE_S

_COMMAND = [*COMMAND, "serve"]


class Server:
    """A server that was started. `location` and `lines` come from what it prints.

    Args:
        arguments: of `datapipe serve`.
        log: its stderr.
    """

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.log, self.folder = log, log.parent
        self._log = log.open("ab")
        command = [*_COMMAND, *arguments, "--cache-folder", str(log.parent / "cache"), "--status-port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, bufsize=1)
        self.lines: list[str] = []
        self._is_ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._is_ready.wait(DEADLINE_S) or not self.lines:
            self.end()
            raise AssertionError(f"the server is not ready: {self.lines} {log.read_text()}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("status"):
                self._is_ready.set()
        self._is_ready.set()

    @property
    def location(self) -> str:
        parts = urlsplit(next(line.split()[1] for line in self.lines if line.startswith("serving")))
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def port(self) -> int:
        return int(self.location.rpartition(":")[2])

    def status(self, path: str) -> tuple[int, str]:
        """The answer of the status server."""
        url = next(line.split()[1] for line in self.lines if line.startswith("status")).replace("/readyz", path)
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def figure(self, name: str) -> float:
        """The sum of a metric."""
        lines = [line for line in self.status("/metrics")[1].splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def peak_bytes(self) -> int:
        """The most memory that it has had."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Ends it by a signal; its status."""
        if self.process.poll() is None:
            self.send(number)
        status = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()
        return status


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[Server]:
    """A server, which ends with the test. `folder` gets its log and cache."""
    folder.mkdir(parents=True, exist_ok=True)
    has_port = "--port" in arguments
    server = Server([*arguments, *([] if has_port else ["--port", "0"])], folder / "server.log")
    try:
        yield server
    finally:
        server.end()


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as listening:
        listening.bind((host, 0))
        return listening.getsockname()[1]
