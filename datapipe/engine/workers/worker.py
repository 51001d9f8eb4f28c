"""A worker: a process that runs one task after another for one supervisor, and ends with it.

    supervisor ══ socket ══ worker:   first (sys.path, url of OUTPUT), then tasks; back come "ready", then attempts

A thread reads the socket while the main thread works. The socket closes when the supervisor's process ends, however suddenly,
and the worker exits at once; its task was not committed. On Linux the kernel ends it as well, even where a native call holds
the interpreter or the process is stopped.

The main thread writes its activity to a block of shared memory. The stacks of its threads go to
`trace` when it crashes, and when the supervisor sends SIGUSR2.
"""

import ctypes
import faulthandler
import gc
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from datapipe.machine.terminal import prepare_process


def main(descriptor: int, block: int, trace: int) -> None:
    """Serves tasks from a socket until it closes. All arguments are descriptors."""
    thresholds = gc.get_threshold()
    prepare_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the driver decides
    if sys.platform == "linux":  # PR_SET_PDEATHSIG of prctl(2): the kernel kills this process with its parent thread
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
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

    gc.freeze()
    gc.set_threshold(*thresholds)  # a stage may leave large values in cycles
    pa.set_cpu_count(1)  # the engines are the only parallelism
    pa.set_io_thread_count(2)
    root = Root(url)
    activity.publish_to(activity.ActivityBlock(block))
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
    """The task. Raises StageError where the code of a stage cannot be unpickled."""
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
