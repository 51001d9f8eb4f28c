"""Two servers under load for hours: their memory, threads and descriptors, which should stay.

    python -m tests.benchmarks.soak --minutes 240

Four clients compare every batch with a loader of the files. Beside them one client after another comes for a few batches, and
every second one of these is killed while it reads. Each server and client is a process of its own. Prints, for each process,
means over the sixths of the time.
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
_PAUSE_S = 5.0
"""Between two clients that come for a few batches."""


def _reading(process: int) -> tuple[float, int, int]:
    """Resident megabytes, threads and open descriptors of a process."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) / 1000, int(lines["Threads"]), len(list(Path(f"/proc/{process}/fd").iterdir()))


def _brief_client(url: str, is_killed: bool) -> None:
    client = subprocess.Popen([sys.executable, "-c", _BRIEF, url], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    if is_killed:
        client.stdout.readline()
        client.kill()
    client.communicate(timeout=DEADLINE_S)
    assert is_killed or client.returncode == 0


def soak(folder: Path, minutes: float, every_s: float) -> tuple[dict[str, list[tuple[float, int, int]]], int]:
    """The readings of each process, and how many clients came and went. Raises AssertionError where a client failed."""
    output = make_snapshot(folder / "output", {"code": 310, "web": 830}, sequence_length=2048)
    readings: dict[str, list[tuple[float, int, int]]] = {}
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
        clients = [
            subprocess.Popen([*command, str(rank), "4", str(stop)], stdout=(folder / f"client-{rank}.log").open("w"))
            for rank in range(4)
        ]
        for client in clients:
            stack.callback(client.kill)
        processes = {name: server.process.pid for name, server in servers.items()}
        processes |= {f"client {rank}": client.pid for rank, client in enumerate(clients)}
        began, next_s = time.monotonic(), every_s
        while time.monotonic() - began < 60 * minutes:
            _brief_client(url, is_killed=num_brief % 2 == 1)
            num_brief += 1
            assert all(client.poll() is None for client in clients), "a client has ended"
            if time.monotonic() - began > next_s:
                next_s += every_s
                for name, process in processes.items():
                    readings.setdefault(name, []).append(_reading(process))
                print(
                    f"{next_s / 60:.0f} min  " + "  ".join(f"{name} {each[-1]}" for name, each in readings.items()), flush=True
                )
            time.sleep(_PAUSE_S)
        stop.touch()
        for client in clients:
            assert client.wait(DEADLINE_S) == 0
    return readings, num_brief


def lines(readings: Mapping[str, list[tuple[float, int, int]]]) -> Iterator[str]:
    """Of each process, means over the parts of the time, and the extremes of threads and descriptors."""
    yield "| process | MB | threads | descriptors |\n|---|---|---|---|"
    for name, each in readings.items():
        table = np.array(each)
        means = ", ".join(f"{part[:, 0].mean():.0f}" for part in np.array_split(table, min(_PARTS, len(table))))
        threads, files = (f"{int(table[:, column].min())} to {int(table[:, column].max())}" for column in (1, 2))
        yield f"| {name} | {means} | {threads} | {files} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=240)
    parser.add_argument("--every", type=float, default=60, metavar="SECONDS", help="between two readings")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        readings, num_brief = soak(folder, arguments.minutes, arguments.every)
        print(f"{arguments.minutes:g} minutes, {num_brief} clients that came and went")
        print("\n".join(lines(readings)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
