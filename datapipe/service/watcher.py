"""The thread that checks a server's connections, certificates and outputs.

every 0.1 s   connections: keepalive for new ones; connections that send too much, or read nothing, are cut
every second  certificates: a changed certificate gets a new listener on the same port
every 10 s    outputs: whether each output is still there
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from datapipe.service.access import RequestBytes
from datapipe.service.server import RowStream
from datapipe.service.sockets import Connection, connections, cut, keep_alive

PROBE_S = 0.1
CERTIFICATES_S = 1.0
OUTPUTS_S = 10.0

_MOST_SHARE = 0.05
"""Of the time, for checking connections; with many connections the checks are further apart."""

MOST_RECEIVED = 16 << 20
"""Bytes of a connection that no request accounts for: the largest request has 2 MiB, and Arrow Flight accepts any length."""

_MOST_OF_ALL = 8 * MOST_RECEIVED
"""Over all connections; those with most are cut."""

_PER_BYTE_SENT = 1 / 64
"""Bytes that come back for those that are sent: acknowledgements of HTTP/2 take one in 8,000."""


class Watcher:
    """Checks until it is stopped.

    Args:
        port: of the server.
        running: its streams that run.
        requests: the bytes of its requests.
        probes: further checks, and the seconds between them.
        idle_s: the time for which a stream may be left unread.
        most_connections: above it, connections without a stream are cut, of the host with most of them.
        on_cut: gets the reason and the connection.
        on_error: gets the error of a check. The check runs again.
    """

    def __init__(
        self,
        port: int,
        running: Callable[[], list[RowStream]],
        requests: RequestBytes,
        probes: Mapping[Callable[[], None], float],
        idle_s: float,
        most_connections: int,
        on_cut: Callable[[str, Connection], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._port, self._running, self._requests, self._probes = port, running, requests, probes
        self._idle_s, self._most, self._on_cut, self._on_error = idle_s, most_connections, on_cut, on_error
        self._known = frozenset[str]()
        self._stop = threading.Event()
        self.num_connections = 0
        self._thread = threading.Thread(target=self._run, name="datapipe-watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        due = dict.fromkeys(self._probes, 0.0)
        pause_s = PROBE_S
        while not self._stop.wait(pause_s):
            started = time.thread_time()
            self._guarded(self.probe)
            pause_s = max(PROBE_S, (time.thread_time() - started) / _MOST_SHARE)
            for probe, due_at in due.items():
                if time.monotonic() >= due_at:
                    self._guarded(probe)
                    due[probe] = time.monotonic() + self._probes[probe]

    def _guarded(self, probe: Callable[[], None]) -> None:
        try:
            probe()
        except Exception as error:
            self._on_error(error)

    def probe(self) -> None:
        """Checks all connections once."""
        peers, running = list(connections(self._port)), self._running()
        now = time.monotonic()
        unread = {stream.peer for stream in running if stream.is_sending and now - stream.handed_at >= self._idle_s}
        for connection in peers:
            if connection.inode not in self._known:
                keep_alive(connection)
            if connection.peer in unread:
                self._cut("unread", connection)
        self._known, self.num_connections = frozenset(connection.inode for connection in peers), len(peers)
        self._cut_floods(peers)
        self._cut_excess(peers, {stream.peer for stream in running})

    def _cut_floods(self, peers: list[Connection]) -> None:
        """Cuts connections with a message that is too long, however slowly it comes."""
        requested = self._requests.of_peers({connection.peer for connection in peers})
        open_bytes = {
            connection: max(0, connection.received - requested.get(connection.peer, 0) - int(connection.sent * _PER_BYTE_SENT))
            for connection in peers
        }
        of_all = sum(open_bytes.values())
        for connection, num_bytes in sorted(open_bytes.items(), key=lambda item: -item[1]):
            if num_bytes <= MOST_RECEIVED and of_all <= _MOST_OF_ALL:
                break
            of_all -= num_bytes
            self._cut("flood", connection)

    def _cut_excess(self, peers: list[Connection], busy: set[tuple[str, int]]) -> None:
        excess = max(0, len(peers) - self._most)
        per_host = Counter(connection.peer[0] for connection in peers)
        idle = [connection for connection in peers if connection.peer not in busy]
        for connection in sorted(idle, key=lambda connection: -per_host[connection.peer[0]])[:excess]:
            self._cut("connections", connection)

    def _cut(self, reason: str, connection: Connection) -> None:
        cut(connection)
        self._on_cut(reason, connection)
