"""Restricts this process to one core, so that its times are those of one worker on any machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa


@contextmanager
def one_core() -> Iterator[int | None]:
    """Restricts every thread of the process to one core and Arrow to the threads of a worker. Restores both at the end.

    Yields:
        The number of the core; None on platforms without processor affinity, where threads of libraries may use other cores.
    """
    arrow_cores, arrow_io = pa.cpu_count(), pa.io_thread_count()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(2)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    try:
        if allowed is not None:
            _set_affinity(frozenset({max(allowed)}))
        yield None if allowed is None else max(allowed)
    finally:
        if allowed is not None:
            _set_affinity(allowed)
        pa.set_cpu_count(arrow_cores)
        pa.set_io_thread_count(arrow_io)


def _set_affinity(cores: Set[int]) -> None:
    """Affinity belongs to a thread: sets it for each existing thread. New threads inherit it from their parent."""
    threads = Path("/proc/self/task")
    for thread in [int(entry.name) for entry in threads.iterdir()] if threads.is_dir() else [0]:
        try:
            os.sched_setaffinity(thread, cores)
        except ProcessLookupError:  # the thread has ended since it was listed
            continue
