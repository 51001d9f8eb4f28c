"""A Ray cluster of which every node has a network, processes and files of its own, as machines have. Skips where namespaces
are not permitted.

    driver, head without cores ── bridge 10.77.N.1 ══ node: its own address, its own /dev/shm, and an empty folder
                                                            in the place of each that is hidden
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.cli_processes import wait_until

_RAY = [sys.executable, "-m", "ray.scripts.scripts"]


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
        self.number, self.logs, self.hidden = number, logs, list(hidden)
        self.bridge, self.host, self.store_host = f"dptest{number}", f"10.77.{number}.1", f"10.78.{number}.1"
        self.address = ""
        self._stack = ExitStack()
        self._num_nodes = 0

    def open(self) -> None:
        """Makes the bridge, with an address for the cluster and one for a store, and the head."""
        if shutil.which("ip") is None or shutil.which("unshare") is None:
            pytest.skip("there is no ip or unshare command")
        made = subprocess.run(["ip", "link", "add", self.bridge, "type", "bridge"], capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"a bridge is not permitted: {made.stderr.strip()}")
        self._stack.callback(_run, "ip", "link", "del", self.bridge)
        for host in (f"{self.host}/24", f"{self.store_host}/32"):
            _run("ip", "addr", "add", host, "dev", self.bridge)
        _run("ip", "link", "set", self.bridge, "up")
        port = _free_port(self.host)
        self.address = f"{self.host}:{port}"
        head = ["--head", f"--port={port}", f"--node-ip-address={self.host}", "--num-cpus=0", "--include-dashboard=false"]
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="r"))  # names of sockets are short
        self.hidden.append(Path(folder))
        self._start([], [*head, f"--temp-dir={folder}"])
        wait_until(lambda: _answers(self.host, port), "the head")

    def add(self, *, sees_store: bool = True) -> str:
        """Starts a node of one core; its address."""
        self._num_nodes += 1
        name, address = f"dp{self.number}n{self._num_nodes}", f"10.77.{self.number}.{1 + self._num_nodes}"
        route = f"ip route add {self.store_host} via {self.host}; " if sees_store else ""
        hide = "".join(f"mount -t tmpfs tmpfs {folder}; " for folder in [*self.hidden, "/dev/shm"])
        setup = (
            f"set -e; read go; {hide}ip link set lo up; ip link set {name} up; ip addr add {address}/24 dev {name}; {route}"
            f'exec "$@"'
        )
        namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", setup, "sh"]
        node = [f"--address={self.address}", f"--node-ip-address={address}", "--num-cpus=1", "--temp-dir=/dev/shm/ray"]
        process = self._start(namespaces, node)
        wait_until(lambda: os.readlink(f"/proc/{process.pid}/ns/net") != os.readlink("/proc/self/ns/net"), "the network")
        _run("ip", "link", "add", f"{name}h", "type", "veth", "peer", "name", name)
        _run("ip", "link", "set", f"{name}h", "master", self.bridge, "up")
        _run("ip", "link", "set", name, "netns", str(process.pid))
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
        return address

    def wait(self) -> None:
        """Waits until all nodes have joined."""
        from ray._raylet import GcsClient

        client = GcsClient(address=self.address)
        wait_until(lambda: len(client.get_all_node_info()) == self._num_nodes + 1, "the nodes")

    def _start(self, prefix: Sequence[str], options: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [*prefix, *_RAY, "start", "--block", "--disable-usage-stats", "--object-store-memory=80000000", *options]
        with (self.logs / f"ray-{self._num_nodes}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **_OPEN}
            )
        self._stack.callback(_end, process, is_forwarded=not prefix)
        return process

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


def _run(*arguments: str) -> None:
    subprocess.run(arguments, check=True, capture_output=True)


def _end(process: subprocess.Popen[bytes], is_forwarded: bool) -> None:
    """Ends a head by SIGTERM, which it passes on, and a namespace with all that is in it."""
    process.terminate() if is_forwarded else process.kill()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdin is not None
    process.stdin.close()


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def _free_port(host: str) -> int:
    with socket.socket() as listening:
        listening.bind((host, 0))
        return listening.getsockname()[1]
