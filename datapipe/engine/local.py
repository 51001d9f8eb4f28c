"""The local engine: workers on this machine, supervised one by one.

A worker that dies (killed, out of memory, a crash in native code) or stalls costs its task alone: that attempt fails, and
another worker takes its place. `concurrent.futures.ProcessPoolExecutor` and loky give up every pending future instead.
"""

import os
import time
from collections import deque
from multiprocessing.connection import wait

from datapipe.config.execution import ExecutionSpec
from datapipe.engine.protocol import Attempt, Engine, Message
from datapipe.engine.workers.process import WorkerProcess
from datapipe.steps.kind import Task

_LIBRARIES = ("OMP_NUM", "OPENBLAS_NUM", "NUMBA_NUM", "RAYON_NUM", "FASTOKENS_BPE")
_THREADS = {**{f"{name}_THREADS": "1" for name in _LIBRARIES}, "TOKENIZERS_PARALLELISM": "false", "ARROW_IO_THREADS": "2"}

_UPDATE_EVERY_S = 0.2


class LocalEngine(Engine):
    """`num_workers` processes for the output at `url`, with `limits` each, started as needed."""

    def __init__(self, url: str, num_workers: int, limits: ExecutionSpec) -> None:
        self.url, self.num_workers, self.limits = url, num_workers, limits
        self._workers: list[WorkerProcess] = []
        self._waiting: deque[tuple[Task, str]] = deque()
        self._ended: deque[Attempt] = deque()
        self._next_update = 0.0

    @property
    def slots(self) -> int:
        return self.num_workers

    @property
    def worker_ids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def start_worker(self) -> None:
        """Starts a worker before there are tasks: it imports its libraries meanwhile, for half a second."""
        self._workers.append(WorkerProcess(self.url, _THREADS))

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
        if not self._ended:
            self._watch()
            connections = {worker.connection: worker for worker in self._workers if not worker.connection.closed}
            for connection in wait(list(connections), 0.0 if self._ended else timeout_s):
                ended = connections[connection].receive()  # type: ignore[index]  # what goes in comes out
                self._ended.extend([] if ended is None else [ended])
            self._workers = [worker for worker in self._workers if not worker.connection.closed]
            self._hand_out()
        return self._ended.popleft() if self._ended else None

    def _watch(self) -> None:
        now = time.monotonic()
        if now < self._next_update:
            return
        self._next_update = now + _UPDATE_EVERY_S
        for worker in self._workers:
            # A worker that forked leaves its socket open in the child when it dies.
            ended = worker.watch(self.limits) if worker.is_alive else worker.receive()
            self._ended.extend([] if ended is None else [ended])

    def messages(self) -> list[Message]:
        return [worker.message for worker in self._workers if worker.message is not None]

    def close(self) -> None:
        self._waiting.clear()
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def _hand_out(self) -> None:
        while self._waiting:
            idle = next((worker for worker in self._workers if worker.attempt is None), None)
            if idle is None:
                if len(self._workers) >= self.num_workers:
                    return
                self.start_worker()
                idle = self._workers[-1]
            idle.give(*self._waiting.popleft())


def usable_cores() -> int:
    """Cores that this process may use; a container or a batch system may have limited them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
