"""What the watcher cuts, with connections and streams that are told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from datapipe.service import watcher as watcher_module
from datapipe.service.access import RequestBytes
from datapipe.service.sockets import Connection
from datapipe.service.watcher import MOST_RECEIVED, Watcher


def connection(number: int, host: str = "10.0.0.1", received: int = 0, sent: int = 0) -> Connection:
    return Connection((host, number), number, f"socket:[{number}]", received, sent)


class _Watched:
    port = 1

    def __init__(self) -> None:
        self.running: list[Any] = []
        self.requests = RequestBytes()
        self.fails = 0

    def look_at_certificates(self) -> None:
        self.fails += 1
        raise RuntimeError("no certificate")

    def look_at_outputs(self) -> None:
        pass


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A watcher that looks when it is told to, the connections that it finds, and what it cuts."""
    found = SimpleNamespace(connections=[], cut=[], kept=[], errors=[], watched=_Watched())
    monkeypatch.setattr(watcher_module, "LOOK_S", 1e9)
    monkeypatch.setattr(watcher_module, "connections", lambda port: iter(found.connections))
    monkeypatch.setattr(watcher_module, "cut", lambda one: None)
    monkeypatch.setattr(watcher_module, "keep_alive", lambda one: found.kept.append(one.inode))
    found.watcher = Watcher(
        found.watched, 10.0, 3, lambda reason, one: found.cut.append((reason, one.peer[1])), found.errors.append
    )
    yield found
    found.watcher.stop()


def test_connections_that_send_too_long_a_message_are_cut_however_slowly_it_comes(told: SimpleNamespace) -> None:
    for received in range(0, MOST_RECEIVED + 1, MOST_RECEIVED // 64):
        told.connections = [connection(1, received=received), connection(2, received=received + 1)]
        told.watcher.look()
    assert told.cut == [("flood", 2)]
    assert told.kept == ["socket:[1]", "socket:[2]"]


def test_what_came_in_requests_and_what_acknowledges_answers_is_no_flood(told: SimpleNamespace) -> None:
    peers = [connection(number).peer for number in (1, 2, 3)]
    told.watched.requests.add(peers[0], 100 * MOST_RECEIVED)
    told.watched.requests.add(peers[2], 1)
    asks, reads, floods = 101 * MOST_RECEIVED, 2 * MOST_RECEIVED, MOST_RECEIVED + 2
    told.connections = [
        connection(1, received=asks),
        connection(2, received=reads, sent=64 * MOST_RECEIVED),
        connection(3, received=floods),
    ]
    told.watcher.look()
    assert told.cut == [("flood", 3)]
    told.connections = [connection(2, received=asks)]  # the peer of another connection
    told.watcher.look()
    assert told.cut[1:] == [("flood", 2)]


def test_connections_that_send_too_much_together_are_cut_those_that_sent_most_first(told: SimpleNamespace) -> None:
    told.connections = [connection(number, received=number << 20) for number in range(1, 17)]
    told.watcher.look()
    assert [one for one in told.cut if one[0] == "flood"] == [("flood", 16)]  # 136 MiB in all


def test_streams_that_are_not_read_are_cut_and_those_that_are_built_are_not(told: SimpleNamespace) -> None:
    long_ago = time.monotonic() - 11
    told.connections = [connection(1), connection(2), connection(3)]
    told.watched.running = [
        SimpleNamespace(peer=("10.0.0.1", 1), is_sending=True, handed_at=long_ago),
        SimpleNamespace(peer=("10.0.0.1", 2), is_sending=False, handed_at=long_ago),
        SimpleNamespace(peer=("10.0.0.1", 3), is_sending=True, handed_at=time.monotonic()),
    ]
    told.watcher.look()
    assert told.cut == [("unread", 1)]


def test_above_the_limit_those_without_a_stream_are_cut_of_the_host_with_most(told: SimpleNamespace) -> None:
    told.connections = [connection(1, "10.0.0.2"), *(connection(number) for number in (2, 3, 4, 5))]
    told.watched.running = [SimpleNamespace(peer=("10.0.0.1", 2), is_sending=False, handed_at=0.0)]
    told.watcher.look()
    assert told.cut == [("connections", 3), ("connections", 4)]
    assert told.watcher.num_connections == 5


def test_a_look_that_fails_is_told_and_the_watcher_goes_on(told: SimpleNamespace) -> None:
    told.watcher._guarded(told.watched.look_at_certificates)
    told.watcher._guarded(told.watched.look_at_certificates)
    assert [str(error) for error in told.errors] == ["no certificate"] * 2
