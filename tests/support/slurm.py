"""A Slurm of two nodes, each its own machine (`machines.py`). The controller and munge run here."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.cli_processes import terminate, wait_until
from tests.support.machines import Machines, named, write_hosts
from tests.support.service import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")

_NODES = ("n1", "n2")

_CONFIGURATION = """
ClusterName=deploy
SlurmctldHost={controller}({host})
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_min_interval=0
ReturnToService=2
KillWait=20
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A controller and two nodes of one CPU; `ray` and its files are each node's own.

    Args:
        folder: for state and logs, with a short name: the path of munge's socket is short.
    """

    def __init__(self, folder: Path, machines: Machines) -> None:
        self.folder, self.machines = folder, machines
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._stack = ExitStack()

    def open(self) -> None:
        self.machines.open()
        self._stack.callback(self.machines.close)
        self._write_configuration()
        (self.folder / "key").write_bytes(os.urandom(1024))
        (self.folder / "key").chmod(0o600)
        places = [f"--{name}={self.folder}/munge.{name}" for name in ("pid-file", "log-file", "seed-file")]
        places += [f"--key-file={self.folder}/key", f"--socket={self.folder}/munge"]
        self._start("munged", "--foreground", "--force", *places)
        wait_until((self.folder / "munge").exists, "munge")
        self._start("slurmctld", "-D", "-c")
        for name in _NODES:
            command, log, prepare = (
                ["slurmd", "-D", "-N", name],
                self.folder / f"{name}.log",
                named(name, self.folder / "hosts"),
            )
            self.machines.add(command, log, prepare=prepare, env=self.environment)
        wait_until(lambda: self.ask("sinfo", "-h", "-o", "%t").split() == ["idle"], "the nodes to be idle")

    def ask(self, *command: str, **options) -> str:
        """Runs a command of Slurm as a user would; what it prints."""
        asked = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment, **options)
        return asked.stdout if asked.returncode == 0 else ""

    def submit(self, script: Path, cwd: Path, variables: Mapping[str, str], *options: str) -> str:
        """`NAME=VALUE … sbatch OPTIONS SCRIPT`; the number of the job."""
        command = ["sbatch", "--parsable", *options, str(script)]
        environment = {**self.environment, **variables}
        asked = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment)
        assert asked.returncode == 0, asked.stderr
        return asked.stdout.strip()

    def state(self, job: str) -> str:
        """RUNNING, COMPLETED, CANCELLED, …"""
        fields = self.ask("scontrol", "-o", "show", "job", job).split()
        return next((field.removeprefix("JobState=") for field in fields if field.startswith("JobState=")), "")

    def close(self) -> None:
        self._stack.close()

    def _write_configuration(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in _NODES)):
            (self.folder / name).mkdir()
        addresses = {name: self.machines.address(number) for number, name in enumerate(_NODES, start=1)}
        nodes = [f"NodeName={name} NodeAddr={address} CPUs=1 RealMemory=1000" for name, address in addresses.items()]
        values = {"controller": socket.gethostname().split(".")[0], "host": self.machines.host, "port": free_port("")}
        text = _CONFIGURATION.format(**values, folder=self.folder, nodes="\n".join(nodes))
        (self.folder / "slurm.conf").write_text(text)
        write_hosts(self.folder / "hosts", addresses)

    def _start(self, *command: str) -> None:
        log = self._stack.enter_context((self.folder / f"{command[0]}.out").open("wb"))
        process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment, start_new_session=True)
        self._stack.callback(terminate, process)


@contextmanager
def slurm() -> Iterator[Slurm]:
    """A cluster that ends with the `with`. Skips where a program is missing."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if os.getuid() != 0:
        pytest.skip("slurmd runs as root")
    with tempfile.TemporaryDirectory(prefix="sl") as folder:
        made = Slurm(Path(folder), Machines(os.getpid() % 250))
        try:
            made.open()
            yield made
        finally:
            made.close()
