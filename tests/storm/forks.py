"""Commands and questions in a fork of a process that has imported everything: a tenth of the time of a process of its own.

    fork server: imports  ─ fork ─▶  one call  ─▶  its result, or the signal that ended it

Tasks of a run in a fork run in it, one after the other, so a task that crashes ends the run, and that is seen.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar
from unittest import mock

from datapipe.cli.main import main
from datapipe.engine import local as local_engine
from datapipe.engine.protocol import Attempt, failure_of
from datapipe.plan.work import Task
from datapipe.storage import Root
from datapipe.tasks import run_task as tasks
from tests.storm.processes import Ended, HangError

T = TypeVar("T")

DEADLINE_S = 240.0


class Here:
    """An engine that runs each task where it is asked for, and stops as Ctrl-C does once it has run some."""

    slots = 1

    def __init__(self, url: str, stops_after: int | None) -> None:
        self.root, self.left = Root(url), stops_after
        self.waiting: deque[tuple[Task, str]] = deque()

    def submit(self, task: Task, attempt: str) -> None:
        self.waiting.append((task, attempt))

    def next_attempt(self, timeout_s: float) -> Attempt | None:
        if not self.waiting:
            return None
        if self.left is not None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
        task, attempt = self.waiting.popleft()
        try:
            return Attempt(task=task, attempt=attempt, record=tasks.run_task(task, self.root, attempt))
        except Exception as error:
            return Attempt(task=task, attempt=attempt, failure=failure_of(error))

    def cancel(self, attempt: str) -> None: ...

    def messages(self) -> tuple[()]:
        return ()

    def close(self) -> None: ...


def command(arguments: Sequence[str], stops_after: int | None = None) -> Ended:
    """A `datapipe` command in this process. A run stops after so many tasks."""
    printed, errors, status = io.StringIO(), io.StringIO(), 0
    make = mock.patch.object(local_engine, "LocalEngine", lambda url, *_, **__: Here(url, stops_after))
    argv = mock.patch.object(sys, "argv", ["datapipe", *arguments])
    with make, argv, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
    return Ended(status=status, printed=printed.getvalue(), errors=errors.getvalue())


def in_fork(
    function: Callable[..., T],
    *arguments: Any,
    environment: Mapping[str, str],
    deadline_s: float = DEADLINE_S,
) -> T:
    """The result of a module's function in a fork. Raises AssertionError for a signal, an exception or no end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.storm.forks", "tests.storm.faults.flips", "pyarrow.parquet", "datapipe.engine.run"])
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, function, arguments, dict(environment)))
    process.start()
    theirs.close()
    try:
        if not ours.poll(deadline_s):
            raise HangError(f"no end of {function.__name__}{arguments} after {deadline_s:.0f} s")
        is_right, result = ours.recv()
    except EOFError:
        process.join()
        raise AssertionError(f"{function.__name__} ended with exit status {process.exitcode}: {arguments}") from None
    finally:
        ours.close()
        if process.is_alive():
            process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
    assert is_right, result
    return result


def _serve(
    connection: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    environment: dict[str, str],
) -> None:
    os.environ.update(environment)
    tempfile.tempdir = None  # of the parent
    try:
        result = (True, function(*arguments))
    except BaseException:
        result = (False, traceback.format_exc())
    connection.send(result)
    connection.close()
    os._exit(0)
