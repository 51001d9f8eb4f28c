"""The nodes of a cluster as the driver knows them: which of them run tasks, and why the others do not.

    joins ─▶ asked ─▶ compiles kernels ─▶ fit ──────▶ leaving (it got SIGTERM) ▶ gone
               └──────────┴─────▶ left alone, asked again every `ASK_AGAIN_S` ─▶ …

A node is known by its id, since several nodes may have one address. It is asked when it joins, before it gets tasks. One whose
cache lacks kernels of the run compiles them first: a task there would wait for them, and look slow. A task that waited for any
node, and reaches a new one earlier, checks it in its own process (`on_node.py`) and comes back; the engine takes it back from a
node that compiles. What a node lacks is reported once, and again when it changes. Knows no scheduler.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from datapipe.dataclass import dataclass, field
from datapipe.quantities import counted, duration

ASK_AGAIN_S = 60.0  # Pause after which a node that lacked something is asked again
LEAVING_S = 60.0  # A node gets no tasks for so long after SIGTERM; a drained node is gone by then
SLOW_S = 15.0
"""Seconds after which a node without an answer, and without files to copy, is reported; it gets tasks once it has answered."""

_MOST_NAMED = 5


@dataclass(slots=True)
class Node:
    node_id: str
    address: str
    resources: Mapping[str, float]  # of the idle node, by Ray's names
    labels: Mapping[str, str] = field(default_factory=dict)
    lacks: Sequence[str] | None = None  # in words; None before it has answered
    reported: Sequence[str] = ()  # what it lacked when that was reported last; empty once it gets tasks
    num_compiling: int = 0  # kernels that it compiles before it gets tasks
    asked_at: float | None = None  # when it was asked last, or its answer came; None while it is to be asked
    leaves_until: float = 0.0
    is_slow: bool = False  # whether its missing answer was reported

    def takes_tasks(self, placement: Mapping[str, str]) -> bool:
        """Whether it has cores and all labels of `execution.placement`."""
        return bool(self.resources.get("CPU")) and placement.items() <= self.labels.items()

    @property
    def name(self) -> str:
        return f"{self.node_id[:12]} ({self.address})"

    def __str__(self) -> str:
        return f"the node {self.name}"


@dataclass(slots=True)
class Nodes:
    clock: Callable[[], float] = time.monotonic
    slow_s: float = SLOW_S
    _nodes: dict[str, Node] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)
    # since the last lines: nodes that began to compile, and that ended, with the seconds that it took
    _began: list[Node] = field(default_factory=list)
    _compiled: list[tuple[Node, float]] = field(default_factory=list)

    def see(self, alive: Iterable[Node], leaving: Iterable[str] = ()) -> list[str]:
        """Takes the live nodes, and those that leave. Returns the ids of those to ask."""
        now, before = self.clock(), self._nodes
        self._nodes = {node.node_id: before.get(node.node_id, node) for node in alive}
        gone = sorted(before.keys() - self._nodes.keys())
        self._lines += [f"{before[node_id]} is gone: what ran there runs again elsewhere" for node_id in gone]
        for node in self._nodes.values():
            if node.lacks is None and not node.is_slow and node.asked_at is not None and now - node.asked_at >= self.slow_s:
                node.is_slow = True
                self._lines.append(f"{node} gets no tasks: it has not answered for {now - node.asked_at:.0f} s")
        for node_id in leaving:
            self.mark_leaving(node_id, float("inf"))
        due = [
            node
            for node in self._nodes.values()
            if node.asked_at is None or (node.lacks and now - node.asked_at >= ASK_AGAIN_S)
        ]
        for node in due:
            node.asked_at = now
        return [node.node_id for node in due]

    def answer(self, node_id: str, lacks: Sequence[str], num_missing: int = 0) -> None:
        """Takes what a node lacks. One that lacks nothing compiles the `num_missing` kernels that its cache does not hold."""
        node = self._nodes.get(node_id)
        if node is None:
            return
        node.num_compiling = 0 if lacks else num_missing
        if node.num_compiling and not node.reported:
            self._began.append(node)
        if lacks and list(lacks) != node.reported:
            self._lines.append(f"{node} gets no tasks: {'; '.join(lacks)}")
            node.reported = list(lacks)
        elif not lacks and not num_missing:
            if node.reported or node.is_slow:
                self._lines.append(f"{node} gets tasks now")
            node.reported = []
        node.lacks, node.asked_at, node.is_slow = list(lacks), self.clock(), False

    def compiled(self, node_id: str, lacks: Sequence[str]) -> None:
        """Takes the end of a compilation, after which the node gets tasks or, with the error as what it lacks, none."""
        node = self._nodes.get(node_id)
        if node is None or not node.num_compiling:
            return
        if not lacks:
            self._compiled.append((node, self.clock() - (node.asked_at or 0.0)))
            node.reported = []
        self.answer(node_id, lacks)

    def name(self, node_id: str) -> str:
        """A node, for display; without an address where it is not alive."""
        node = self._nodes.get(node_id)
        return node_id[:12] if node is None else node.name

    def mark_leaving(self, node_id: str, for_s: float = LEAVING_S) -> None:
        """Notes that a node, or one of its processes, got SIGTERM."""
        node = self._nodes.get(node_id)
        if node is None:
            return
        if node.leaves_until <= self.clock():
            self._lines.append(f"{node} got SIGTERM: its tasks end, or run again elsewhere")
        node.leaves_until = max(node.leaves_until, self.clock() + for_s)

    def is_leaving(self, node_id: str) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and node.leaves_until > self.clock()

    @property
    def fit(self) -> list[Node]:
        """The nodes that get tasks. Where all are leaving, those that may stay: people end processes by mistake."""
        now, able = self.clock(), [node for node in self._nodes.values() if node.lacks == [] and not node.num_compiling]
        staying = [node for node in able if node.leaves_until <= now]
        return staying or [node for node in able if node.leaves_until < float("inf")]

    @property
    def excluded(self) -> list[str]:
        """The ids of the other nodes, sorted."""
        return sorted(self._nodes.keys() - {node.node_id for node in self.fit})

    @property
    def compiling(self) -> set[str]:
        """The ids of the nodes that compile kernels."""
        return {node.node_id for node in self._nodes.values() if node.num_compiling}

    @property
    def waits_for(self) -> str:
        """What all tasks wait for, in words; empty where a node gets tasks, or none compiles."""
        num_compiling = len(self.compiling)
        if not num_compiling or self.fit:
            return ""
        return f"kernels that {counted(num_compiling, 'node')} {'compiles' if num_compiling == 1 else 'compile'}"

    @property
    def num_alive(self) -> int:
        return len(self._nodes)

    def why_none(self) -> str:
        """Why the nodes get no tasks, in words; empty where none is alive."""
        texts = []
        for node in self._nodes.values():
            compiles = f"it still compiles {counted(node.num_compiling, 'kernel')}" if node.num_compiling else ""
            why = "it has not answered" if node.lacks is None else compiles or "; ".join(node.lacks)
            texts.append(f"{str(node).capitalize()}: {'it got SIGTERM' if self.is_leaving(node.node_id) else why}")
        more = [f"So do {len(texts) - _MOST_NAMED} more"] if len(texts) > _MOST_NAMED else []
        return ". ".join([*texts[:_MOST_NAMED], *more])

    def take_lines(self) -> list[str]:
        """The lines for the user since the last call; one for all nodes that began to compile, and one for all that ended."""
        lines = self._lines
        if began := [node for node in self._began if node.num_compiling]:
            most = counted(max(node.num_compiling for node in began), "kernel")
            lines.append(f"compiling {most} on {counted(len(began), 'node')}, before tasks run there: {_named(began)}")
        if ended := [node for node, _ in self._compiled]:
            took = duration(max(seconds for _, seconds in self._compiled))
            lines.append(f"compiled kernels on {counted(len(ended), 'node')} in {took}, tasks run there now: {_named(ended)}")
        self._lines, self._began, self._compiled = [], [], []
        return lines


def _named(nodes: Sequence[Node]) -> str:
    """The first nodes, and how many more there are."""
    more = [f"and {len(nodes) - _MOST_NAMED} more"] if len(nodes) > _MOST_NAMED else []
    return ", ".join([*(node.name for node in nodes[:_MOST_NAMED]), *more])
