"""The thread that looks at a server's connections, certificates and outputs, since nothing else would.

every 0.1 s   connections: keepalive for new ones; those that send too much, or read nothing, are cut
every second  certificates: changed ones are taken, by a new listener on the same port
every 10 s    outputs: whether each is still there
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from datapipe.service.access import RequestBytes
from datapipe.service.server import RowStream
from datapipe.service.sockets import Connection, connections, cut, keep_alive

LOOK_S = 0.1
CERTIFICATES_S = 1.0
OUTPUTS_S = 10.0

_MOST_SHARE = 0.05
"""Of the time, for looking at connections; where there are many, the looks are further apart."""

MOST_RECEIVED = 16 << 20
"""Bytes of a connection that no request accounts for: the largest has 2 MiB, and Arrow Flight takes messages of any length."""

_MOST_OF_ALL = 8 * MOST_RECEIVED
"""Over all connections; those with most are cut."""

_PER_BYTE_SENT = 1 / 64
"""Bytes that come back for those that are sent: acknowledgements of HTTP/2 take one in 8,000."""


class Watcher:
    """Looks until it is stopped.

    Args:
        port: of the server.
        running: its streams that run.
        requests: the bytes of its requests.
        looks: what else is looked at, and every how many seconds.
        idle_s: for which a stream may be left unread.
        most_connections: those without a stream are cut above it, of the host with most of them.
        say: gets the reason and the connection that is cut.
        fails: gets the error of a look.
    """

    def __init__(
        self,
        port: int,
        running: Callable[[], list[RowStream]],
        requests: RequestBytes,
        looks: Mapping[Callable[[], None], float],
        idle_s: float,
        most_connections: int,
        say: Callable[[str, Connection], None],
        fails: Callable[[Exception], None],
    ) -> None:
        self._port, self._running, self._requests, self._looks = port, running, requests, looks
        self._idle_s, self._most, self._say, self._fails = idle_s, most_connections, say, fails
        self._known = frozenset[str]()
        self._stop = threading.Event()
        self.num_connections = 0
        self._thread = threading.Thread(target=self._run, name="datapipe-watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        due = dict.fromkeys(self._looks, 0.0)
        pause_s = LOOK_S
        while not self._stop.wait(pause_s):
            started = time.thread_time()
            self._guarded(self.look)
            pause_s = max(LOOK_S, (time.thread_time() - started) / _MOST_SHARE)
            for look, at in due.items():
                if time.monotonic() >= at:
                    self._guarded(look)
                    due[look] = time.monotonic() + self._looks[look]

    def _guarded(self, look: Callable[[], None]) -> None:
        """A look that fails is told, and tried again: nobody else would look."""
        try:
            look()
        except Exception as error:
            self._fails(error)

    def look(self) -> None:
        """Looks at all connections once."""
        found = list(connections(self._port))
        running = self._running()
        now = time.monotonic()
        unread = {stream.peer for stream in running if stream.is_sending and now - stream.handed_at >= self._idle_s}
        for one in found:
            if one.inode not in self._known:
                keep_alive(one)
            if one.peer in unread:
                self._cut("unread", one)
        self._known, self.num_connections = frozenset(one.inode for one in found), len(found)
        self._cut_floods(found)
        self._cut_excess(found, {stream.peer for stream in running})

    def _cut_floods(self, found: list[Connection]) -> None:
        """Those with a message that is too long, however slowly it comes."""
        requested = self._requests.of_peers({one.peer for one in found})
        open_bytes = {one: max(0, one.received - requested.get(one.peer, 0) - int(one.sent * _PER_BYTE_SENT)) for one in found}
        of_all = sum(open_bytes.values())
        for one in sorted(found, key=lambda one: -open_bytes[one]):
            if open_bytes[one] <= MOST_RECEIVED and of_all <= _MOST_OF_ALL:
                break
            of_all -= open_bytes[one]
            self._cut("flood", one)

    def _cut_excess(self, found: list[Connection], busy: set[tuple[str, int]]) -> None:
        excess = len(found) - self._most
        if excess <= 0:
            return
        per_host = Counter(one.peer[0] for one in found)
        idle = [one for one in found if one.peer not in busy]
        for one in sorted(idle, key=lambda one: -per_host[one.peer[0]])[:excess]:
            self._cut("connections", one)

    def _cut(self, reason: str, connection: Connection) -> None:
        cut(connection)
        self._say(reason, connection)
