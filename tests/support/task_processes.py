"""Tasks of the engine run one by one, each in its own process, so that the time and the peak memory of each are its own.

a server that has imported and compiled all  ─ fork ─▶  one task  ─▶  its record, and its peak beyond what the server has
"""

import multiprocessing
import os
import pickle
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from datapipe.config import load_mixture
from datapipe.engine.prepare import prepare
from datapipe.machine.memory import peak_bytes
from datapipe.records.outputs import Record
from datapipe.steps.kind import Task
from datapipe.steps.kinds import compile_plan
from datapipe.steps.map import MapTask
from datapipe.steps.merge import MergeTask
from datapipe.steps.reduce import GatherTask, ReduceTask
from datapipe.steps.run_task import run_task
from datapipe.storage.root import Root


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A task and what it took. `peak_bytes`: beyond what imports and compiled kernels take."""

    task: Task
    record: Record
    peak_bytes: int

    @property
    def kind(self) -> str:
        """The step, all rounds of an exchange as one, and all merging."""
        if isinstance(self.task, MergeTask):
            return "merge"
        name = self.task.step.rpartition("/")[2]
        return re.sub(r"-\d+$", "", name)


class FreshTasks:
    """Runs tasks, one after the other."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._count = connection, 0

    def run(self, task: Task, output: str) -> Measured:
        """Runs a task over the output at this URL."""
        self._count += 1
        self._connection.send_bytes(pickle.dumps((task, output, str(self._count))))
        record, peak = pickle.loads(self._connection.recv_bytes())
        if record is None:
            raise AssertionError(f"{task.label} failed in its process:\n{peak}")
        return Measured(task=task, record=record, peak_bytes=peak)


@contextmanager
def fresh_tasks() -> Iterator[FreshTasks]:
    """A server of processes, for as long as the block lasts."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    theirs.close()
    try:
        yield FreshTasks(ours)
    finally:
        ours.close()
        server.join()


def _serve(connection: Connection) -> None:
    _warm_up()
    while True:
        try:
            content = connection.recv_bytes()
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            _answer(connection, content)
        if os.waitpid(child, 0)[1]:
            connection.send_bytes(pickle.dumps((None, "it was killed")))


def _answer(connection: Connection, content: bytes) -> None:
    """Runs the task that was asked for, and leaves the process."""
    try:
        before = peak_bytes()
        task, url, attempt = pickle.loads(content)
        record = run_task(task, Root(url), attempt)
        connection.send_bytes(pickle.dumps((record, record.metrics.peak_bytes - before)))
    except Exception:
        connection.send_bytes(pickle.dumps((None, traceback.format_exc())))
    finally:
        os._exit(0)


def _warm_up() -> None:
    """Imports, compiles and loads what any task needs."""

    import stages.read.parquet  # noqa: F401
    from stages.dedup.exact import Exact
    from stages.dedup.lines import Lines
    from stages.dedup.minhash import Minhash
    from stages.dedup.substring import Substring
    from tests.support.global_stages import batch_of, opened, reduce_all

    page = " ".join(f"word{number}" for number in range(100))
    for stage in (Exact(), Lines(), Minhash(), Substring()):
        for at_once in (False, True):
            reduce_all(opened(stage), [batch_of([page, page, f"other {page} now\nand here", page])], at_once=at_once)


def run_to_decisions(mixture: Path, tasks: FreshTasks) -> list[Measured]:
    """Every task of a mixture up to the documents that are left by its last stage."""
    loaded = load_mixture(mixture)
    request = prepare(loaded)
    committed: dict[str, Record] = {}
    found: list[Measured] = []
    kinds = (MapTask, ReduceTask, MergeTask, GatherTask)
    while pending := [task for task in compile_plan(request, committed.get).pending() if isinstance(task, kinds)]:
        for task in pending:
            found.append(tasks.run(task, loaded.output))
            committed[task.fingerprint] = found[-1].record
    return found
