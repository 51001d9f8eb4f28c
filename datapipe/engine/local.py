"""The local engine: workers on this machine, supervised one by one.

A worker that dies (killed, out of memory, a crash in native code) costs the task it held and nothing else: that attempt
fails as infrastructure, another worker takes its place. `concurrent.futures.ProcessPoolExecutor` and loky give up every
pending future instead, which is why neither is used.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from multiprocessing.connection import Connection, wait

from datapipe.engine.protocol import Attempt, Failure
from datapipe.errors import DatapipeError
from datapipe.plan.work import Task

_SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "ARROW_IO_THREADS": "2",
}


class _Worker:
    """One process and the task it holds."""

    def __init__(self, url: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                # -P: the working directory may hold another datapipe, a checkout say, than the driver runs
                [sys.executable, "-P", "-c", f"from datapipe.engine.worker import main; main({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_SINGLE_THREADED, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self.connection = Connection(ours.detach())
        self.connection.send((sys.path, url))
        self.task: Task | None = None
        self.is_ready = False  # it has imported what it needs

    def give(self, task: Task, attempt: str) -> None:
        self.task = task
        try:
            self.connection.send((pickle.dumps(task), attempt))
        except OSError:
            return  # it is gone; `receive` will say so

    def receive(self) -> Attempt | None:
        """The end of its attempt, or None where the worker is gone without a task."""
        task = self.task
        self.task = None
        try:
            if not self.connection.poll():  # its process is gone, and it has left nothing
                raise EOFError
            if not self.is_ready:
                self.is_ready = self.connection.recv() == "ready"
                self.task = task
                return None
            record, failure = self.connection.recv()
        except (EOFError, OSError):
            status = self.stop()
            if task is None:
                return None
            if status > 0 and not self.is_ready:
                raise DatapipeError(
                    f"a worker could not start: it exited with status {status}, and what it said is above. "
                    f"Check that `{sys.executable} -P -c 'import datapipe.tasks.run_task'` works."
                ) from None
            return Attempt(task=task, failure=Failure(kind="infrastructure", message=_obituary(status, task)))
        assert task is not None
        return Attempt(task=task, record=record, failure=failure)

    def stop(self) -> int:
        """Ends the process and waits for it; its exit status."""
        self.connection.close()
        if self.process.poll() is None:
            self.process.kill()
        return self.process.wait()


def _obituary(status: int, task: Task) -> str:
    if status >= 0:
        return f"a worker exited with status {status} while it ran {task.label}"
    name = signal.Signals(-status).name
    hint = " It may have run out of memory." if name == "SIGKILL" else ""
    return f"a worker was ended by {name} while it ran {task.label}.{hint}"


class LocalEngine:
    """`num_workers` processes, started as tasks come."""

    def __init__(self, url: str, num_workers: int) -> None:
        self.url = url
        self.num_workers = num_workers
        self._workers: list[_Worker] = []
        self._waiting: deque[tuple[Task, str]] = deque()

    @property
    def slots(self) -> int:
        return self.num_workers

    @property
    def worker_ids(self) -> list[int]:
        """Process ids of the workers, for tests that kill them."""
        return [worker.process.pid for worker in self._workers]

    def submit(self, task: Task, attempt: str) -> None:
        self._waiting.append((task, attempt))
        self._hand_out()

    def next_attempt(self, timeout_s: float) -> Attempt | None:
        self._hand_out()
        by_connection = {worker.connection: worker for worker in self._workers}
        ready = wait(list(by_connection), timeout_s)
        # A worker that forked leaves its socket open in the child when it dies, so its end is looked for as well.
        gone = [worker.connection for worker in self._workers if worker.process.poll() is not None]
        for connection in [*ready, *(worker for worker in gone if worker not in ready)]:
            worker = by_connection[connection]  # type: ignore[index]  # what goes in comes out
            attempt = worker.receive()
            if worker.connection.closed:
                self._workers.remove(worker)
            if attempt is not None:
                self._hand_out()
                return attempt
        return None

    def close(self) -> None:
        self._waiting.clear()
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def _hand_out(self) -> None:
        while self._waiting:
            idle = next((worker for worker in self._workers if worker.task is None), None)
            if idle is None:
                if len(self._workers) >= self.num_workers:
                    return
                idle = _Worker(self.url)
                self._workers.append(idle)
            idle.give(*self._waiting.popleft())


def usable_cores() -> int:
    """Cores this process may run on, which a container or a batch system may have made fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
