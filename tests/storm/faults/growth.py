"""What goes on after a run: followers that are killed, trainers that move with the corpus, servers that come and go."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.storm import processes
from tests.storm.rounds import Round, SkipError
from tests.support.cli_processes import run as run_process
from tests.support.cli_processes import start
from tests.support.service import Server

_ADDITIONS = 3


def _growing():
    try:
        from tests.support import growing_corpus
    except ImportError as error:
        raise SkipError(f"needs {error.name}") from error
    return growing_corpus


def _shards(output: Path) -> list[str]:
    """The names of the shards of the newest snapshot, which end in digests of their content."""
    from datapipe.shards.manifest import read_snapshot
    from datapipe.storage import Root

    return [shard.path for shard in read_snapshot(Root(str(output))).shards]


class Follow:
    """SIGKILL of a follower at any moment of an addition; it is started again, and publishes what an undisturbed one does."""

    name = "follow"
    aim = 12
    is_short = False

    def play(self, round: Round) -> None:
        expected = round.storm.once("followed", lambda: self._follow(round, round.folder / "undisturbed", kills=0))
        made = self._follow(round, round.folder / "corpus", kills=3)
        assert made == expected, "other shards than those of an undisturbed follower"
        round.same()

    def _follow(self, round: Round, folder: Path, kills: int) -> list[str]:
        growing = _growing()
        path, output = growing.write_mixture(folder), folder / "out"
        assert run_process(["run", str(path), "--workers", "1"]).returncode == 0
        for number in range(1, _ADDITIONS + 1):
            before = _shards(output)
            growing.add_file(folder, number)
            for _ in range(kills):
                follower = start(["run", str(path), "--workers", "1", "--follow", "0.2"])
                threading.Event().wait(round.rng.uniform(0.5, 4.0))
                os.killpg(follower.pid, signal.SIGKILL)
                follower.communicate()
                round.fault(f"SIGKILL of the follower, in addition {number}")
            follower = start(["run", str(path), "--workers", "1", "--follow", "0.2"])
            processes.wait_until(lambda before=before: _shards(output) != before, "publication")
            os.killpg(follower.pid, signal.SIGKILL)
            follower.communicate()
        return _shards(output)


class Advance:
    """SIGKILL of a trainer that moves with its corpus; it goes on in another world, from its last checkpoint."""

    name = "advance"
    aim = 9
    is_short = False

    def play(self, round: Round) -> None:
        growing, folder = _growing(), round.folder / "corpus"
        path, output = growing.write_mixture(folder), str(folder / "out")
        assert run_process(["run", str(path), "--workers", "1"]).returncode == 0
        follower = start(["run", str(path), "--workers", "1", "--follow", "0.2"])
        trainer = growing.Trainer(output, round.folder / "trainer")
        try:
            for number in range(1, _ADDITIONS + 1):
                trainer.begin(round.rng.randint(1, 4))
                trainer.wait_for(number, round.rng.randint(1, 20))
                growing.add_file(folder, number)
                trainer.wait_for(number + 1, round.rng.randint(1, 20))
                trainer.kill()
                round.fault(f"SIGKILL of the trainer after {len(trainer.steps())} steps")
            trainer.begin(2)
            trainer.wait_for(_ADDITIONS + 1, 30)
            trainer.end()
        finally:
            os.killpg(follower.pid, signal.SIGKILL)
            follower.communicate()
        trainer.check(output)
        round.same()


class Service:
    """Servers that are killed, stopped for a while, or drained, and started again; clients compare every batch."""

    name = "service"
    aim = 60
    is_short = False

    def play(self, round: Round) -> None:
        from tests.support.service import free_port
        from tests.support.snapshots import make_snapshot

        output = make_snapshot(round.folder / "web", {"code": 310, "web": 830}, sequence_length=512)
        ports, stop = [free_port(), free_port()], round.folder / "stop"
        arguments = [[f"web={output}", "--no-files", "--port", str(port), "--drain", "5", "--idle", "5"] for port in ports]
        logs = [round.folder / str(port) / "server.log" for port in ports]
        for log in logs:
            log.parent.mkdir()
        servers = [Server(given, log) for given, log in zip(arguments, logs)]
        url = f"grpc://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/web"
        module = "tests.support.service_client"
        clients = [
            subprocess.Popen(
                [sys.executable, "-m", module, url, str(output), str(rank), "3", str(stop)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(3)
        ]
        try:
            for client in clients:
                assert client.stdout is not None
                assert client.stdout.readline().startswith("at "), client.communicate()[0]
            for _ in range(20):
                self._hit(round, servers, arguments, logs)
                assert all(client.poll() is None for client in clients), "a client has ended"
            stop.touch()
            for client in clients:
                said, _ = client.communicate(timeout=120)
                assert client.returncode == 0, said
        finally:
            for client in clients:
                client.kill()
                client.communicate()
            for server in servers:
                server.end()
        round.same()

    def _hit(self, round: Round, servers: list[Server], arguments: list[list[str]], logs: list[Path]) -> None:
        generator: random.Random = round.rng
        number, kind, pause_s = generator.randrange(2), generator.choice(["kill", "stop", "drain"]), generator.uniform(0.0, 2.0)
        if kind == "stop":
            servers[number].send(signal.SIGSTOP)
            threading.Event().wait(pause_s)
            servers[number].send(signal.SIGCONT)
        else:
            servers[number].end(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            threading.Event().wait(pause_s)
            servers[number] = Server(arguments[number], logs[number])
        round.fault(f"{kind} of server {number}, for {pause_s:.1f} s")


FAULTS = (Follow(), Advance(), Service())
