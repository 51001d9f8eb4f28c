"""Servers that are killed, paused, drained and started again: their clients get every batch, in its place."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cli_processes import DEADLINE_S
from tests.support.service import Server, free_port
from tests.support.snapshots import make_snapshot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EVENTS = 20


class _Place:
    """A port at which a server runs, most of the time."""

    def __init__(self, folder: Path, output: Path) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir()
        self._arguments = [f"web={output}", "--no-files", "--port", str(self.port), "--drain", "5", "--idle", "5"]
        self.server = Server(self._arguments, folder / "server.log")

    def suffer(self, event: str, seconds: float, wait: threading.Event) -> None:
        if event == "paused":
            self.server.send(signal.SIGSTOP)
            wait.wait(seconds)
            self.server.send(signal.SIGCONT)
            return
        status = self.server.end(signal.SIGKILL if event == "killed" else signal.SIGTERM)
        assert status == (-signal.SIGKILL if event == "killed" else 0), (self.folder / "server.log").read_text()
        wait.wait(seconds)
        self.server = Server(self._arguments, self.folder / "server.log")


def test_clients_of_two_servers_get_every_batch_whatever_happens_to_the_servers(tmp_path: Path) -> None:
    """Twenty moments at random, on one server or on both at once; four clients, each of a process of its own."""
    output = make_snapshot(tmp_path / "output", {"code": 310, "web": 830}, sequence_length=2048)
    chosen, never = random.Random(20), threading.Event()
    stop = tmp_path / "stop"
    with ExitStack() as stack:
        places = [_Place(tmp_path / name, output) for name in ("a", "b")]
        for place in places:
            stack.callback(lambda place=place: place.server.end())
        url = f"grpc://127.0.0.1:{places[0].port},127.0.0.1:{places[1].port}/web?wait_s=120"
        clients = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.service_client", url, str(output), str(rank), "4", str(stop)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(4)
        ]
        for client in clients:
            stack.callback(client.kill)
        for client in clients:  # each has begun
            assert client.stdout is not None
            assert client.stdout.readline().startswith("at "), client.communicate()[0]
        for number in range(EVENTS):
            event, seconds = ("killed", "paused", "drained", "paused")[number % 4], chosen.uniform(0.0, 1.0)
            hit = places if chosen.random() < 0.2 else [chosen.choice(places)]
            threads = [threading.Thread(target=place.suffer, args=(event, seconds, never)) for place in hit]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            never.wait(chosen.uniform(0.0, 0.5))
            assert all(client.poll() is None for client in clients), f"after {event}"
        stop.touch()
        for client in clients:
            said, _ = client.communicate(timeout=DEADLINE_S)
            assert client.returncode == 0, said
            name, steps, longest_s = said.splitlines()[-1].split()
            assert name == "steps"
            assert int(steps) > 20
            print(steps, longest_s)
