"""The nodes of a Ray cluster: listed every few seconds, asked whether they can run tasks, and let compile their kernels.

ray.nodes ─▶ `Nodes.see` ─▶ a question on each new node, by its id ─▶ `lacks_here`, `num_missing` ─▶ `Nodes.answer`
                                                  lacks kernels alone ─▶ `compile_here` on the node ─▶ `Nodes.compiled`
                                    a fit node with the same processor ─▶ its kernels ──▲
"""

import pickle
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from datapipe.credentials import masked
from datapipe.engine.cluster.kernels_here import SharedKernels, compile_here, shared_from_here
from datapipe.engine.cluster.nodes import ASK_AGAIN_S, SLOW_S, Node, Nodes
from datapipe.engine.cluster.on_node import INSTALLED, Expectation, versions_here
from datapipe.engine.kernels_used import kernels_of_run
from datapipe.errors import DatapipeError, UserError
from datapipe.records.option_files import OptionFile, put_into_output
from datapipe.steps.request import Request
from datapipe.storage.lock import PROBE
from datapipe.storage.outages import error_line
from datapipe.storage.root import Root

_PROBE_TIMEOUT_S = 60.0
_LEAST_BYTES_PER_S = 10e6  # of the files that a node copies before it answers; a slower one answers late
_WAIT_S = 1.0
LONGEST_COMPILATION_S = 1800.0
"""The most that a run waits for kernels alone: those of the quickstart take a minute on two cores, and took six minutes on two
that twelve processes shared (2026-11-30)."""

_SHARED_TIMEOUT_S = 20.0  # after which a node compiles kernels that another one has not sent

_TAKEN_AWAY = frozenset({1, 3, 4})
"""Ray's reasons of an announced death: SIGTERM, preempted, drained while idle."""

_NODE_ID = re.compile(r"node ID: ([0-9a-f]{56})")


class RayNodes:
    """The nodes of the cluster that this process is connected to.

    Attributes:
        known: the nodes that have cores, and the labels of `execution.placement`.
        expectation: what each node must have. A node copies its files before it answers.
        node_seconds: the time that nodes were alive, summed over them.
    """

    def __init__(self, root: Root, request: Request, wait_s: float, files: Sequence[OptionFile] = ()) -> None:
        self.root, self.node_seconds = root, 0.0
        self._copy_s = sum(file.num_bytes for file in files) / _LEAST_BYTES_PER_S
        self.known = Nodes(slow_s=SLOW_S + self._copy_s)
        self.expectation = Expectation(
            versions=versions_here(),
            output=root.url,
            probe=PROBE + uuid.uuid4().hex,
            inputs=_first_inputs(request),
            files=tuple(files),
        )
        self._kernels = [name for name in kernels_of_run(request.mixture) if name.partition(".")[0] in INSTALLED]
        execution = request.mixture.execution
        self._wait_s, self._placement = wait_s, execution.placement
        self._compile_s = max(LONGEST_COMPILATION_S, execution.stall_s)
        self._check_there: Any = ray.remote(num_cpus=0, max_retries=0)(question_that_travels())
        self._compile_there: Any = ray.remote(num_cpus=0, max_retries=0)(compile_there)
        self._share_there: Any = ray.remote(num_cpus=0, max_retries=0)(shared_from_here)
        self._asked: dict[Any, str] = {}  # the node of each call that checks one, and that compiles
        self._compiling: dict[Any, str] = {}
        self._version_keys: dict[str, str] = {}  # by node, of its compiled kernels
        self._shared: dict[str, tuple[str, Any]] = {}  # by version key: the node that sends its kernels, and the reference
        self._counted_at = self._fit_at = time.monotonic()

    def admit_first(self) -> None:
        """Asks all nodes, and waits for their answers, but for no kernels. Raises UserError where none can run tasks, or a
        file has changed."""
        self.root.write_atomic(self.expectation.probe, b"datapipe")
        put_into_output(self.expectation.files, self.root)
        timeout_s = _PROBE_TIMEOUT_S + self._copy_s
        deadline = time.monotonic() + timeout_s
        self.update(0.0)
        while self._asked and time.monotonic() < deadline:
            ray.wait(list(self._asked), num_returns=1, timeout=_WAIT_S)
            self.update(0.0)
            if self._has_able and time.monotonic() > deadline - timeout_s + self.known.slow_s:
                return
        if self.known.num_alive and not self._has_able:  # a cluster without nodes adds some when tasks wait
            raise UserError(
                f"no node of the Ray cluster can run tasks. {self.known.why_none()}. Install the same versions on every node, "
                f"and put output and inputs where every node sees them: a shared file system, or URLs such as "
                f"s3://bucket/folder, with their credentials on every node."
            )

    @property
    def is_compiling(self) -> bool:
        """Whether a node compiles kernels, at the cost of one look."""
        return bool(self._compiling)

    @property
    def _has_able(self) -> bool:
        """Whether a node gets tasks, now or once its kernels are compiled."""
        return bool(self.known.fit or self.known.compiling)

    def update(self, every_s: float) -> None:
        """Takes the nodes that are alive, asks new ones, and takes their answers.

        Raises DatapipeError where no node has been able to run tasks for long.
        """
        now = time.monotonic()
        if now - self._counted_at < every_s:
            return
        alive = _alive()
        self.node_seconds += (now - self._counted_at) * len(alive)
        self._counted_at = now
        for node_id in self.known.see([node for node in alive if node.takes_tasks(self._placement)], _draining()):
            check = on_node(self._check_there, node_id, "check the node")
            self._asked[check.remote(pickle.dumps(self.expectation), node_id, self._kernels)] = node_id
        self._take_answers()
        self._take_compiled()
        self._check_fit(now)

    def _take_answers(self) -> None:
        for reference, node_id in _ended(self._asked):
            try:
                lacks, num_missing, self._version_keys[node_id] = ray.get(reference)
            except RayError as error:
                lacks, num_missing = [f"it cannot run datapipe: {error_line(error)}"], 0
            lacks = lacks or self._unseen_answer(node_id)
            self.known.answer(node_id, lacks, num_missing)
        for node_id in self.known.compiling.difference(self._compiling.values()):
            compilation = on_node(self._compile_there, node_id, "compile").remote(
                self._kernels, self._kernels_of_others(node_id)
            )
            self._compiling[compilation] = node_id

    def _kernels_of_others(self, node_id: str) -> list[Any]:
        """A reference to the kernels of a fit node that has the processor and libraries of this one; none where no node has."""
        version_key = self._version_keys[node_id]
        alike = sorted(node.node_id for node in self.known.fit if self._version_keys.get(node.node_id) == version_key)
        if alike and self._shared.get(version_key, ("",))[0] not in alike:  # the first time, or the node is gone
            self._shared[version_key] = alike[0], on_node(self._share_there, alike[0], "send kernels").remote(self._kernels)
        return [self._shared[version_key][1]] if alike else []

    def _take_compiled(self) -> None:
        for reference, node_id in _ended(self._compiling):
            try:
                lacks = ray.get(reference)
            except RayError as error:
                lacks = [f"its kernels do not compile: {error_line(error)}"]
            self.known.compiled(node_id, lacks)

    def _unseen_answer(self, node_id: str) -> list[str]:
        answer = self.expectation.answer(node_id)
        if not self.root.exists(answer):
            return [masked(f"the driver does not see what it writes to {self.root.url}")]
        self.root.delete(answer)
        return []

    def _check_fit(self, now: float) -> None:
        ask_s = 2 * ASK_AGAIN_S if self.known.num_alive else 0.0
        compile_s = self._compile_s if self.known.compiling else 0.0
        if self.known.fit:
            self._fit_at = now
        elif now - self._fit_at >= self._copy_s + max(self._wait_s, ask_s, compile_s):
            labels = ", ".join(f"{label}: {value}" for label, value in self._placement.items())
            wanted = f" and the labels of execution.placement ({labels})" if labels else ""
            why = self.known.why_none() or f"No node with cores{wanted} is alive"
            raise DatapipeError(
                f"no node of the Ray cluster has been able to run tasks for {now - self._fit_at:.0f} s. {why}. Repair or start "
                f"one, and run the same command again; where the cluster adds nodes by itself and needs longer, raise "
                f"execution.stall_s"
            )

    def is_output_seen(self) -> bool:
        try:
            return self.root.exists(self.expectation.probe)
        except OSError:
            return False

    def is_taken_away(self, node_id: str, error: Exception) -> bool:
        """Whether the node that lost a task, which the error may name, got SIGTERM."""
        named = _NODE_ID.search(str(error))
        node_id = node_id or (named[1] if named else "")
        return self.known.is_leaving(node_id) or _reason_of_death(node_id) in _TAKEN_AWAY

    def close(self) -> None:
        """Deletes the probe. Questions and compilers that still run on nodes end by themselves."""
        with suppress(RayError, ConnectionError, DatapipeError):  # a cluster that is gone
            self.update(0.0)
        self._asked.clear()
        self._compiling.clear()
        self._shared.clear()
        with suppress(OSError):  # a store that is gone keeps it until the next run
            self.root.delete(self.expectation.probe)


def question_that_travels() -> Callable[..., Any]:
    """What a node lacks, how many kernels, and the key of the machine's compiled code. Ray sends the nested function whole,
    so that a node without datapipe can answer."""

    def check(expectation: bytes, node_id: str, kernels: list[str]) -> tuple[list[str], int, str]:
        try:
            import pickle

            from datapipe.engine.cluster.kernels_here import num_missing
            from datapipe.engine.cluster.on_node import lacks_here
            from datapipe.kernels.keys import version_key

            opened = pickle.loads(expectation)
        except Exception as error:
            return [f"it cannot run the datapipe of the driver: {type(error).__name__}: {error}"], 0, ""
        lacks = lacks_here(opened, node_id)
        return (lacks, 0, "") if lacks else (lacks, num_missing(kernels), version_key())

    return check


def compile_there(names: list[str], shared: list[Any]) -> list[str]:
    """`compile_here` with the kernels of a reference, if they come in time. Runs on a node."""
    kernels: SharedKernels | None = None
    with suppress(RayError):  # the other node is gone, or slow
        kernels = ray.get(shared[0], timeout=_SHARED_TIMEOUT_S) if shared else None
    return compile_here(names, kernels)


def _ended(running: dict[Any, str]) -> Iterator[tuple[Any, str]]:
    """Removes what has ended from the remote calls by reference, and yields it, with its node."""
    references = list(running)
    for reference in ray.wait(references, num_returns=len(references), timeout=0)[0] if references else ():
        yield reference, running.pop(reference)


def on_node(function: Any, node_id: str, name: str) -> Any:
    """A remote function that runs on one node and nowhere else."""
    return function.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False), name=name)


def _first_inputs(request: Request) -> tuple[str, ...]:
    """The first file of each source, and of each table of earlier runs that documents are compared with."""
    inputs = [source.groups[0][0].file.url for source in request.sources.values() if source.groups]
    tables = (files for of_stage in request.reference_rows.values() for files in of_stage.values())
    references = [files[0].url for files in tables if files and files[0].is_reference]
    return tuple(dict.fromkeys([*inputs, *references]))


def _alive() -> list[Node]:
    alive = [node for node in ray.nodes() if node["Alive"]]
    return [
        Node(
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            resources=node["Resources"],
            labels=node.get("Labels") or {},
        )
        for node in alive
    ]


def _draining() -> list[str]:
    """The ids of the nodes that are being drained. Ray has no public name for them."""
    try:
        from ray._private.state import state

        return list(state.get_draining_nodes())
    except (ImportError, AttributeError):
        return []


def _reason_of_death(node_id: str) -> int | None:
    """Ray's number of the reason; None for a node that is alive."""
    return next((node.get("DeathReason") for node in ray.nodes() if node["NodeID"] == node_id and not node["Alive"]), None)
