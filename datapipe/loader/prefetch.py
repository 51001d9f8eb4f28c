"""Batches built ahead of their reader, in order, by threads that start at the first batch and never outlive their owner.

    take(step) ── first slot, waits ◀── build(step)
                  second slot       ◀── build(step + n)      `depth` slots, filled by one thread or, for waiting, by several
                  …

Threads hold the queue of work and nothing of the owner, so an owner that is forgotten is collected, and that stops them; so
does the end of the interpreter. What was built ahead and not taken is dropped: batches are a function of their step.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from datapipe.errors import UserError

MAX_THREADS = 16

_Work = SimpleQueue["_Slot | None"]


class _Slot:
    """One batch to be: the step, and what came of it."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.wanted = True
        self.ready = threading.Event()
        self.batch: Any = None
        self.error: BaseException | None = None


class Prefetcher:
    """Builds `depth` steps ahead of the one taken, every `stride`-th, up to `stop`. Depth 0 builds in the caller.

    Args:
        num_threads: one where building is computing, since threads would only take the interpreter from each other (measured:
            a sixth slower with two); as many as the depth where building is waiting for an object store.
    """

    def __init__(
        self, build: Callable[[int], Any], depth: int, *, num_threads: int = 1, stride: int = 1, stop: int | None = None
    ) -> None:
        self._build = build
        self._depth = depth
        self._num_threads = min(depth, num_threads, MAX_THREADS)
        self._stride = stride
        self._stop = stop
        self._slots: deque[_Slot] = deque()
        self._work: _Work = SimpleQueue()
        self._finalizer: weakref.finalize | None = None
        self._process = os.getpid()

    def take(self, step: int) -> Any:
        """The batch of `step`. A step that was not expected next drops what was built ahead and starts there."""
        if self._depth == 0:
            return self._build(step)
        if self._finalizer is None:
            self._start_threads()
        if self._process != os.getpid():
            raise UserError(
                "this iterator was started before a fork, and a fork copies no threads. "
                "Open a Loader in the new process, load the state, and iterate there."
            )
        if not self._slots or self._slots[0].step != step:
            self._drop()
        self._fill(step)
        slot = self._slots.popleft()
        self._fill(step + self._stride)  # the thread that made this batch goes on while the caller uses it
        slot.ready.wait()
        if slot.error is not None:
            self._drop()  # so that asking again builds again
            raise slot.error
        return slot.batch

    def close(self) -> None:
        """Stops the threads and waits for them. Taking again starts new ones."""
        self._drop()
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer, self._work = None, SimpleQueue()

    def _fill(self, step: int) -> None:
        """Asks for `depth` steps from `step` on."""
        next_step = self._slots[-1].step + self._stride if self._slots else step
        while len(self._slots) < self._depth and (self._stop is None or next_step < self._stop):
            self._slots.append(_Slot(next_step))
            self._work.put(self._slots[-1])
            next_step += self._stride

    def _drop(self) -> None:
        for slot in self._slots:
            slot.wanted = False
        self._slots.clear()

    def _start_threads(self) -> None:
        threads = [
            # Daemons: interpreters wait for other threads before they run the finalizers that would stop them.
            threading.Thread(target=_serve, args=(self._work, self._build), name=f"datapipe-prefetch-{number}", daemon=True)
            for number in range(self._num_threads)
        ]
        for thread in threads:
            thread.start()
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, _stop_threads, self._work, threads)


def _serve(work: _Work, build: Callable[[int], Any]) -> None:
    while (slot := work.get()) is not None:
        try:
            if slot.wanted:
                slot.batch = build(slot.step)
        except BaseException as error:  # handed to the caller of take(), who raises it
            slot.error = error
        slot.ready.set()
        del slot  # so that no batch outlives its use while this thread waits


def _stop_threads(work: _Work, threads: list[threading.Thread]) -> None:
    with contextlib.suppress(Empty):
        while True:
            work.get_nowait()
    for _ in threads:
        work.put(None)
    for thread in threads:
        if thread is not threading.current_thread():  # the collector may run in one of them
            thread.join()
