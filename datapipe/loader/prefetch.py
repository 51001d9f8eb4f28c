"""Batches built ahead of their reader, in order, by threads that start at the first batch and never outlive their owner.

    take(step) ── first chunk, one step: waits ◀── build_many([step])
                  second chunk, two steps      ◀── build_many([…, …])     `depth` steps in all; one thread builds a chunk,
                  third chunk, four steps           …                     several threads build several chunks

The first chunk has one step, so the first batch is not delayed. Chunks then grow to `CHUNK_BYTES`
or half of the depth, so that one is used while the next is built. From local files (`requests_late`)
the next is requested with the first batch of a chunk, when the caller drops the chunk before: so two take
memory, not three, and stay in the processor's cache; fewer are ready for a step that takes long. The caller
builds a chunk that no thread has begun, and all chunks while it does next to nothing with batches: to hand over
a chunk takes longer (`HANDOVER_S`).

Threads refer to the work queue and not to the owner. An owner without references is collected,
which stops the threads; so does the end of the interpreter.
"""

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import RLock
from time import perf_counter
from typing import Any

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.errors import UserError

MAX_THREADS = 16

CHUNK_BYTES = 4 << 20
"""Of the batches of a chunk: large enough that the work in Python is a small share, small enough for a processor's cache."""

HANDOVER_S = 200e-6
"""From local files, threads build the next chunk where the caller worked for this long or longer on the batches of the last. To
wake a thread and to wait for it takes 30 to 70 µs of CPU a chunk, and the batches leave the caches of the caller's core."""

BuildMany = Callable[[Sequence[int]], Sequence[Any]]
Successor = Callable[[int], "int | None"]

_Work = SimpleQueue["_Chunk | None"]


@dataclass(kw_only=True, slots=True)
class PrefetchCounts:
    batches: int = 0
    bytes: int = 0
    build_s: float = 0.0  # seconds of building, over the chunks from which batches were taken
    ready_sum: int = 0  # batches that were ready when a batch was asked for, summed over all batches


class _Chunk:
    """Batches that are built together: their steps, then the results. `ready` is locked until they are built, `begun` from then
    on when a thread or the caller builds them."""

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps
        self.wanted = True
        self.is_built = False
        self.begun, self.ready = threading.Lock(), threading.Lock()
        self.ready.acquire()
        self.batches: list[Any] = []
        self.batch_bytes: list[int] = []
        self.build_s = 0.0
        self.error: BaseException | None = None

    def build(self, build_many: BuildMany) -> None:
        """Builds the batches; or those before the first failure, and keeps the error."""
        started, batches = perf_counter(), list[Any]()
        try:
            batches += build_many(self.steps)
        except Exception as error:
            if len(self.steps) == 1:
                self.error = error
        if not batches and self.error is None:
            for step in self.steps:
                try:
                    batches += build_many([step])
                except Exception as error:
                    self.error = error
                    break
        self.batches, self.batch_bytes = batches, [bytes_of(batch) for batch in batches]
        self.build_s = perf_counter() - started

    def hand_out(self, index: int) -> Any:
        """A batch, of which no reference stays: the frames that led to `error` have their variables for as long as it lives."""
        batch, self.batches[index] = self.batches[index], None
        return batch


class Prefetcher:
    """Builds up to `depth` steps ahead of the step taken last. Depth 0 builds in the caller.

    Args: depth: the most batches that are requested and not taken. successor: the step after a
        step; None at the end. num_threads: 1 where building is computation; up to `depth` where
        building waits for an object store. requests_late: see above. interrupt: called with True before threads are stopped,
        so that a building that waits ends, and with False afterwards.
    """

    def __init__(
        self,
        build_many: BuildMany,
        depth: int,
        *,
        successor: Successor,
        num_threads: int = 1,
        requests_late: bool = False,
        interrupt: Callable[[bool], None] = lambda is_stopped: None,
    ) -> None:
        self._build_many = build_many
        self._interrupt = interrupt
        self._depth = depth
        self._requests_late = requests_late
        self._successor = successor
        self._num_threads = min(depth, num_threads, MAX_THREADS)
        self._most_steps = 2  # of a chunk, until the size of a batch is known
        self._chunks: deque[_Chunk] = deque()  # batches are taken from the first
        self._next_index = 0  # in the first chunk
        self._num_ahead = 0  # steps requested and not taken
        self._left_at = 0.0  # when the caller got the first batch of a chunk
        self._work: _Work = SimpleQueue()
        self._finalizer: weakref.finalize | None = None
        self._process = os.getpid()
        self.counts = PrefetchCounts()

    @property
    def num_ready(self) -> int:
        return max(0, sum(len(chunk.batches) for chunk in list(self._chunks) if chunk.is_built) - self._next_index)

    @property
    def chunk_steps(self) -> int:
        return min(self._most_steps, max(1, self._depth))

    def take(self, step: int) -> Any:
        """The batch of `step`. A step other than the expected one drops the batches built ahead and starts there."""
        if self._depth == 0:
            return self._build_here(step)
        if self._process != os.getpid() and self._finalizer is not None:
            raise UserError(
                "this iterator was started before a fork, and threads do not survive a fork. "
                "Open a Loader in the new process, load the state, and iterate there."
            )
        try:
            return self._take(step)
        except BaseException:  # an interrupt of the caller, perhaps, in the middle of a change: the next call builds again
            self._drop()
            raise

    def _take(self, step: int) -> Any:
        if not self._chunks or self._chunks[0].steps[self._next_index] != step:
            self._restart(step)
        chunk, index, counts = self._chunks[0], self._next_index, self.counts
        ready = -index
        for each in self._chunks:
            if each.is_built:
                ready += len(each.batches)
        counts.ready_sum += max(0, ready)
        busy_s = perf_counter() - self._left_at if index == 0 else 0.0
        if index == 0:
            self._wait_for(chunk)
        if index == len(chunk.batches):
            assert chunk.error is not None
            raise chunk.error
        counts.batches += 1
        counts.bytes += chunk.batch_bytes[index]
        self._num_ahead -= 1
        self._next_index = index + 1
        if index == 0 and self._requests_late:
            self._request(in_thread=busy_s >= HANDOVER_S)  # builds while the caller uses this chunk
            self._left_at = perf_counter()
        if self._next_index == len(chunk.steps):
            self._chunks.popleft()
            self._next_index = 0
            if not self._requests_late:
                self._request(self._successor(step))
        return chunk.hand_out(index)

    def close(self) -> None:
        """Stops the threads and waits for them. The next `take` starts new ones."""
        self._drop()
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer, self._work = None, SimpleQueue()

    def _build_here(self, step: int) -> Any:
        started, counts = perf_counter(), self.counts
        batch = self._build_many([step])[0]
        counts.build_s += perf_counter() - started
        counts.batches += 1
        counts.bytes += bytes_of(batch)
        return batch

    def _restart(self, step: int) -> None:
        if self._finalizer is None:
            self._start_threads()
        self._drop()
        self._request(step)

    def _wait_for(self, chunk: _Chunk) -> None:
        if self._requests_late and chunk.begun.acquire(blocking=False):
            chunk.build(self._build_many)
            chunk.is_built = True
        else:
            chunk.ready.acquire()
        self.counts.build_s += chunk.build_s
        if chunk.batch_bytes:
            of_depth = self._depth // (2 * self._num_threads)
            self._most_steps = max(1, min(CHUNK_BYTES // max(1, *chunk.batch_bytes, 1), of_depth))

    def _request(self, step: int | None = None, *, in_thread: bool = True) -> None:
        """Requests chunks from `step` on, or after the last one, while the depth has room."""
        size = 1
        if self._chunks:
            size = min(2 * len(self._chunks[-1].steps), self._most_steps)
            step = self._successor(self._chunks[-1].steps[-1])
        while step is not None and (room := self._depth - self._num_ahead) >= min(size, self._depth):
            steps: list[int] = []
            while step is not None and len(steps) < min(size, room):
                steps.append(step)
                step = self._successor(step)
            self._chunks.append(_Chunk(steps))
            self._num_ahead += len(steps)
            if in_thread:
                self._work.put(self._chunks[-1])
            size = min(2 * size, self._most_steps)

    def _drop(self) -> None:
        for chunk in self._chunks:
            chunk.wanted = False
        self._chunks.clear()
        self._next_index = self._num_ahead = 0

    def _start_threads(self) -> None:
        threads = [
            # daemons: the interpreter joins other threads before it runs the finalizers that would stop them
            threading.Thread(
                target=_run_builder, args=(self._work, self._build_many), name=f"datapipe-prefetch-{number}", daemon=True
            )
            for number in range(self._num_threads)
        ]
        for thread in threads:
            thread.start()
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, _stop_threads, self._work, threads, self._interrupt)


def _run_builder(work: _Work, build_many: BuildMany) -> None:
    while (chunk := work.get()) is not None:
        if chunk.wanted and chunk.begun.acquire(blocking=False):
            try:
                chunk.build(build_many)
            except BaseException as error:
                chunk.error = error
            chunk.is_built = True
            chunk.ready.release()
        del chunk  # a waiting thread must not keep batches alive


def bytes_of(batch: Any) -> int:
    num_bytes = 0
    if isinstance(batch, dict):
        for value in batch.values():  # a generator takes twice as long
            if isinstance(value, np.ndarray):
                num_bytes += value.nbytes
    return num_bytes


def _stop_threads(work: _Work, threads: list[threading.Thread], interrupt: Callable[[bool], None]) -> None:
    interrupt(True)
    with contextlib.suppress(Empty):
        while True:
            work.get_nowait()
    for _ in threads:
        work.put(None)
    for thread in threads:
        if thread is not threading.current_thread():  # the collector may run in one of them
            thread.join()
    interrupt(False)


class Turns:
    """The lock of a loader's position, so that each batch is handed out once. It is free in a forked child."""

    def __init__(self) -> None:
        self.lock = RLock()
        _ALL.add(self)


class SharedIterator(Iterator[Any]):
    """The items of a generator, from which several threads may take."""

    def __init__(self, items: Generator[Any, None, None], turns: Turns) -> None:
        self._items, self._turns = items, turns

    def __next__(self) -> Any:
        with self._turns.lock:
            return next(self._items)

    def close(self) -> None:
        with self._turns.lock:
            self._items.close()


_ALL: weakref.WeakSet[Turns] = weakref.WeakSet()


def _free_all() -> None:
    for turns in list(_ALL):
        turns.lock = RLock()


os.register_at_fork(after_in_child=_free_all)
