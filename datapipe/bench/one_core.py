"""One core for this process: what is timed here is what one worker does, whatever else the machine has to offer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa


@contextmanager
def one_core() -> Iterator[int | None]:
    """Holds every thread of the process to one core, and Arrow to the threads of a worker; both are restored behind it.

    Yields:
        The core's number; None where the platform has no such thing, and threads of libraries may use others.
    """
    arrow_cores, arrow_io = pa.cpu_count(), pa.io_thread_count()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(2)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    try:
        if allowed is not None:
            _hold(frozenset({max(allowed)}))
        yield None if allowed is None else max(allowed)
    finally:
        if allowed is not None:
            _hold(allowed)
        pa.set_cpu_count(arrow_cores)
        pa.set_io_thread_count(arrow_io)


def _hold(cores: Set[int]) -> None:
    """Affinity belongs to a thread; those that exist are set one by one, new ones take after who starts them."""
    threads = Path("/proc/self/task")
    for thread in [int(one.name) for one in threads.iterdir()] if threads.is_dir() else [0]:
        try:
            os.sched_setaffinity(thread, cores)
        except ProcessLookupError:  # it has ended since it was listed
            continue
