"""Servers that are killed, paused, drained, started again or attacked: their clients get every batch, in its place.

A hostile client is refused, and memory stays bounded. Each attack has its own token, as has the trainer beside it.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import DatapipeError
from datapipe.loader import Loader
from datapipe.loader.remote.protocol import MOST_MESSAGE_CHARS, MOST_REQUEST_BYTES, OpenRequest
from tests.support.cli_processes import DEADLINE_S, start, wait_until
from tests.support.cli_processes import run as run_process
from tests.support.late_import import late_import
from tests.support.service import Server, free_port, served
from tests.support.snapshots import make_cells, make_snapshot

growing = late_import("tests.support.growing_corpus")


class _Place:
    """A port at which a server runs, most of the time."""

    def __init__(self, folder: Path, output: Path) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir()
        self._arguments = [f"web={output}", "--no-files", "--port", str(self.port), "--drain", "5"]
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_clients_of_two_servers_get_every_batch_whatever_happens_to_the_servers(tmp_path: Path) -> None:
    """Twenty moments at random, on one server or on both at once; four clients, each in its own process."""
    cells = {"web": (make_cells(["en", "ja"], repeats=["1", "3/2"]), [(0, False, 800), (1, False, 20), (1, True, 10)])}
    output = make_snapshot(tmp_path / "output", {"code": 310, "web": 830}, sequence_length=2048, cells=cells)
    chosen, never, stop = random.Random(20), threading.Event(), tmp_path / "stop"
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        places = [_Place(tmp_path / name, output) for name in ("a", "b")]
        for place in places:
            stack.callback(lambda place=place: place.server.end())
        url = f"grpc://127.0.0.1:{places[0].port},127.0.0.1:{places[1].port}/web?wait_s=120"
        command = [sys.executable, "-m", "tests.support.service_client", url, str(output)]
        clients = [
            subprocess.Popen([*command, str(rank), "4", str(stop)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank in range(4)
        ]
        for client in clients:
            stack.callback(client.kill)
        for client in clients:  # each has begun
            assert client.stdout is not None
            assert client.stdout.readline().startswith("at "), client.communicate()[0]
        for number in range(20):
            event, seconds = ("killed", "paused", "drained", "paused")[number % 4], chosen.uniform(0.0, 1.0)
            hit = places if chosen.random() < 0.2 else [chosen.choice(places)]
            list(threads.map(_Place.suffer, hit, repeat(event), repeat(seconds), repeat(never)))
            never.wait(chosen.uniform(0.0, 0.5))
            assert all(client.poll() is None for client in clients), f"after {event}"
        stop.touch()
        for client in clients:
            said, _ = client.communicate(timeout=DEADLINE_S)
            assert client.returncode == 0, said
            name, steps, _ = said.splitlines()[-1].split()
            assert name == "steps"
            assert int(steps) > 20


flight = pytest.importorskip("pyarrow.flight")
MB = 1_000_000
TOKENS = {"good": "of-the-trainer", "evil": "of-the-attacker"}
STREAMS = 8


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("attacked") / "web", {"code": 310, "web": 830}, sequence_length=2048)


@pytest.fixture(scope="module")
def server(output: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    lines = [f"  - {{name: {name}, sha256: {hashlib.sha256(token.encode()).hexdigest()}}}" for name, token in TOKENS.items()]
    (folder / "tokens.yaml").write_text("tokens:\n" + "\n".join(lines) + "\n")
    for name, token in TOKENS.items():
        (folder / name).write_text(token)
    options = ["--no-files", "--tokens", str(folder / "tokens.yaml"), "--client-streams", str(STREAMS), "--drain", "1"]
    with served(folder, f"web={output}", *options) as running:
        yield running


class _Trainer:
    """A trainer that goes on while it is watched, and compares what it gets."""

    def __init__(self, server: Server, output: Path) -> None:
        url = f"{server.location}/web?token_file={server.folder / 'good'}&wait_s=30"
        self.there, self.here = Loader(url, global_batch_size=12), Loader(output, global_batch_size=12)
        self.error: BaseException | None = None
        self.steps, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._train)
        self._thread.start()

    def _train(self) -> None:
        try:
            for batch in self.there:
                np.testing.assert_array_equal(batch["input_ids"], self.here.batch(self.steps)["input_ids"])
                self.steps += 1
                if self._stop.wait(0.002):
                    return
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self.there.close()
        self.here.close()


@pytest.fixture
def others_are_served(server: Server, output: Path) -> Iterator[None]:
    """A trainer goes on beside the attack, and the server takes at most 600 MB more for it."""
    before = server.peak_bytes()
    trainer = _Trainer(server, output)
    try:
        wait_until(lambda: trainer.steps > 5 or trainer.error is not None, "the trainer")
        begun = trainer.steps
        yield
        wait_until(lambda: trainer.steps > begun + 20 or trainer.error is not None, "the trainer after the attack")
    finally:
        trainer.end()
    assert trainer.error is None
    assert server.process.poll() is None
    assert server.peak_bytes() - before < 600 * MB
    assert "Traceback" not in server.log.read_text()


def _client(server: Server, timeout_s: float = 60.0) -> tuple[Any, Any]:
    headers = [(b"authorization", b"Bearer " + TOKENS["evil"].encode())]
    own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own, not the trainer's
    options = flight.FlightCallOptions(headers=headers, timeout=timeout_s)
    return flight.FlightClient(server.location, generic_options=own), options


def _valid(output: Path) -> dict[str, Any]:
    """A ticket."""
    state = Loader(output, global_batch_size=12).state_dict()
    order = {name: state[name] for name in ("snapshot", "seed", "lineage")} | {"window": state["window_shards"]}
    asked = {"mesh": {"data_rank": 0, "data_size": 1}, "fields": ["input_ids", "labels"], "first": 0, "count": 2}
    return {"output": "web", **order, **asked}


VALUES: list[Any] = [None, "", "x" * 5_000, -1, 0, 1, 1 << 31, 1 << 47, 1 << 62, 1 << 64, 1e308, True, [], {}]


VALUES += [["input_ids"] * 33, "../..", "/etc/passwd", "web/../../x", "\x00", "\u202e", [[]], {"a": {}}, 0.5]


VALUES += ["shuffled", "int32", "attention"]


def _mutated(generator: random.Random, valid: dict[str, Any], lineage: str) -> bytes:
    """A hostile neighbour of a valid record: other values, other names, lost or changed bytes."""
    record = dict(valid)
    for _ in range(generator.randint(1, 3)):
        record[generator.choice(list(record))] = generator.choice(VALUES)
    if lineage in record and generator.random() < 0.5:
        text = valid[lineage]
        place = generator.randrange(len(text))
        record[lineage] = text[:place] + generator.choice(["9", "-", "0", "}", "null", "1e9"]) + text[place + 1 :]
    content = json.dumps(record).encode()
    kind = generator.random()
    if kind < 0.1:
        return generator.randbytes(generator.randint(0, 300))
    if kind < 0.2:
        return content[: generator.randrange(len(content))]
    if kind < 0.22:
        return b"[" * (MOST_REQUEST_BYTES - 1)
    if kind < 0.24:
        return content + b" " * MOST_REQUEST_BYTES
    return content


def _check_refusal(error: Any) -> None:
    assert error.extra_info, error
    told = json.loads(error.extra_info)
    assert told["kind"] in ("user", "snapshot", "busy"), told
    assert len(told["message"]) <= MOST_MESSAGE_CHARS
    assert "/tmp" not in told["message"]
    assert "Traceback" not in str(error)


@pytest.mark.timeout(1_800)
@pytest.mark.usefixtures("others_are_served")
@pytest.mark.parametrize(
    "count",
    [pytest.param(3_000, marks=[pytest.mark.slow, pytest.mark.each_kind]), pytest.param(100_000, marks=pytest.mark.storm)],
)
def test_hostile_tickets_are_refused(server: Server, output: Path, count: int) -> None:
    """Every one but those that are answered with batches is refused, shortly and without paths."""
    client, options = _client(server)
    generator, valid, answered = random.Random(count), _valid(output), 0
    for _ in range(count):
        try:
            reader = client.do_get(flight.Ticket(_mutated(generator, valid, "lineage")), options)
            reader.read_chunk()
            reader.cancel()
            answered += 1
        except StopIteration:
            answered += 1
        except flight.FlightError as error:
            _check_refusal(error)
    client.close()
    assert 0 < answered < count


@pytest.mark.slow
@pytest.mark.usefixtures("others_are_served")
def test_hostile_states_are_refused(server: Server, output: Path) -> None:
    client, options = _client(server)
    loader, generator = Loader(output, global_batch_size=12), random.Random(7)
    state = loader.state_dict()
    for _ in range(1_000):
        content = _mutated(generator, state, "lineage")
        request = OpenRequest(output="web", global_batch_size=12).to_json()[:-1] + b',"state":' + content + b"}"
        try:
            list(client.do_action(flight.Action("open", request), options))
        except flight.FlightError as error:
            _check_refusal(error)
    client.close()


@pytest.mark.slow
@pytest.mark.usefixtures("others_are_served")
def test_a_slow_reader_is_served_slowly(server: Server, output: Path) -> None:
    client, options = _client(server)
    reader = client.do_get(flight.Ticket(json.dumps({**_valid(output), "count": 1_000}).encode()), options)
    for _ in range(3):
        assert reader.read_chunk().data.num_rows
        threading.Event().wait(2)
    reader.cancel()
    client.close()


@pytest.mark.slow
@pytest.mark.usefixtures("others_are_served")
def test_streams_that_are_never_read_take_the_slots_of_their_client_alone(server: Server, output: Path) -> None:
    client, options = _client(server)
    ticket = json.dumps({**_valid(output), "count": 10_000}).encode()
    unread = [client.do_get(flight.Ticket(ticket), options) for _ in range(STREAMS)]
    with pytest.raises(flight.FlightUnavailableError, match="'evil' has 8 streams, its most"):
        client.do_get(flight.Ticket(ticket), options)
    for reader in unread:
        reader.cancel()
    client.close()
    wait_until(lambda: server.figure('datapipe_service_running_streams{client="evil"}') == 0, "the end of the streams")


@pytest.mark.slow
def test_a_server_ends_although_a_stream_is_never_read(output: Path, tmp_path: Path) -> None:
    with served(tmp_path, f"web={output}", "--no-files", "--drain", "1") as server:
        client = flight.connect(server.location)
        unread = client.do_get(flight.Ticket(json.dumps({**_valid(output), "count": 10_000}).encode()))
        assert server.end(signal.SIGTERM) == 0
        unread.cancel()
        client.close()


@pytest.mark.slow
@pytest.mark.usefixtures("others_are_served")
def test_tokens_decide(server: Server, output: Path) -> None:
    client = flight.connect(server.location)
    for header in (b"", b"Bearer ", b"Bearer wrong", b"Basic b2YtdGhlLXRyYWluZXI=", b"Bearer of-the-trainer x"):
        options = flight.FlightCallOptions(headers=[(b"authorization", header)] if header else [], timeout=30)
        for ask in _requests(output):
            with pytest.raises((flight.FlightUnauthenticatedError, UnicodeError)):
                ask(client, options)
    client.close()
    with pytest.raises(DatapipeError, match="token"):
        Loader(f"{server.location}/web", global_batch_size=12)


def _requests(output: Path) -> list[Callable[[Any, Any], object]]:
    ticket = json.dumps(_valid(output)).encode()
    request = OpenRequest(output="web", global_batch_size=12).to_json()
    return [
        lambda client, options: client.do_get(flight.Ticket(ticket), options).read_chunk(),
        lambda client, options: list(client.do_action(flight.Action("open", request), options)),
    ]


@pytest.mark.needs("torch")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "over", [pytest.param("files", marks=pytest.mark.storm), pytest.param("service", marks=pytest.mark.slow)]
)
def test_training_across_published_snapshots_kills_and_worlds_is_what_its_state_reports(tmp_path: Path, over: str) -> None:
    """Three snapshots that `run --follow` publishes while it trains; killed twice; on two, three and one rank."""
    corpus = tmp_path / "corpus"
    path, output = growing.write_mixture(corpus), str(corpus / "out")
    assert run_process(["run", str(path), "--workers", "1"]).returncode == 0
    with ExitStack() as stack:
        follower = start(["run", str(path), "--workers", "1", "--follow", "0.2"])
        stack.callback(follower.communicate)
        stack.callback(os.killpg, follower.pid, signal.SIGKILL)
        url = output
        if over == "service":
            url = f"{stack.enter_context(served(tmp_path / 'server', f'web={output}', '--no-files')).location}/web"
        trainer = growing.Trainer(url, tmp_path / "trainer")
        for number, world in ((1, 2), (2, 3), (3, 1)):
            trainer.begin(world)
            trainer.wait_for(number, 3)
            growing.add_file(corpus, number)
            trainer.wait_for(number + 1, 7)
            if number < 3:
                trainer.kill()
        trainer.end()
    told = trainer.check(output)
    assert len({step["snapshot"] for step in told}) == 4
