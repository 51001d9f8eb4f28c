"""Machines on this one: each has its own network, processes and mounts, on a bridge. Skips where that is not permitted.

this process ── bridge 10.77.N.1 ══ machine 10.77.N.2
                                 ══ machine 10.77.N.3
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cli_processes import children, wait_until


class Machines:
    """The bridge, and a process on each machine.

    Args:
        number: third part of the addresses; of one bridge on this machine.

    Attributes:
        processes: the first process of each machine, for `inside`.
    """

    def __init__(self, number: int) -> None:
        self.number, self.bridge, self.host = number, f"dptest{number}", f"10.77.{number}.1"
        self.processes: list[int] = []
        self._stack = ExitStack()

    def open(self, *more_hosts: str) -> None:
        """Makes the bridge, with the address `host` and more."""
        if shutil.which("ip") is None or shutil.which("unshare") is None:
            pytest.skip("there is no ip or unshare command")
        made = subprocess.run(["ip", "link", "add", self.bridge, "type", "bridge"], capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"a bridge is not permitted: {made.stderr.strip()}")
        self._stack.callback(_run, "ip", "link", "del", self.bridge)
        for host in (f"{self.host}/24", *more_hosts):
            _run("ip", "addr", "add", host, "dev", self.bridge)
        _run("ip", "link", "set", self.bridge, "up")

    def address(self, machine: int) -> str:
        """The address of a machine, counted from 1."""
        return f"10.77.{self.number}.{1 + machine}"

    def add(self, command: Sequence[str], log: Path, *, prepare: str = "", env: Mapping[str, str] | None = None) -> str:
        """Starts a machine; its address.

        Args:
            command: what it runs; it ends with it.
            prepare: lines of sh that run before, as root of the machine.
        """
        machine = len(self.processes) + 1
        name, address = f"dp{self.number}n{machine}", self.address(machine)
        setup = (
            f"set -e; read go; ip link set lo up; ip link set {name} up; ip addr add {address}/24 dev {name}\n{prepare}\n"
            '"$@" & wait $!'  # sh stays, as the first process: it reaps those whose parents have ended
        )
        spaces = ["--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["unshare", *spaces, "sh", "-c", setup, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=env,
            )
        self._stack.callback(_end, process)
        wait_until(lambda: os.readlink(f"/proc/{process.pid}/ns/net") != os.readlink("/proc/self/ns/net"), "the network")
        _run("ip", "link", "add", f"{name}h", "type", "veth", "peer", "name", name)
        removed = ["ip", "link", "del", f"{name}h"]  # else it lingers
        self._stack.callback(subprocess.run, removed, capture_output=True, check=False)
        _run("ip", "link", "set", f"{name}h", "master", self.bridge, "up")
        _run("ip", "link", "set", name, "netns", str(process.pid))
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
        self.processes += children(process.pid)
        return address

    def inside(self, machine: int, *command: str) -> list[str]:
        """The command that runs a command on a machine, counted from 1."""
        return ["nsenter", f"--target={self.processes[machine - 1]}", "--net", "--mount", "--pid", "--uts", *command]

    def close(self) -> None:
        """Kills what is left on the machines, last added first, and removes the bridge."""
        self._stack.close()


def write_hosts(path: Path, addresses: Mapping[str, str]) -> None:
    """Writes a file of host names, as /etc/hosts."""
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    path.write_text("\n".join(lines) + "\n")


def named(name: str, hosts: Path) -> str:
    """Lines of sh that give a machine its host name, a file of host names, and its own empty folders for Ray."""
    own = "mkdir -p /tmp/ray; mount -t tmpfs tmpfs /tmp/ray; mount -t tmpfs tmpfs /dev/shm"
    return f"hostname {name}; mount --bind {hosts} /etc/hosts; {own}"


def _run(*arguments: str) -> None:
    subprocess.run(arguments, check=True, capture_output=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a namespace with all that is in it."""
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
