"""The TCP connections of this process: gRPC has no way to end a connection that reads nothing or sends too much.

Arrow Flight takes messages of any length and has no deadline for a client that stops reading: its thread waits until the
connection breaks. So a watcher checks the sockets: the kernel tests silent peers, and connections above a limit are shut down.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote

KEEPALIVE_S, PROBES_S, PROBES = 30, 10, 3
UNACKNOWLEDGED_MS = 60_000
"""A peer that acknowledges nothing for so long is gone: half-open connections end."""

_TCP_INFO = 11
_BYTES_ACKED = 120
"""Offset of tcpi_bytes_acked in struct tcp_info of linux/tcp.h; tcpi_bytes_received follows."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A peer that is connected to a port of this process.

    Attributes:
        peer: its address and port.
        descriptor: of the socket in this process.
        inode: identifies the socket.
        received: bytes, since it was made.
        sent: bytes that the peer has acknowledged.
    """

    peer: tuple[str, int]
    descriptor: int
    inode: str
    received: int
    sent: int = 0


def connections(port: int) -> Iterator[Connection]:
    """The connections to a port; closed or closing ones are left out."""
    for copy, descriptor, inode in _sockets(port):
        with suppress(OSError):
            peer = copy.getpeername()  # OSError for the socket that listens
            info = copy.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_ACKED + 16)
            sent, received = struct.unpack_from("<QQ", info, _BYTES_ACKED) if len(info) >= _BYTES_ACKED + 16 else (0, 0)
            yield Connection((plain_host(peer[0]), peer[1]), descriptor, inode, received, sent)


def _sockets(port: int) -> Iterator[tuple[socket.socket, int, str]]:
    """A copy, the descriptor and the inode of each socket of this process at a port."""
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                inode = os.readlink(f"/proc/self/fd/{name}")
                if inode.startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(name))) as copy:
                        is_tcp = copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
                        if is_tcp and copy.getsockname()[1] == port:
                            yield copy, int(name), inode


def keep_alive(connection: Connection) -> None:
    """Turns on keepalive: the kernel tests whether a silent peer is still there."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.descriptor)) as copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBES_S)
        copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)


def cut(connection: Connection) -> None:
    """Ends a connection: gRPC sees it break, and frees what waits for it.

    With SO_LINGER of 0 s, the close is a reset, which a peer that waits for room to send gets at once. After a plain close,
    the kernel answers for a minute that there is no room.
    """
    with suppress(OSError), socket.socket(fileno=os.dup(connection.descriptor)) as copy:
        if os.readlink(f"/proc/self/fd/{copy.fileno()}") == connection.inode:  # the number may be another's by now
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            copy.shutdown(socket.SHUT_RDWR)


def peer_of(text: str) -> tuple[str, int]:
    """Address and port of a peer as gRPC writes it: ipv4:127.0.0.1:5000, ipv6:%5B::1%5D:5000."""
    host, _, port = unquote(text).partition(":")[2].rpartition(":")
    return plain_host(host.strip("[]")), int(port) if port.isdigit() else 0


def plain_host(host: str) -> str:
    """An address without a zone, and an IPv4 address without the form it has on an IPv6 socket."""
    return host.partition("%")[0].removeprefix("::ffff:")


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
