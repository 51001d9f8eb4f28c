"""A worker: a process that runs one task after another for one supervisor, and goes when the supervisor goes.

    supervisor ══ socket ══ worker:   first (sys.path, url of OUTPUT), then tasks; back come "ready", then attempts

A thread reads the socket while the main thread works, so that the end of the supervisor, however sudden, ends the worker at
once: the socket closes when the supervisor's process is gone, and the worker leaves without finishing. On Linux the kernel
ends it as well, even where a native call holds the interpreter or the process is stopped. What it had in hand was not
committed.

The main thread tells what it is at in a page of shared memory. Where its threads are goes to `trace` when it crashes, and when
the supervisor asks with SIGUSR2.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from datapipe.machine.terminal import prepare_process


def main(descriptor: int, page: int, trace: int) -> None:
    """Serves tasks from the socket `descriptor` until it closes.

    Args:
        page: descriptor of the memory for what it is at.
        trace: descriptor of the file for stacks.
    """
    prepare_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the driver decides
    _end_with_supervisor()
    faulthandler.enable(trace, all_threads=False)
    faulthandler.register(signal.SIGUSR2, trace, all_threads=True)
    connection = Connection(descriptor)
    sys.path[:], url = connection.recv()
    work: queue.SimpleQueue[tuple[bytes, str]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, work), daemon=True).start()

    import pyarrow as pa

    from datapipe.engine.protocol import failure_of
    from datapipe.machine import activity
    from datapipe.steps.run_task import run_task
    from datapipe.storage.root import Root

    pa.set_cpu_count(1)  # the engines are the only parallelism
    pa.set_io_thread_count(2)
    root = Root(url)
    activity.tell_to(activity.Page(page))
    connection.send("ready")
    while True:
        content, attempt = work.get()
        record, failure = None, None
        try:
            record = run_task(_loaded(content), root, attempt)
        except BaseException as error:  # a stage may raise SystemExit
            failure = failure_of(error)
        connection.send((record, failure))


def _loaded(content: bytes) -> Any:
    """The task. Raises StageError where the code of a stage does not survive pickling."""
    import pickle

    from datapipe.errors import StageError, is_retryable
    from datapipe.machine.activity import doing

    try:
        with doing("load the stages"):
            return pickle.loads(content)
    except BaseException as error:
        if is_retryable(error):
            raise
        raise StageError(
            f"a worker cannot load the stages of the task: {type(error).__name__}: {error}. Expected stages that can be "
            "pickled, in modules that every worker can import"
        ) from error


def _receive(connection: Connection, work: queue.SimpleQueue[tuple[bytes, str]]) -> None:
    while True:
        try:
            work.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)


def _end_with_supervisor() -> None:
    """Has the kernel kill this process when the thread that started it is gone (prctl(2), PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
