"""Nodes of a Ray cluster that die at once with all their processes, and others that join, during a run."""

from __future__ import annotations

import signal
from typing import Any

from tests.storm import checks
from tests.storm.rounds import Round, SkipError, Storm


class NodeDeath:
    """A cluster of a head without workers and two nodes; nodes die and are replaced while the run goes on."""

    name = "node"
    aim = 20
    is_short = False

    def play(self, round: Round) -> None:
        cluster: RayNodes = round.storm.once("cluster", lambda: RayNodes(round.storm))
        command = round.run("--engine", "ray", "--address", cluster.address)
        wanted = 0
        for _ in range(1 if round.storm.is_small else 3):
            wanted += round.rng.randint(1, 16)
            if not round.reaches(command, wanted):
                break
            joins_first = round.rng.random() < 0.5
            cluster.replace(round.rng.randrange(2), joins_first=joins_first)
            order = "after another joined" if joins_first else "then another joins"
            round.fault(f"a node dies after {checks.num_records(round.output)} commits, {order}")
        ended = command.wait()
        assert ended.status == 0, ended.errors[-3000:]
        round.check_processes()
        round.end_undisturbed()
        round.check_output(is_verified=False)
        round.same()


class RayNodes:
    """A Ray cluster on this machine, in a folder of the storm."""

    def __init__(self, storm: Storm) -> None:
        try:
            from ray.cluster_utils import Cluster
        except ImportError as error:
            raise SkipError(f"no Ray: {error}") from error
        ends = signal.getsignal(signal.SIGTERM)
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        storm.closing.append(self._cluster.shutdown)
        self._nodes: list[Any] = [self._join() for _ in range(2)]
        signal.signal(signal.SIGTERM, ends)  # Ray takes it, and goes on for as long as it likes

    @property
    def address(self) -> str:
        return self._cluster.address

    def replace(self, number: int, *, joins_first: bool) -> None:
        """Kills a node, and starts another one."""
        joined = self._join() if joins_first else None
        self._cluster.remove_node(self._nodes[number], allow_graceful=False)
        self._nodes[number] = joined or self._join()

    def _join(self) -> Any:
        return self._cluster.add_node(num_cpus=1)


FAULTS = (NodeDeath(),)
