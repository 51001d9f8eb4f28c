"""Two servers under load for hours: their memory, threads and descriptors, which should stay.

    python -m tests.benchmarks.soak --minutes 240
    python -m tests.benchmarks.soak --minutes 60 --step 0.005 --pause 1     as many steps in a quarter of the time

Four clients compare every batch with a loader of the files. Beside them one client after another comes for a few batches, and
every second one of these is killed while it reads. Each server and client is a process of its own. Prints, for each process,
means over the sixths of the time; of clients also what malloc has in use, and what is free in it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tests.support.cli_processes import DEADLINE_S
from tests.support.service import Server
from tests.support.snapshots import make_snapshot

_BRIEF = (
    "import sys, warnings; warnings.simplefilter('ignore')\n"
    "from datapipe.loader import Loader\n"
    "loader = Loader(sys.argv[1], global_batch_size=16)\n"
    "for number in range(40): next(loader); print(number, flush=True)\n"
    "loader.close()"
)
_PARTS = 6

Reading = tuple[float, int, int, float, float]
"""Resident megabytes, threads and open descriptors of a process, and of clients megabytes of malloc in use and free."""


def _reading(process: int, log: Path | None) -> Reading:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    told = [line.split() for line in log.read_text().splitlines() if line.startswith("at ")] if log is not None else []
    used, free = map(float, told[-1][2:4]) if told else (0.0, 0.0)
    descriptors = len(list(Path(f"/proc/{process}/fd").iterdir()))
    return int(lines["VmRSS"].split()[0]) / 1000, int(lines["Threads"]), descriptors, used, free


def _brief_client(url: str, is_killed: bool) -> None:
    client = subprocess.Popen([sys.executable, "-c", _BRIEF, url], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    if is_killed:
        client.stdout.readline()
        client.kill()
    client.communicate(timeout=DEADLINE_S)
    assert is_killed or client.returncode == 0


def soak(
    folder: Path, minutes: float, every_s: float, step_s: float, pause_s: float
) -> tuple[dict[str, list[Reading]], int, int]:
    """The readings of each process, the steps of all clients, and how many clients came and went. Raises AssertionError where
    a client failed.

    Args:
        step_s: seconds between two steps of a client.
        pause_s: seconds between two clients that come for a few batches.
    """
    output = make_snapshot(folder / "output", {"code": 310, "web": 830}, sequence_length=2048)
    readings: dict[str, list[Reading]] = {}
    num_brief = 0
    with ExitStack() as stack:
        servers = {}
        for name in ("server a", "server b"):
            (folder / name).mkdir()
            servers[name] = Server([f"web={output}", "--no-files", "--port", "0"], folder / name / "server.log")
            stack.callback(servers[name].end)
        url = f"grpc://{','.join(f'127.0.0.1:{server.port}' for server in servers.values())}/web"
        stop = folder / "stop"
        command = [sys.executable, "-m", "tests.support.service_client", url, str(output)]
        logs = [folder / f"client-{rank}.log" for rank in range(4)]
        clients = [
            subprocess.Popen([*command, str(rank), "4", str(stop), str(step_s)], stdout=log.open("w"))
            for rank, log in enumerate(logs)
        ]
        for client in clients:
            stack.callback(client.kill)
        processes: dict[str, tuple[int, Path | None]] = {name: (server.process.pid, None) for name, server in servers.items()}
        processes |= {f"client {rank}": (client.pid, logs[rank]) for rank, client in enumerate(clients)}
        began, next_s = time.monotonic(), every_s
        while time.monotonic() - began < 60 * minutes:
            _brief_client(url, is_killed=num_brief % 2 == 1)
            num_brief += 1
            assert all(client.poll() is None for client in clients), "a client has ended"
            if time.monotonic() - began > next_s:
                next_s += every_s
                for name, (process, log) in processes.items():
                    readings.setdefault(name, []).append(_reading(process, log))
                print(
                    f"{next_s / 60:.0f} min  " + "  ".join(f"{name} {each[-1]}" for name, each in readings.items()), flush=True
                )
            time.sleep(pause_s)
        stop.touch()
        for client in clients:
            assert client.wait(DEADLINE_S) == 0
    ends = [log.read_text().splitlines()[-1].split() for log in logs]
    return readings, sum(int(end[1]) for end in ends), num_brief


def lines(readings: Mapping[str, list[Reading]]) -> Iterator[str]:
    """Of each process, means over the parts of the time, and the extremes of threads and descriptors."""
    yield "| process | MB | malloc in use | free in it | threads | descriptors |\n|---|---|---|---|---|---|"
    for name, each in readings.items():
        table = np.array(each)
        parts = np.array_split(table, min(_PARTS, len(table)))
        memory, used, free = (", ".join(f"{part[:, column].mean():.0f}" for part in parts) for column in (0, 3, 4))
        if not table[:, 3].any():
            used = free = ""
        threads, files = (f"{int(table[:, column].min())} to {int(table[:, column].max())}" for column in (1, 2))
        yield f"| {name} | {memory} | {used} | {free} | {threads} | {files} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=240)
    parser.add_argument("--every", type=float, default=60, metavar="SECONDS", help="between two readings")
    parser.add_argument("--step", type=float, default=0.02, metavar="SECONDS", help="between two steps of a client")
    parser.add_argument("--pause", type=float, default=5, metavar="SECONDS", help="between two clients that come and go")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        readings, num_steps, num_brief = soak(folder, arguments.minutes, arguments.every, arguments.step, arguments.pause)
        print(f"{arguments.minutes:g} minutes, {num_steps:,} steps of 4 clients, {num_brief} clients that came and went")
        print("\n".join(lines(readings)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
