"""Commands and questions in a fork of a process that has imported everything: a tenth of the time of a process.

    fork server: imports  ─ fork ─▶  one call  ─▶  its result, or the signal that ended it

Tasks of a run in a fork run in it, one after the other, so a task that crashes ends the run, and that is seen.
"""

import contextlib
import io
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar
from unittest import mock

from datapipe.cli.main import main
from datapipe.engine import run as engine_run
from datapipe.engine.protocol import Attempt, failure_of
from datapipe.storage.root import Root
from tests.storm.processes import Ended, HangError
from tests.support import runs

T = TypeVar("T")

DEADLINE_S = 240.0


class Here(runs.InProcess):
    """Runs each task where it is asked for, and stops as Ctrl-C does once it has run some."""

    def __init__(self, root: Root, stops_after: int | None) -> None:
        super().__init__(root, None)
        self.left = stops_after

    def start_worker(self) -> None:
        """Has no workers."""

    def next_attempt(self, timeout_s: float) -> Attempt | None:
        if not self.tasks:
            return None
        if self.left == 0:
            raise KeyboardInterrupt
        self.left = None if self.left is None else self.left - 1
        task, attempt = self.tasks[0]
        try:
            return super().next_attempt(timeout_s)
        except Exception as error:
            return Attempt(task=task, attempt=attempt, failure=failure_of(error))


def command(arguments: Sequence[str], stops_after: int | None = None) -> Ended:
    """A `datapipe` command in this process. A run stops after so many tasks."""
    printed, errors, status = io.StringIO(), io.StringIO(), 0
    make = mock.patch.object(engine_run, "LocalEngine", lambda url, *_, **__: Here(Root(url), stops_after))
    argv = mock.patch.object(sys, "argv", ["datapipe", *arguments])
    with make, argv, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
    return Ended(status=status, printed=printed.getvalue(), errors=errors.getvalue())


def in_fork(function: Callable[..., T], *arguments: Any, environment: Mapping[str, str], deadline_s: float = DEADLINE_S) -> T:
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
    connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...], environment: dict[str, str]
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
