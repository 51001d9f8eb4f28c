"""What a cluster that grows should have room for: the reservations of the tasks that run, and of those that wait."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice

_EVERY_S = 5.0
MOST_DEMANDED = 10_000
"""Tasks at most whose reservations a cluster learns: its autoscaler packs each of them into nodes, of which it adds as many as
it may."""

Reservation = Mapping[str, float]  # by Ray's names: {"CPU": 1.0, "memory": 2e9}


class Demand:
    """The demand that an autoscaler has learned; `send` gives it another one, a reservation for each task.

    Ray's own demand is that of submitted tasks, and the driver submits at most twice as many as the cluster runs at once. So
    without this a cluster doubles with every round of nodes that start.
    """

    def __init__(self, send: Callable[[list[dict[str, float]]], None]) -> None:
        self._send = send
        self._sent: list[dict[str, float]] = []
        self._next = 0.0

    def update(self, reservations: Iterable[Reservation]) -> None:
        """Sends the demand where it has changed; looks at the reservations every few seconds alone."""
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + _EVERY_S
        self._set([dict(each) for each in islice(reservations, MOST_DEMANDED)])

    def withdraw(self) -> None:
        """Lets the cluster shrink again."""
        self._set([])

    def _set(self, wanted: list[dict[str, float]]) -> None:
        """The demand is a hint: a cluster that does not take it now gets it again with the next update."""
        if wanted != self._sent:
            with suppress(Exception):
                self._send(wanted)
                self._sent = wanted
