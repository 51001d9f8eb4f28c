"""Tokens, rates and slots of a server, what it keeps of its outputs, and which connections and streams its watcher cuts."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.cache.cache import ReadAhead
from datapipe.loader.remote.protocol import OpenRequest, Ticket
from datapipe.loader.share import Mesh
from datapipe.service import access as access_module
from datapipe.service import watcher as watcher_module
from datapipe.service.access import Access, Client, RefusedError, RequestBytes, Slots, _Rate
from datapipe.service.outputs import ServedOutput, batch_bytes, named_outputs
from datapipe.service.sockets import (
    KEEPALIVE_S,
    Connection,
    connections,
    cut,
    is_loopback,
    keep_alive,
    peer_of,
)
from datapipe.service.watcher import MOST_RECEIVED, Watcher
from tests.support.snapshots import make_snapshot


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def write(path: Path, text: str) -> Path:
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)
    return path


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    first = f"{{name: a, sha256: {digest('one')}, outputs: [web], bytes_per_s: 1MB, streams: 2}}"
    return write(tmp_path / "tokens.yaml", f"tokens: [{first}, {{name: b, sha256: {digest('two')}}}]")


def test_a_client_is_an_address_where_there_are_no_tokens() -> None:
    client = Access(None, 5).client("", "10.0.0.1")
    assert (client.name, client.outputs, client.streams) == ("10.0.0.1", None, 5)


def test_a_token_is_found_with_its_limits(token_file: Path) -> None:
    access = Access(token_file, 64)
    first, second = access.client("Bearer one", "x"), access.client("bearer two", "x")
    assert (first.name, first.outputs, first.streams) == ("a", frozenset({"web"}), 2)
    assert (second.name, second.outputs, second.streams) == ("b", None, 64)
    first.check_output("web")
    with pytest.raises(RefusedError, match="the token of 'a' may not read 'code'"):
        first.check_output("code")
    for wrong in ("", "one", "Bearer three", "Basic one", "Bearer  one"):
        with pytest.raises(RefusedError, match="a token is needed"):
            access.client(wrong, "x")


def test_a_changed_file_is_taken_and_a_broken_one_is_not(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "_PROBE_EVERY_S", 0.0)
    access = Access(token_file, 64)
    write(token_file, "tokens: [{name: c")
    assert access.client("Bearer one", "x").name == "a"
    assert "not YAML" in access.problem
    token_file.unlink()
    assert access.client("Bearer one", "x").name == "a"
    write(token_file, f"tokens: [{{name: c, sha256: {digest('three')}}}]")
    assert access.client("Bearer three", "x").name == "c"
    assert access.problem == ""
    with pytest.raises(RefusedError):
        access.client("Bearer one", "x")


A = f"name: a, sha256: {digest('x')}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- 1", "Input should be"),
        ("tokens: [{name: a, sha256: secret-token}]", r"tokens\.0\.sha256"),
        (f"tokens: [{{{A}}}, {{name: a, sha256: {digest('y')}}}]", "same name 'a'"),
        (f"tokens: [{{{A}}}, {{name: b, sha256: {digest('x')}}}]", "the same token"),
        (f"tokens: [{{{A}, outputs: ['../x']}}]", r"tokens\.0\.outputs\.0"),
        (f"tokens: [{{{A}, rate: 3}}]", r"tokens\.0\.rate"),
    ],
)
def test_a_file_that_is_wrong_is_refused_without_showing_it(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as told:
        Access(write(tmp_path / "t.yaml", content), 1)
    assert "secret" not in str(told.value)


def test_a_rate_holds_over_any_time_but_for_a_burst_of_a_second() -> None:
    rate, now, sent = _Rate(1_000), 100.0, 0
    while sent < 20_000:
        now += rate.take(700, now)
        sent += 700
    assert 19_000 <= (now - 100.0) * 1_000 <= 20_700
    assert rate.take(500, now + 50) == 0.0  # after a pause
    assert rate.take(1_000, now + 50) == pytest.approx(0.5)


def test_a_rate_of_a_token_continues_when_the_file_changes(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "_PROBE_EVERY_S", 0.0)
    access = Access(token_file, 64)
    assert access.pause_s(access.client("Bearer one", "x"), 100_000_000) > 90
    write(token_file, f"{token_file.read_text()}\n# changed")
    assert access.pause_s(access.client("Bearer one", "x"), 1) > 80
    assert access.pause_s(access.client("Bearer two", "x"), 100_000_000) == 0


def test_slots_are_bounded_by_client_by_memory_and_in_all() -> None:
    slots, a, b = Slots(3, most_bytes=100), Client.at("a", 2), Client.at("b", 9)
    slots.take(a, 150)  # more than there is, but alone
    with pytest.raises(RefusedError, match="150 bytes"):
        slots.take(b, 1)
    slots.give_back("a", 150)
    slots.take(a, 60)
    slots.take(a, 30)
    with pytest.raises(RefusedError, match="'a' has 2 streams"):
        slots.take(a)
    slots.take(b, 10)
    with pytest.raises(RefusedError, match="the server has 3 streams"):
        slots.take(b)
    slots.give_back("a", 60)
    with pytest.raises(RefusedError):
        slots.take(b, 61)
    slots.take(b, 60)
    assert slots.num_streams == 3
    assert dict(slots.by_client) == {"a": 1, "b": 2}


def test_a_token_that_is_taken_back_or_changes_allows_nothing_more(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "_PROBE_EVERY_S", 0.0)
    access = Access(token_file, 64)
    first, second = access.client("Bearer one", "x"), access.client("Bearer two", "x")
    assert access.still_allows(first, "web")
    assert access.still_allows(second, "code")
    write(token_file, f"tokens: [{{name: a, sha256: {digest('one')}, outputs: [code]}}]")
    assert not access.still_allows(first, "web")
    assert not access.still_allows(second, "code")
    write(token_file, f"tokens: [{{name: a, sha256: {digest('other')}}}]")
    assert not access.still_allows(first, "code")
    for name in ("a", "renamed"):
        write(token_file, f"tokens: [{{name: {name}, sha256: {digest('other')}}}]")
        assert access.still_allows(access.client("Bearer other", "x"), "web")
    assert Access(None, 1).still_allows(second, "code")


def test_outputs_are_called_as_they_are_given() -> None:
    given = ["runs/web", "web=s3://bucket/x?region=eu", "/srv/out", "s3://bucket/deep/other/?region=eu", "./here"]
    urls = ["runs/web", "s3://bucket/x?region=eu", *given[2:]]
    assert named_outputs(given) == dict(zip(["runs/web", "web", "out", "other", "here"], urls))
    for wrong in (["web", "/srv/web"], ["/srv/a b"]):
        with pytest.raises(UserError):
            named_outputs(wrong)


class _Order:
    """An order whose windows are told."""

    def __init__(self, ahead: list[int]) -> None:
        self.sample_order = self.steps = self
        self._ahead = ahead

    def samples(self, step: int) -> tuple[int, int]:
        return step, step + 1

    def windows_ahead(self, sample: int) -> list[int]:
        return self._ahead[sample:]


def test_the_cache_expects_what_all_streams_read_next_in_turn() -> None:
    expected, forgotten = list[list[int]](), list[int]()
    shared: Any = ReadAhead(SimpleNamespace(expect=expected.append), SimpleNamespace(forget=forgotten.append))  # type: ignore[arg-type]
    shared.announce(_Order([1, 2, 3]), 0, "a")
    shared.announce(_Order([7, 2, 9]), 0, "b")
    assert expected == [[1, 2, 3], [1, 7, 2, 3, 9]]
    shared.announce(_Order([1, 2, 3]), 0, "a")  # nothing new
    shared.announce(_Order([1, 2, 3]), 1, "a")
    assert expected[2:] == [[2, 7, 3, 9]]
    assert forgotten == [1]
    shared.leave("b")
    shared.leave("b")
    assert expected[3:] == [[2, 3]]
    shared.leave("a")  # nobody reads: the last shards stay
    assert len(expected) == 4


@pytest.fixture
def served_output(tmp_path: Path) -> ServedOutput:
    made = ServedOutput("web", str(make_snapshot(tmp_path, {"code": 31, "web": 83})))
    made.snapshot(None)  # as a server does that is ready
    return made


def _ticket(served_output: ServedOutput, **more: Any) -> Ticket:
    state = Loader(str(served_output.root.local), global_batch_size=6).state_dict()
    names = {"output": "web", "snapshot": state["snapshot"], "seed": state["seed"], "window": state["window_shards"]}
    asked = {"lineage": state["lineage"], "mesh": Mesh(data_rank=0, data_size=1), "fields": ("input_ids",), "first": 0}
    return Ticket(**{**names, **asked, **more})


def test_a_lineage_that_does_not_fit_is_refused(served_output: ServedOutput) -> None:
    ticket = _ticket(served_output)
    lineage = ticket.lineage.replace(" ", "")
    for change in (("[[0,0,6]]", "[[0,5,6]]"), ("[[0,0,6]]", "[[0,0,60000000]]"), ("{", "[")):
        text = lineage.replace(*change)
        assert text != lineage
        with pytest.raises((SnapshotError, UserError)):
            served_output.order(ticket.model_copy(update={"lineage": text}))
    with pytest.raises(SnapshotError):
        served_output.order(_ticket(served_output, snapshot="0" * 32))


def test_an_opened_run_goes_on_from_a_state_by_the_arguments_or_by_its_own_history(served_output: ServedOutput) -> None:
    local, state = str(served_output.root.local), None
    for size, is_exact, expected in ((6, False, 0), (4, True, 5), (4, False, 5)):
        order, step = served_output.open(
            OpenRequest(output="web", global_batch_size=size, state=state, is_exact=is_exact, snapshot=None)
        )
        opened = served_output.describe(order, step, most_steps=5)
        loader = Loader(local, global_batch_size=6 if is_exact else size)
        if state is not None:
            loader.load_state_dict(state)
        assert (step, opened.state, opened.most_steps) == (expected, loader.state_dict(), 5)
        assert opened.sources == loader.sources
        loader.seek(5)
        state = state or loader.state_dict()
    other = OpenRequest(output="web", global_batch_size=4, state=state, seed=9)
    with pytest.raises(SnapshotError):
        served_output.open(other)
    for mixture in ('{"web": NaN}', '{"web": Infinity}', '{"web": -1.5}', '{"web": [1]}', '"web"', "[[1, 2]]"):
        with pytest.raises(UserError, match="mixture"):
            served_output.open(OpenRequest.read(f'{{"output": "web", "global_batch_size": 1, "mixture": {mixture}}}'.encode()))


def test_the_memory_of_a_batch_is_known_before_it_is_built(served_output: ServedOutput) -> None:
    mesh = Mesh(data_rank=0, data_size=2)
    ticket = _ticket(served_output, fields=("input_ids", "labels"), mesh=mesh, pad_cu_seqlens=100)
    order = served_output.order(ticket)
    assert batch_bytes(order, ticket) == 3 * 16 * 8 * 3 + 400  # 3 rows of the rank; tokens that are read, and two fields


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield listening


@pytest.fixture
def pair(listening: socket.socket) -> Iterator[tuple[socket.socket, socket.socket, int]]:
    """A client, its connection in the server, and the port of the server."""
    with (
        closing(socket.create_connection(listening.getsockname(), timeout=10)) as client,
        closing(listening.accept()[0]) as served,
    ):
        yield client, served, listening.getsockname()[1]


def test_a_connection_is_found_with_what_it_has_sent_and_is_kept_alive(pair: tuple[socket.socket, socket.socket, int]) -> None:
    client, accepted, port = pair
    [before] = connections(port)
    client.sendall(b"x" * 1_000)
    assert len(accepted.recv(1_000, socket.MSG_WAITALL)) == 1_000
    [after] = connections(port)
    assert before.peer == after.peer == client.getsockname()
    assert before.inode == after.inode
    assert after.received - before.received == 1_000
    assert list(connections(port + 1 if port < 65_535 else port - 1)) == []
    keep_alive(after)
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE_S
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


def test_a_connection_that_is_cut_ends_for_its_client(pair: tuple[socket.socket, socket.socket, int]) -> None:
    client, accepted, port = pair
    [found] = connections(port)
    cut(found)
    assert client.recv(10) == b""
    assert accepted.fileno() >= 0  # its owner closes it


def test_a_peer_that_waits_for_room_is_reset_by_a_cut(pair: tuple[socket.socket, socket.socket, int]) -> None:
    client, accepted, port = pair
    client.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            client.send(bytes(1 << 20))
    [found] = connections(port)
    cut(found)
    while accepted.recv(1 << 20):  # as gRPC does: with nothing left to read, a plain close would not reset
        pass
    accepted.close()
    with pytest.raises(ConnectionError):
        client.send(b"x")


def test_a_connection_that_is_gone_is_not_cut_in_the_place_of_another(pair: tuple[socket.socket, socket.socket, int]) -> None:
    _, accepted, port = pair
    [found] = connections(port)
    one, other = socket.socketpair()
    os.dup2(one.fileno(), accepted.fileno())  # as where the number of a closed socket is given to another
    cut(found)
    one.sendall(b"still there")
    assert other.recv(100) == b"still there"
    one.close()
    other.close()


def test_peers_are_read_as_grpc_writes_them_and_loopback_is_this_machine() -> None:
    assert peer_of("ipv4:127.0.0.1:5000") == ("127.0.0.1", 5000)
    assert peer_of("ipv6:%5B::1%5D:5000") == ("::1", 5000)
    assert peer_of("ipv6:[::ffff:10.0.0.1]:80") == ("10.0.0.1", 80)
    assert peer_of("ipv6:[fe80::1%25eth0]:80") == ("fe80::1", 80)
    assert peer_of("unix:") == ("", 0)
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "::", "example.org", "")))


def connection(number: int, host: str = "10.0.0.1", received: int = 0, sent: int = 0) -> Connection:
    return Connection((host, number), number, f"socket:[{number}]", received, sent)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A watcher that looks when it is watched to, the connections that it finds, and what it cuts."""
    found = SimpleNamespace(connections=[], cut=[], kept=[], errors=[], running=[], requests=RequestBytes())
    monkeypatch.setattr(watcher_module, "PROBE_S", 1e9)
    monkeypatch.setattr(watcher_module, "connections", lambda port: iter(found.connections))
    monkeypatch.setattr(watcher_module, "cut", lambda one: None)
    monkeypatch.setattr(watcher_module, "keep_alive", lambda one: found.kept.append(one.inode))
    found.watcher = Watcher(
        1,
        lambda: found.running,
        found.requests,
        {},
        10.0,
        3,
        lambda reason, one: found.cut.append((reason, one.peer[1])),
        found.errors.append,
    )
    yield found
    found.watcher.stop()


def test_connections_that_send_too_long_a_message_are_cut_however_slowly_it_comes(watched: SimpleNamespace) -> None:
    for received in range(0, MOST_RECEIVED + 1, MOST_RECEIVED // 64):
        watched.connections = [connection(1, received=received), connection(2, received=received + 1)]
        watched.watcher.probe()
    assert watched.cut == [("flood", 2)]
    assert watched.kept == ["socket:[1]", "socket:[2]"]


def test_what_came_in_requests_and_what_acknowledges_answers_is_no_flood(watched: SimpleNamespace) -> None:
    watched.requests.add(connection(1).peer, 100 * MOST_RECEIVED)
    watched.requests.add(connection(3).peer, 1)
    asks = 101 * MOST_RECEIVED
    watched.connections = [
        connection(1, received=asks),
        connection(2, received=2 * MOST_RECEIVED, sent=64 * MOST_RECEIVED),
        connection(3, received=MOST_RECEIVED + 2),
    ]
    watched.watcher.probe()
    assert watched.cut == [("flood", 3)]
    watched.connections = [connection(2, received=asks)]  # the peer of another connection
    watched.watcher.probe()
    assert watched.cut[1:] == [("flood", 2)]


def test_connections_that_send_too_much_together_are_cut_those_that_sent_most_first(watched: SimpleNamespace) -> None:
    watched.connections = [connection(number, received=number << 20) for number in range(1, 17)]
    watched.watcher.probe()
    assert [one for one in watched.cut if one[0] == "flood"] == [("flood", 16)]  # 136 MiB in all


def stream(number: int, is_sending: bool, handed_at: float) -> SimpleNamespace:
    return SimpleNamespace(peer=("10.0.0.1", number), is_sending=is_sending, handed_at=handed_at)


def test_streams_that_are_not_read_are_cut_and_those_that_are_built_are_not(watched: SimpleNamespace) -> None:
    now = time.monotonic()
    watched.connections = [connection(1), connection(2), connection(3)]
    watched.running = [stream(1, True, now - 11), stream(2, False, now - 11), stream(3, True, now)]
    watched.watcher.probe()
    assert watched.cut == [("unread", 1)]


def test_above_the_limit_those_without_a_stream_are_cut_of_the_host_with_most(watched: SimpleNamespace) -> None:
    watched.connections = [connection(1, "10.0.0.2"), *(connection(number) for number in (2, 3, 4, 5))]
    watched.running = [stream(2, False, 0.0)]
    watched.watcher.probe()
    assert watched.cut == [("connections", 3), ("connections", 4)]
    assert watched.watcher.num_connections == 5


def test_a_look_that_fails_is_told_and_the_watcher_goes_on(watched: SimpleNamespace) -> None:
    def look() -> None:
        raise RuntimeError("no certificate")

    for _ in range(2):
        watched.watcher._guarded(look)
    assert [str(error) for error in watched.errors] == ["no certificate"] * 2
