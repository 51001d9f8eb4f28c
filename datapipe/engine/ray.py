"""The Ray engine: the same tasks, on a cluster. The only file that knows Ray.

    driver ─▶ Ray task on any node: a supervisor ─▶ its worker process ─▶ record ─▶ driver commits
       ◀──── board, an actor ◀── reports ───┘

A task of Ray runs nothing itself. It keeps a worker process like those of the local engine, so that both engines see crashes,
stalls and what a worker is at alike, and reports it (`workers/supervisor.py`). A supervisor that reports nothing for `stall_s`
is killed.

Ray gives placement, resources and detection of lost nodes. Retries, commits and order stay with the driver, so a task that
Ray loses is submitted again like one that a local worker lost. Before anything runs, every node is asked whether it sees
OUTPUT. The user's own stage modules travel with the tasks, as source. Every node compiles the kernels of the run once, on all
its cores, while its first tasks begin: a task that needs a kernel which is not there yet waits for it, or compiles it itself.
"""

from __future__ import annotations

import base64
import importlib
import os
import pickle
import signal
import socket
import stat
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from datapipe.engine.kernels_used import kernels_of_run
from datapipe.engine.placement import lack_of
from datapipe.engine.protocol import Attempt, Failure, Message, failure_of
from datapipe.engine.workers.process import LONGEST_STEP_S
from datapipe.engine.workers.supervisor import Board, Report, Reported, kill_supervisor, supervise
from datapipe.errors import DatapipeError, UserError
from datapipe.ledger.names import probe as probe_file
from datapipe.plan.request import Request
from datapipe.plan.work import GatherTask, MapTask, MergeTask, Record, ReduceTask, Task
from datapipe.storage import Root, open_input

_PACKAGES = ("datapipe", "stages")
"""Installed on every node; everything else that a stage is defined in is shipped."""

_PROBE_TIMEOUT_S = 60.0

_PLACEMENT_EVERY_S = 2.0


class RayEngine:
    """Tasks on a Ray cluster.

    Args:
        root: OUTPUT, which every node must see.
        request: what will run; the first input file of each source must be seen by every node too.
        address: of a running cluster ("auto", "host:port"); None uses the cluster this process is connected to, or starts
            one on this machine for the run.
        num_workers: CPUs of a cluster that is started here.
    """

    def __init__(self, root: Root, request: Request, address: str | None = None, num_workers: int | None = None) -> None:
        self.root = root
        self._started_here = not ray.is_initialized()
        if self._started_here:
            with _keeping_sigterm():
                _connect(address, num_workers)
        self._stall_s = request.mixture.execution.stall_s
        self._patience_s = 0.0 if self._started_here and address is None else self._stall_s  # other clusters may grow
        self._running: dict[Any, Reported] = {}
        self._remote = ray.remote(max_retries=0, max_calls=0)(_run_remotely)
        self._modules: dict[str, str] = {}
        self._compiling: list[Any] = []
        self._board: Any = _start_board()
        self._asked: Any = None
        self._looked_at = self._placed_at = time.monotonic()
        try:
            _probe_nodes(root, first_inputs(request))
            self._compiling = _compile_on_nodes(kernels_of_run(request.mixture))
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def submit(self, task: Task, attempt: str) -> None:
        self._modules.update(user_modules(task))
        reserved = _reserved(task)
        options: dict[str, Any] = {"num_cpus": reserved["CPU"], "scheduling_strategy": "SPREAD", "name": task.step}
        if "GPU" in reserved:
            options["num_gpus"] = reserved["GPU"]
        if "memory" in reserved:
            options["memory"] = int(reserved["memory"])
        reference = self._remote.options(**options).remote(
            pickle.dumps(task), self.root.url, attempt, self._modules, self._stall_s, self._board
        )
        self._running[reference] = Reported(task=task, attempt=attempt)

    def next_attempt(self, timeout_s: float) -> Attempt | None:
        if not self._running:
            return None
        self._read_board()
        if (unplaced := self._unplaced()) is not None:
            return unplaced
        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout_s)
        if not ready:
            return None
        running = self._running.pop(ready[0])
        task = running.task
        try:
            record, failure = ray.get(ready[0])
        except RayTaskError as error:  # our own function failed outside of run_task: a module that cannot be loaded
            return Attempt(task=task, failure=failure_of(error.cause if isinstance(error.cause, BaseException) else error))
        except (RayError, OutOfMemoryError) as error:
            lost = Failure(kind="infrastructure", message=f"Ray lost {running}. {type(error).__name__}: {error}")
            return Attempt(task=task, failure=lost)
        return Attempt(task=task, record=record, failure=failure)

    def messages(self) -> list[Message]:
        return [running.message for running in self._running.values() if running.message is not None]

    def _read_board(self) -> None:
        """Takes what the supervisors told, and asks again. Never waits. A supervisor that tells nothing for long is killed."""
        if self._asked is None:
            self._asked = self._board.latest.remote([running.attempt for running in self._running.values()])
            return
        if not ray.wait([self._asked], timeout=0)[0]:
            return
        now = time.monotonic()
        step_s, self._looked_at = min(now - self._looked_at, LONGEST_STEP_S), now
        try:
            reports: dict[str, tuple[str, Report]] = ray.get(self._asked)
        except RayError:  # it starts again, empty
            reports = {}
        self._asked = None
        for running in self._running.values():
            node_id, report = reports.get(running.attempt, ("", None))
            if running.hear(node_id, report, step_s) >= self._stall_s:
                _kill_on_node(running)

    def _unplaced(self) -> Attempt | None:
        """Looks, every few seconds, for tasks that no node can run; the end of the first that has waited for too long.

        Raises DatapipeError where all nodes are gone.
        """
        now = time.monotonic()
        waiting = [running for running in self._running.values() if running.report is None]
        if not waiting or now - self._placed_at < _PLACEMENT_EVERY_S:
            return None
        step_s, self._placed_at = min(now - self._placed_at, LONGEST_STEP_S), now
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for running in waiting:
            running.miss(lack_of(_reserved(running.task), nodes), step_s)
            if running.lack and running.lacking_s >= self._patience_s:
                if not nodes:
                    raise DatapipeError(
                        f"{running.task.label} waits for {running.lack}. Start it again, and run the same command again"
                    )
                message = (
                    f"{running.task.label} waits for {running.lack}. Lower execution.resources, or add such a node; where the "
                    f"cluster adds it by itself and needs longer, raise execution.stall_s, now {self._stall_s:g}"
                )
                return Attempt(task=running.task, failure=Failure(kind="user", message=message))
        return None

    def close(self) -> None:
        for reference in [*self._running, *self._compiling]:
            ray.cancel(reference, force=True)
        self._running.clear()
        self._compiling.clear()
        ray.kill(self._board)
        if self._started_here:
            ray.shutdown()


@contextmanager
def _keeping_sigterm() -> Iterator[None]:
    """Puts the handler of SIGTERM back that Ray replaces by one that exits."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _connect(address: str | None, num_workers: int | None) -> None:
    common: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "logging_level": "warning"}
    try:
        if address:
            _knock(address)
            common.pop("include_dashboard")
            ray.init(address=address, **common)
        else:
            ray.init(address="local", num_cpus=num_workers or os.cpu_count() or 1, **common)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"cannot reach a Ray cluster at {address or 'this machine'}: {error}. "
            f"Start one with `ray start --head`, give its --address, or leave --address out to start one for this run."
        ) from error


def _knock(address: str) -> None:
    """Raises OSError at once where nobody listens; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


def _reserved(task: Task) -> dict[str, float]:
    """What a task reserves on its node, by Ray's names."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    return {"CPU": 1.0, **{names[name]: amount for name, amount in task.resources}}


# ------------------------------------------------------------------------------------------------ supervisors


def _start_board() -> Any:
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(num_cpus=0, max_restarts=-1)(Board).options(scheduling_strategy=here).remote()


def _run_remotely(
    content: bytes, url: str, attempt: str, modules: Mapping[str, str], stall_s: float, board: Any
) -> tuple[Record | None, Failure | None]:
    """What runs on a node. Failures come back as values, so that Ray's own errors mean that Ray lost the task."""
    install_modules(modules)
    node_id = ray.get_runtime_context().get_node_id()
    return supervise(pickle.loads(content), url, attempt, stall_s, lambda report: board.tell.remote(node_id, report))


def _kill_on_node(running: Reported) -> None:
    """Kills a supervisor that reports nothing: its process is stopped, or its machine stands still. Ray then tells the loss."""
    assert running.report is not None
    running.unheard_s = 0.0
    node = NodeAffinitySchedulingStrategy(running.node_id, soft=False)
    killer = ray.remote(num_cpus=0, max_retries=0)(kill_supervisor)
    killer.options(scheduling_strategy=node, name="kill").remote(running.report)


# ------------------------------------------------------------------------------------------------ every node has its kernels


def _compile_on_nodes(names: list[str]) -> list[Any]:
    """Starts one process on each node that compiles what the node lacks. Nobody waits for it: tasks do by the cache's locks."""
    compiler = ray.remote(num_cpus=0, max_retries=0)(_compile_here)
    nodes = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes() if node["Alive"]]
    return [compiler.options(scheduling_strategy=node, name="compile").remote(names) for node in nodes]


def _compile_here(names: list[str]) -> None:
    """Runs on a node."""
    from datapipe.engine.local import usable_cores
    from datapipe.kernels.compiling import compile_kernels

    compile_kernels(names, usable_cores(), lambda name, number, count: None)


# ------------------------------------------------------------------------------------------------ every node sees OUTPUT


def first_inputs(request: Request) -> list[str]:
    """The first input file of each source, by URL."""
    return [source.groups[0][0].file.url for source in request.sources.values() if source.groups]


def _probe_nodes(root: Root, inputs: list[str]) -> None:
    """Raises UserError naming the nodes that do not see what the driver writes to OUTPUT, or an input."""
    name = probe_file(uuid.uuid4().hex)
    root.write_atomic(name, b"datapipe")
    probe = ray.remote(num_cpus=0, max_retries=0)(_unseen)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    answers = {
        node["NodeManagerAddress"]: probe.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(root.url, name, inputs)
        for node in nodes
    }
    try:
        unseen = {address: ray.get(answer, timeout=_PROBE_TIMEOUT_S) for address, answer in answers.items()}
    except RayError as error:
        raise UserError(
            f"a node of the Ray cluster cannot run datapipe: {error}. Install the same version of datapipe on every node."
        ) from error
    finally:
        root.delete(name)
    for address, missing in unseen.items():
        if missing:
            raise UserError(
                f"the node {address} does not see {', '.join(missing)}. Put output and inputs where every node sees them: "
                f"a shared file system, or URLs such as s3://bucket/folder."
            )


def _unseen(output: str, name: str, inputs: list[str]) -> list[str]:
    """Runs on a node: the output and the inputs that it cannot see."""
    missing = [] if Root(output).exists(name) else [output]
    for url in inputs:
        try:
            open_input(url).close()
        except OSError:
            missing.append(url)
    return missing


# ------------------------------------------------------------------------------------------------ the user's own stages


def user_modules(task: Task) -> dict[str, str]:
    """The sources of modules that a task's stages are defined in and that no node can be expected to have.

    Returns:
        base64 of each file, by path relative to an import root. Of a package all files travel.
    """
    if isinstance(task, MapTask):
        stages = [bound.stage for bound in (*task.stages, *([task.emit] if task.emit else []))]
    else:
        stages = [task.stage.stage] if isinstance(task, ReduceTask | MergeTask | GatherTask) else []
    sources: dict[str, str] = {}
    for module_name in {type(stage).__module__ for stage in stages}:
        top = module_name.partition(".")[0]
        if top not in _PACKAGES:
            sources.update(_sources(top))
    return sources


def _sources(top: str) -> dict[str, str]:
    file = Path(sys.modules[top].__file__ or "")
    if file.name != "__init__.py":
        return {file.name: base64.b64encode(file.read_bytes()).decode()}
    base = file.parent.parent
    return {str(path.relative_to(base)): base64.b64encode(path.read_bytes()).decode() for path in _python_files(file.parent)}


def _python_files(folder: Path) -> Iterable[Path]:
    return sorted(folder.rglob("*.py"))


def install_modules(modules: Mapping[str, str]) -> None:
    """Makes shipped modules importable in this process, from a folder named by their content that this user alone can write."""
    if not modules:
        return
    import hashlib

    from datapipe.machine_cache import cache_home

    digest = hashlib.sha256(repr(sorted(modules.items())).encode()).hexdigest()[:32]
    folder = cache_home() / "modules" / digest
    if str(folder) in sys.path:
        return
    cache_home().mkdir(parents=True, exist_ok=True)
    make_private(folder.parent)
    make_private(folder)
    for name, content in modules.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
        temporary.write_bytes(base64.b64decode(content))
        os.replace(temporary, target)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def make_private(folder: Path) -> None:
    """Makes a folder that this user alone can use. Raises UserError for an existing one that others can write to."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_own or status.st_mode & 0o077:
        raise UserError(
            f"{folder}: found {stat.filemode(status.st_mode)} of user {status.st_uid}, expected a folder that user "
            f"{os.getuid()} alone can use, because code is imported from it. Delete it or set XDG_CACHE_HOME to another folder."
        )
