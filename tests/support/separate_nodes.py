"""A Ray cluster of which every node has its own network, processes and files, as machines have. Skips where namespaces
are not permitted.

    driver, head without cores ── bridge 10.77.N.1 ══ node: its own address, its own /dev/shm, and an empty folder
                                                            in the place of each that is hidden
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.cli_processes import terminate, wait_until
from tests.support.machines import Machines
from tests.support.service import free_port

_RAY = [sys.executable, "-m", "ray.scripts.scripts"]
_START = [*_RAY, "start", "--block", "--disable-usage-stats", "--object-store-memory=80000000"]

_OPEN = {"RAY_AUTH_MODE": "disabled"}
"""A token in the home of the user would otherwise be asked for, and this process sends none."""


class SeparateNodes:
    """The bridge and its nodes.

    Args:
        number: third part of the addresses; of one bridge on this machine.
        logs: a folder.
        hidden: folders in the place of which each node has an empty one.
    """

    def __init__(self, number: int, logs: Path, hidden: Sequence[Path]) -> None:
        self.machines, self.logs, self.hidden = Machines(number), logs, list(hidden)
        self.host, self.store_host = self.machines.host, f"10.78.{number}.1"
        self.address = ""
        self._stack = ExitStack()
        self._num_nodes = 0

    def open(self) -> None:
        """Makes the bridge, with an address for the cluster and one for a store, and the head."""
        self.machines.open(f"{self.store_host}/32")
        self._stack.callback(self.machines.close)
        port = free_port(self.host)
        self.address = f"{self.host}:{port}"
        head = ["--head", f"--port={port}", f"--node-ip-address={self.host}", "--num-cpus=0", "--include-dashboard=false"]
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="r"))  # names of sockets are short
        self.hidden.append(Path(folder))
        with (self.logs / "ray-0.log").open("wb") as log:
            command = [*_START, *head, f"--temp-dir={folder}"]
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **_OPEN})
        self._stack.callback(terminate, process)
        wait_until(lambda: _answers(self.host, port), "the head")

    def add(self, *, sees_store: bool = True) -> str:
        """Starts a node of one core; its address."""
        self._num_nodes += 1
        address = self.machines.address(self._num_nodes)
        route = f"ip route add {self.store_host} via {self.host}; " if sees_store else ""
        hide = "".join(f"mount -t tmpfs tmpfs {folder}; " for folder in [*self.hidden, "/dev/shm"])
        node = [f"--address={self.address}", f"--node-ip-address={address}", "--num-cpus=1", "--temp-dir=/dev/shm/ray"]
        log = self.logs / f"ray-{self._num_nodes}.log"
        return self.machines.add([*_START, *node], log, prepare=hide + route, env={**os.environ, **_OPEN})

    def wait(self) -> None:
        """Waits until all nodes have joined."""
        from ray._raylet import GcsClient

        client = GcsClient(address=self.address)
        wait_until(lambda: len(client.get_all_node_info()) == self._num_nodes + 1, "the nodes")

    def close(self) -> None:
        self._stack.close()


@contextmanager
def separate_nodes(logs: Path, hidden: Sequence[Path]) -> Iterator[SeparateNodes]:
    """A head; nodes are added to it."""
    nodes = SeparateNodes(os.getpid() % 250, logs, hidden)
    try:
        nodes.open()
        yield nodes
    finally:
        nodes.close()


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True
