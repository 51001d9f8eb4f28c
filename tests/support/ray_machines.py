"""A Ray cluster of two machines of one core, with job server and figures: `ray start` as in the guide to clusters."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.cli_processes import wait_until
from tests.support.machines import Machines, named, write_hosts

ROOT = Path(__file__).resolve().parents[2]

_START = "ray start --block --disable-usage-stats --num-cpus=1 --object-store-memory=80000000"


class RayMachines:
    """Machine 1 is the head.

    Args:
        folder: for logs.
        more: variables of the environment of both, such as credentials.
    """

    def __init__(self, folder: Path, machines: Machines, more: Mapping[str, str]) -> None:
        self.folder, self.machines = folder, machines
        self.head = machines.address(1)
        scripts = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        hidden = {"RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"}
        inherited = {name: value for name, value in os.environ.items() if name not in hidden}
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex()}
        self.environment = {**inherited, **token, "PATH": scripts, "PYTHONPATH": str(ROOT), **more}

    def open(self) -> None:
        write_hosts(self.folder / "hosts", {"n1": self.head, "n2": self.machines.address(2)})
        for name, where in (("n1", "--head --dashboard-host=0.0.0.0"), ("n2", f"--address={self.head}:6379")):
            command, prepare = f"{_START} {where}".split(), named(name, self.folder / "hosts")
            self.machines.add(command, self.folder / f"{name}.log", prepare=prepare, env=self.environment)
            if name == "n1":
                wait_until(lambda: "Ray runtime started" in (self.folder / "n1.log").read_text(), "the head")
        wait_until(lambda: self.run("ray list nodes --format=json").stdout.count('"ALIVE"') == 2, "the other node")

    def start(self, command: str, *, cwd: Path, machine: int = 1, log: str = "") -> subprocess.Popen[bytes]:
        """Starts a command line on a machine; its output goes to a file of `folder`."""
        with (self.folder / (log or f"{command.split(maxsplit=1)[0]}.log")).open("wb") as output:
            inside = self.machines.inside(machine, "sh", "-c", f"cd {cwd} && exec {command}")
            return subprocess.Popen(inside, stdout=output, stderr=output, env=self.environment, start_new_session=True)

    def run(self, command: str, *, cwd: Path | None = None, machine: int = 1) -> subprocess.CompletedProcess[str]:
        """Runs a command line on a machine to its end."""
        inside = self.machines.inside(machine, "sh", "-c", f"cd {cwd or self.folder} && {command}")
        return subprocess.run(inside, capture_output=True, text=True, check=False, env=self.environment, timeout=300)


@contextmanager
def ray_machines(more: Mapping[str, str] | None = None, machines: Machines | None = None) -> Iterator[RayMachines]:
    """A cluster that ends with the `with`.

    Args:
        machines: an open bridge, which the caller closes.
    """
    with tempfile.TemporaryDirectory(prefix="rm") as folder:
        bridge = machines or Machines(os.getpid() % 250)
        try:
            if machines is None:
                bridge.open()
            made = RayMachines(Path(folder), bridge, more or {})
            made.open()
            yield made
        finally:
            if machines is None:
                bridge.close()
