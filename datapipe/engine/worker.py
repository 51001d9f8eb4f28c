"""A local worker: a process that runs one task after another for one driver, and goes when the driver goes.

    driver ══ socket ══ worker:   first (sys.path, url of OUTPUT), then tasks; back come "ready", then attempts

A thread reads the socket while the main thread works, so that the end of the driver, however sudden, ends the worker at
once: the socket closes when the driver's process is gone, and the worker leaves without finishing. What it had in hand was
not committed.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection


def main(descriptor: int) -> None:
    """Serves tasks from the socket `descriptor` until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the driver decides
    connection = Connection(descriptor)
    sys.path[:], url = connection.recv()
    work: queue.SimpleQueue[tuple[bytes, str]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, work), daemon=True).start()

    import pickle

    import pyarrow as pa

    from datapipe.engine.protocol import Attempt, failure_of
    from datapipe.storage import Root
    from datapipe.tasks.run_task import run_task

    pa.set_cpu_count(1)  # the engines are the only parallelism
    pa.set_io_thread_count(2)
    root = Root(url)
    connection.send("ready")
    while True:
        content, attempt = work.get()
        task = pickle.loads(content)
        try:
            ended = Attempt(task=task, record=run_task(task, root, attempt))
        except BaseException as error:  # a stage may raise SystemExit
            ended = Attempt(task=task, failure=failure_of(error))
        connection.send((ended.record, ended.failure))


def _receive(connection: Connection, work: queue.SimpleQueue[tuple[bytes, str]]) -> None:
    while True:
        try:
            work.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
