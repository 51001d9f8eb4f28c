"""Connections as the kernel shows them."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from datapipe.service.sockets import (
    KEEPALIVE_S,
    RECEIVE_BYTES,
    connections,
    cut,
    is_loopback,
    keep_alive,
    peer_of,
    receive_slowly,
)


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


def test_a_connection_is_found_with_what_it_has_sent(pair: tuple[socket.socket, socket.socket, int]) -> None:
    client, accepted, port = pair
    [before] = connections(port)
    client.sendall(b"x" * 1_000)
    assert len(accepted.recv(1_000, socket.MSG_WAITALL)) == 1_000
    [after] = connections(port)
    assert before.peer == after.peer == client.getsockname()
    assert before.inode == after.inode
    assert after.received - before.received == 1_000
    assert list(connections(port + 1 if port < 65_535 else port - 1)) == []


def test_a_flood_waits_for_its_reader_from_the_first_byte(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    receive_slowly(port)
    with closing(socket.create_connection(listening.getsockname())) as client, closing(listening.accept()[0]) as accepted:
        client.setblocking(False)
        size = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert size <= 2 * RECEIVE_BYTES  # the kernel doubles what it is told
        with contextlib.suppress(BlockingIOError):
            while True:
                client.send(bytes(1 << 20))
        [found] = connections(port)
        assert 0 < found.received <= size


def test_a_connection_that_is_cut_ends_for_its_client(pair: tuple[socket.socket, socket.socket, int]) -> None:
    client, accepted, port = pair
    [found] = connections(port)
    cut(found)
    assert client.recv(10) == b""
    assert accepted.fileno() >= 0  # its owner closes it


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


def test_the_kernel_tests_whether_a_silent_peer_is_there(pair: tuple[socket.socket, socket.socket, int]) -> None:
    _, accepted, port = pair
    [found] = connections(port)
    keep_alive(found)
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE_S
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:127.0.0.1:5000", ("127.0.0.1", 5000)),
        ("ipv6:%5B::1%5D:5000", ("::1", 5000)),
        ("ipv6:[::ffff:10.0.0.1]:80", ("10.0.0.1", 80)),
        ("ipv6:[fe80::1%25eth0]:80", ("fe80::1", 80)),
        ("unix:", ("", 0)),
    ],
)
def test_peers_are_read_as_grpc_writes_them(text: str, peer: tuple[str, int]) -> None:
    assert peer_of(text) == peer


def test_loopback_is_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "::", "example.org", "")))
