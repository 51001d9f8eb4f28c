"""The local engine: workers on this machine, supervised one by one.

A worker that dies (killed, out of memory, a crash in native code) or stalls costs the task it held and nothing else: that
attempt fails, another worker takes its place. `concurrent.futures.ProcessPoolExecutor` and loky give up every
pending future instead, which is why neither is used.
"""

from __future__ import annotations

import os
import time
from collections import deque
from multiprocessing.connection import wait

from datapipe.engine.protocol import Attempt, Message
from datapipe.engine.workers.limits import NO_LIMITS, Limits
from datapipe.engine.workers.process import WorkerProcess
from datapipe.plan.work import Task

_SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "ARROW_IO_THREADS": "2",
}

_LOOK_EVERY_S = 0.2


class LocalEngine:
    """`num_workers` processes, started as tasks come.

    Args:
        url: of OUTPUT.
        limits: of each worker.
    """

    def __init__(self, url: str, num_workers: int, limits: Limits = NO_LIMITS) -> None:
        self.url, self.num_workers, self.limits = url, num_workers, limits
        self._workers: list[WorkerProcess] = []
        self._waiting: deque[tuple[Task, str]] = deque()
        self._next_look = 0.0

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

    def cancel(self, attempt: str) -> None:
        self._waiting = deque(waiting for waiting in self._waiting if waiting[1] != attempt)
        for worker in self._workers:
            if worker.message is not None and worker.message.attempt == attempt:
                worker.stop()
        self._workers = [worker for worker in self._workers if not worker.connection.closed]

    def next_attempt(self, timeout_s: float) -> Attempt | None:
        self._hand_out()
        attempt = self._watch() or self._receive(timeout_s)
        self._workers = [worker for worker in self._workers if not worker.connection.closed]
        self._hand_out()
        return attempt

    def _receive(self, timeout_s: float) -> Attempt | None:
        by_connection = {worker.connection: worker for worker in self._workers}
        ready = wait(list(by_connection), timeout_s)
        # A worker that forked leaves its socket open in the child when it dies, so its end is looked for as well.
        gone = [worker.connection for worker in self._workers if not worker.is_alive]
        for connection in [*ready, *(worker for worker in gone if worker not in ready)]:
            attempt = by_connection[connection].receive()  # type: ignore[index]  # what goes in comes out
            if attempt is not None:
                return attempt
        return None

    def _watch(self) -> Attempt | None:
        """Looks at every worker, a few times a second; the end of the first that stalls."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + _LOOK_EVERY_S
        return next((attempt for worker in self._workers if (attempt := worker.watch(self.limits)) is not None), None)

    def messages(self) -> list[Message]:
        return [worker.message for worker in self._workers if worker.message is not None]

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
                idle = WorkerProcess(self.url, _SINGLE_THREADED)
                self._workers.append(idle)
            idle.give(*self._waiting.popleft())


def usable_cores() -> int:
    """Cores this process may run on, which a container or a batch system may have made fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
