"""The Ray engine: the same tasks, on a cluster. `cluster/ray_nodes.py` is the only other file that knows Ray.

    driver ─▶ Ray task on any node: a supervisor ─▶ its worker process ─▶ record ─▶ driver commits
       ◀── ReportActor ◀── reports ───┘

A Ray task keeps a worker process like those of the local engine and reports it (`workers/supervisor.py`), so both engines see
crashes, stalls and activity alike. A supervisor that reports nothing for `stall_s` is killed. A withdrawn attempt learns it
from the actor, and ends: `ray.cancel` races with the answer of a task that ends just then, and Ray
kills the driver where it loses (ray-project/ray#54738).

Ray gives placement, resources and detection of lost nodes. Retries, commits and order stay with the driver. Each node is
asked whether it can run tasks when the run starts and when it joins; one that lacks something is reported and left alone
(`cluster/nodes.py`). Before a node answers it copies the files that options of stages name, such as models, from OUTPUT.
Tasks of a node that is taken away run again elsewhere, and count as no failure. The user's own stage modules travel with the
tasks, as source. A node compiles the kernels of the run that its cache lacks, on all its cores, before it gets tasks.
"""

import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from datapipe.config.execution import NODE_ID
from datapipe.engine.cluster.demand import Demand
from datapipe.engine.cluster.on_node import Order, user_modules
from datapipe.engine.cluster.ray_nodes import RayNodes, on_node
from datapipe.engine.cluster.settings import check_address, check_sockets, check_token
from datapipe.engine.history import add_node_hours
from datapipe.engine.protocol import Attempt, Engine, Failure, Message, failure_of
from datapipe.engine.workers.process import LONGEST_STEP_S
from datapipe.engine.workers.supervisor import RemoteAttempt, Report, ReportActor, kill_supervisor
from datapipe.errors import UserError
from datapipe.records.option_files import OptionFile
from datapipe.steps.kind import Task
from datapipe.steps.request import Request
from datapipe.storage.root import Root

_PLACEMENT_EVERY_S = 2.0
_NODES_EVERY_S = 2.0
_REPORTS_EVERY_S = 0.25
_ENDS_WITHIN_S = 10.0  # a supervisor learns that its attempt is withdrawn with its next report, every 2 s


class RayEngine(Engine):
    """Tasks on the cluster at `address` ("auto", "host:port"); None for the one that this process is connected to, or a new
    one of `num_workers` CPUs on this machine. Every node must see OUTPUT and the first input file of each source."""

    def __init__(self, root: Root, request: Request, address: str | None = None, num_workers: int | None = None) -> None:
        self.root = root
        self._started_here = _connect(address, num_workers)
        execution = request.mixture.execution
        self._stall_s, self._limits = execution.stall_s, execution
        self._wait_s = 0.0 if self._started_here and address is None else self._stall_s  # other clusters may grow
        self._running: dict[Any, RemoteAttempt] = {}
        self._withdrawn: dict[Any, tuple[RemoteAttempt, float]] = {}  # and until when it must have ended
        self._ready: deque[Any] = deque()
        self._remote: Any = ray.remote(max_retries=0, max_calls=0)(_attempt_that_travels())
        self._modules: dict[str, bytes] = {}
        self._asked: Any = None
        self._ask_at = 0.0
        self._updated_at = self._placed_at = time.monotonic()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        self._reports: Any = ray.remote(num_cpus=0, max_restarts=-1)(ReportActor).options(scheduling_strategy=here).remote()
        is_this_machine = self._started_here and address is None  # and has all files
        self._nodes = RayNodes(root, request, self._wait_s, [] if is_this_machine else _files_of(request))
        self._demand = Demand(partial(_request, execution.placement))
        try:
            self._nodes.admit_first()
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """Cores of the nodes that get tasks; 0 while none of them can run any. A cluster without nodes gets tasks, to grow."""
        fit = self._nodes.known.fit
        return max(1, int(sum(node.resources["CPU"] for node in fit))) if fit or not self._nodes.known.num_alive else 0

    def submit(self, task: Task, attempt: str) -> None:
        self._modules.update(user_modules(task))
        reserved = _reserved(task, self._limits.memory)
        options: dict[str, Any] = {"num_cpus": reserved["CPU"], "scheduling_strategy": "SPREAD", "name": task.step}
        if "GPU" in reserved:
            options["num_gpus"] = reserved["GPU"]
        if "memory" in reserved:
            options["memory"] = int(reserved["memory"])
        excluded = self._excluded(task)
        if selector := label_selector(self._limits.placement, excluded):
            options["label_selector"] = selector
        order = Order(
            expectation=self._nodes.expectation,
            task=pickle.dumps(task),
            label=task.label,
            attempt=attempt,
            modules=self._modules,
            limits=self._limits,
        )
        reference = self._remote.options(**options).remote(order.to_bytes(), self._reports)
        self._running[reference] = RemoteAttempt(task=task, attempt=attempt, excluded=frozenset(excluded))

    def next_attempt(self, timeout_s: float) -> Attempt | None:
        if not self._running:
            return None
        self._read_reports()
        if (returned := self._unplaced() or self._from_compiling()) is not None:
            return returned
        if not self._ready:
            self._ready.extend(_ready(list(self._running), timeout_s))
        while self._ready:
            reference = self._ready.popleft()
            if reference in self._running:  # not cancelled since
                return self._ended(self._running.pop(reference), reference)
        return None

    def _excluded(self, task: Task) -> list[str]:
        """The nodes without tasks, and those of other attempts at the task, if others remain."""
        excluded, name = self._nodes.known.excluded, task.fingerprint
        busy = {other.node_id for other in self._running.values() if other.task.fingerprint == name} - {""}
        remain = any(node.node_id not in busy for node in self._nodes.known.fit)
        return sorted({*excluded, *busy}) if busy and remain else excluded

    def cancel(self, attempt: str) -> None:
        for reference in [reference for reference, running in self._running.items() if running.attempt == attempt]:
            self._withdrawn[reference] = self._running.pop(reference), time.monotonic() + _ENDS_WITHIN_S
            self._reports.withdraw.remote(attempt)

    def _kill_withdrawn(self, now: float) -> None:
        """Kills supervisors of withdrawn attempts that have not ended in time. The process of an
        attempt that has ended is at another one by then, so those are removed first."""
        for reference in _ready(list(self._withdrawn), 0) if self._withdrawn else ():
            del self._withdrawn[reference]
        for reference in [reference for reference, (_, until) in self._withdrawn.items() if now >= until]:
            running, _ = self._withdrawn.pop(reference)
            if running.report is not None:
                _kill_on_node(running)

    def _ended(self, running: RemoteAttempt, reference: Any) -> Attempt:
        task, attempt, node = running.task, running.attempt, running.node
        try:
            node_id, lacks, record, failure = ray.get(reference)
        except RayTaskError as error:  # our own function failed outside of run_task
            cause = error.cause if isinstance(error.cause, BaseException) else error
            return Attempt(task=task, attempt=attempt, node=node, failure=failure_of(cause))
        except (RayError, OutOfMemoryError) as error:
            return Attempt(task=task, attempt=attempt, node=node, failure=self._loss(running, error))
        if lacks and (failure is None or self._nodes.is_output_seen()):  # what the driver lacks too is an outage
            self._nodes.known.answer(node_id, lacks)
            failure = Failure(kind="node", message=f"{task.label} came to a node that cannot run it: {'; '.join(lacks)}")
        elif failure is not None and failure.kind == "node":
            self._nodes.known.mark_leaving(node_id)
        node = self._nodes.known.name(node_id)
        return Attempt(task=task, attempt=attempt, node=node, record=record, failure=failure)

    def _loss(self, running: RemoteAttempt, error: Exception) -> Failure:
        """The failure in Ray's error of a lost task, or of a node whose death was announced."""
        is_taken = self._nodes.is_taken_away(running.node_id, error)
        return Failure(
            kind="node" if is_taken else "infrastructure",
            message=f"Ray lost {running}. {type(error).__name__}: {error}",
            cause="OOM" if isinstance(error, OutOfMemoryError) else "",
            activity=None if running.message is None else running.message.activity,
        )

    def demand(self, waiting: Iterable[Task]) -> None:
        """A cluster that was started for this run never grows."""
        if self._wait_s:
            tasks = chain((running.task for running in self._running.values()), waiting)
            self._demand.update(_reserved(task, self._limits.memory) for task in tasks)

    def take_lines(self) -> list[str]:
        return self._nodes.known.take_lines()

    def waits_for(self) -> str:
        return self._nodes.known.waits_for

    def messages(self) -> list[Message]:
        """As declared. Raises DatapipeError where no node has been able to run tasks for long."""
        self._nodes.update(_NODES_EVERY_S)
        return [running.message for running in self._running.values() if running.message is not None]

    def _read_reports(self) -> None:
        """Takes the reports of supervisors without waiting, and kills silent ones."""
        if self._asked is None:
            if time.monotonic() >= self._ask_at:
                self._ask_at = time.monotonic() + _REPORTS_EVERY_S
                self._asked = self._reports.latest.remote([running.attempt for running in self._running.values()])
            return
        if not ray.wait([self._asked], timeout=0)[0]:
            return
        now = time.monotonic()
        self._kill_withdrawn(now)
        step_s, self._updated_at = min(now - self._updated_at, LONGEST_STEP_S), now
        try:
            reports: dict[str, tuple[str, Report]] = ray.get(self._asked)
        except RayError:  # it starts again, empty
            reports = {}
        self._asked = None
        for running in self._running.values():
            node_id, report = reports.get(running.attempt, ("", None))
            if node_id and node_id != running.node_id:
                running.node = self._nodes.known.name(node_id)
            if running.update(node_id, report, step_s) >= self._stall_s:
                _kill_on_node(running)

    def _unplaced(self) -> Attempt | None:
        """The end of the first task that no node can run and that has waited too long."""
        now = time.monotonic()
        waiting = [(reference, running) for reference, running in self._running.items() if running.report is None]
        if not waiting or now - self._placed_at < _PLACEMENT_EVERY_S:
            return None
        step_s, self._placed_at = min(now - self._placed_at, LONGEST_STEP_S), now
        fit = self._nodes.known.fit
        for reference, running in waiting:
            if fit and running.excluded.issuperset(node.node_id for node in fit):
                del self._running[reference]
                self._reports.withdraw.remote(running.attempt)
                failure = Failure(kind="node", message=f"{running.task.label} waited for other nodes")
                return Attempt(task=running.task, attempt=running.attempt, failure=failure)
            missing = self._nodes.known.waits_for or lack_of(
                _reserved(running.task, self._limits.memory), [node.resources for node in fit]
            )
            running.update_resource(missing, step_s)
            if fit and running.missing_resource and running.missing_s >= self._wait_s:
                message = (
                    f"{running.task.label} waits for {running.missing_resource}. Lower execution.resources, or add such a "
                    f"node; where the cluster adds it by itself and needs longer, raise execution.stall_s, now "
                    f"{self._stall_s:g}"
                )
                return Attempt(task=running.task, attempt=running.attempt, failure=Failure(kind="user", message=message))
        return None

    def _from_compiling(self) -> Attempt | None:
        """The end of the first attempt that reached a node while it compiles kernels, which its task would wait for."""
        compiling = self._nodes.known.compiling if self._nodes.is_compiling else ()
        for reference, running in self._running.items() if compiling else ():
            if running.node_id in compiling and reference not in self._ready and not _ready([reference], 0):
                self.cancel(running.attempt)
                failure = Failure(kind="node", message=f"{running.task.label} came to {running.node}, which compiles kernels")
                return Attempt(task=running.task, attempt=running.attempt, node=running.node, failure=failure)
        return None

    def close(self) -> None:
        waiting = () if self._nodes.known.compiling else self._running.items()  # else they begin on nodes that compile
        for reference in [each for each, running in waiting if running.missing_resource and running.report is None]:
            ray.cancel(reference)  # it cannot have begun: no node has what it reserves. A cluster that grows adds none for it.
        self._kill_withdrawn(float("inf"))
        self._running.clear()
        self._demand.withdraw()
        self._nodes.close()
        ray.kill(self._reports)  # all others end: without the actor, they are not wanted
        if self._started_here:
            ray.shutdown()
        if self._nodes.node_seconds:
            add_node_hours(self._nodes.root, self._nodes.node_seconds / 3600)


def _files_of(request: Request) -> list[OptionFile]:
    """The files that options of stages name, each content and name once."""
    files = (file for source in request.sources.values() for bound in source.stages for file in bound.files)
    return list({file.path_in_output: file for file in files}.values())


@contextmanager
def _keeping_sigterm() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def connected(address: str) -> Iterator[None]:
    """The connection of a run to a cluster, made before inputs are listed: a wrong address or token is reported at once."""
    is_ours = _connect(address, None)
    try:
        yield
    finally:
        if is_ours:
            ray.shutdown()


@_keeping_sigterm()
def _connect(address: str | None, num_workers: int | None) -> bool:
    """Whether this call made the connection; False where the process has one."""
    if ray.is_initialized():
        return False
    common: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "logging_level": "warning"}
    try:
        if address:
            check_token()
            check_address(address)
            common.pop("include_dashboard")
            ray.init(address=address, **common)
        else:
            check_sockets()
            ray.init(address="local", num_cpus=num_workers or os.cpu_count() or 1, **common)
        return True
    except UserError:
        raise
    except Exception as error:  # Ray raises bare ones, as for a node that does not start in time
        said = str(error).rstrip(". ") or type(error).__name__
        raise UserError(
            f"cannot reach a Ray cluster at {address}: {said}. Start one with `ray start --head`, give its --address, or leave "
            f"--address out to start one for this run. If it has a token, this shell needs it too: RAY_AUTH_MODE=token and "
            f"RAY_AUTH_TOKEN."
            if address
            else f"Ray did not start on this machine: {said}. Its logs are in session_latest/logs of RAY_TMPDIR, or of "
            f"/tmp/ray. Run the same command again when the machine has time and memory to spare, or leave out --engine ray."
        ) from error


def _ready(references: list[Any], timeout_s: float) -> list[Any]:
    """Waits for the first of some references, and returns all that are ready: a call costs more the more it gets."""
    if not ray.wait(references, num_returns=1, timeout=timeout_s)[0]:
        return []
    return ray.wait(references, num_returns=len(references), timeout=0)[0]


def label_selector(placement: Mapping[str, str], excluded: Sequence[str]) -> dict[str, str]:
    """The nodes of a task, as Ray selects them: with all labels of `execution.placement`, and none of those excluded."""
    others = {NODE_ID: f"!in({','.join(excluded)})"} if excluded else {}
    return {**placement, **others}


def _request(placement: Mapping[str, str], wanted: list[dict[str, float]]) -> None:
    """Asks the autoscaler for room, on nodes with the labels of `execution.placement`."""
    labels: dict[str, Any] = {"bundle_label_selectors": [dict(placement)] * len(wanted)} if placement else {}
    request_resources(bundles=wanted, **labels)


def _reserved(task: Task, memory_bytes: int | None) -> dict[str, float]:
    """The reservation of a task, by Ray's names. A stage may reserve other memory."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    memory = {} if memory_bytes is None else {"memory": float(memory_bytes)}
    return {"CPU": 1.0, **memory, **{names[name]: amount for name, amount in task.resources}}


def _attempt_that_travels() -> Callable[..., Any]:
    """What runs on a node: its id, what it lacks, and the end of the attempt. Ray sends the nested
    function whole, so that a node which cannot import datapipe can answer."""

    def attempt(order: bytes, reports: Any) -> tuple[str, list[str], Any, Any]:
        import pickle
        import zlib

        import ray
        from ray.exceptions import ActorDiedError, RayError

        node_id = ray.get_runtime_context().get_node_id()
        last: list[Any] = []

        def send(report: Any) -> bool:
            """Returns the answer to the report before. Without the actor nothing is wanted."""
            answered = ray.wait(last, timeout=0)[0] if last else []
            last[:] = [reports.update.remote(node_id, report)]
            try:
                return all(ray.get(answered))
            except RayError as error:
                return not isinstance(error, ActorDiedError)

        try:
            from datapipe.engine.cluster.on_node import run_attempt

            opened_order = pickle.loads(zlib.decompress(order))
        except Exception as error:
            return node_id, [f"it cannot run the datapipe of the driver: {type(error).__name__}: {error}"], None, None
        return node_id, *run_attempt(opened_order, send)

    return attempt


def _kill_on_node(running: RemoteAttempt) -> None:
    """Kills a silent supervisor: it is stopped, or its machine hangs. Ray reports the loss."""
    assert running.report is not None
    running.report_age_s = 0.0
    on_node(ray.remote(num_cpus=0, max_retries=0)(kill_supervisor), running.node_id, "kill").remote(running.report)


def lack_of(reserved: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> str:
    """The reserved resources, {"CPU": 1.0, "memory": 2e9}, that none of the idle nodes has, in
    words; empty where a node has all of them."""
    if not nodes:
        return "a node: none of the cluster is alive"
    if any(all(node.get(name, 0.0) >= amount for name, amount in reserved.items()) for node in nodes):
        return ""
    wanted = ", ".join(_amount(name, amount) for name, amount in reserved.items() if amount)
    listed = sorted({", ".join(_amount(name, node.get(name, 0.0)) for name in reserved) for node in nodes})
    return f"a node with {wanted}: the cluster has nodes with {' and '.join(listed)}"


def _amount(name: str, amount: float) -> str:
    return f"{amount / 1e9:.1f} GB of memory" if name == "memory" else f"{amount:g} {name}"
