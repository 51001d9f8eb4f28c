"""One thread at a time moves the position of a loader, so each batch is handed out once, in the order of the calls."""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Iterator
from threading import RLock
from typing import Any


class Turns:
    """A lock that is free in a forked child, whichever thread of the parent held it."""

    def __init__(self) -> None:
        self.lock = RLock()
        _ALL.add(self)


class SharedIterator(Iterator[Any]):
    """The items of a generator, from which several threads may take."""

    def __init__(self, items: Generator[Any, None, None], turns: Turns) -> None:
        self._items, self._turns = items, turns

    def __next__(self) -> Any:
        with self._turns.lock:
            return next(self._items)

    def close(self) -> None:
        with self._turns.lock:
            self._items.close()


_ALL: weakref.WeakSet[Turns] = weakref.WeakSet()


def _free_all() -> None:
    for turns in list(_ALL):
        turns.lock = RLock()


os.register_at_fork(after_in_child=_free_all)
