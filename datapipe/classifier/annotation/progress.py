"""What a command that annotates says: the estimate, a line every ten seconds or a live one on a terminal, and the end.

420 of 1,000 documents (412 scored, 8 without a score), 5.2/s, 1:51 left, 310,000 tokens, cost 0.12, 3 attempts failed
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from rich.console import Console

from datapipe.classifier.annotation.counts import Counts
from datapipe.classifier.annotation.pace import Clock
from datapipe.classifier.annotation.spending import Spending
from datapipe.credentials import masked
from datapipe.metrics import counted
from datapipe.report.layout import print_text

_PLAIN_EVERY_S, _LIVE_EVERY_S = 10.0, 0.5


class Progress:
    """Tells of the work of one command, as a context manager around it."""

    def __init__(self, console: Console, clock: Clock, num_documents: int, counts: Counts, spending: Spending) -> None:
        self._console, self._clock = console, clock
        self._num_documents, self._counts, self._spending = num_documents, counts, spending
        self._began, self._settled_before = clock.now(), counts.num_settled
        self._live: Any = console.status("") if console.is_terminal else None

    def __enter__(self) -> Self:
        self._context: AbstractContextManager[Any] = nullcontext() if self._live is None else self._live
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def say(self, line: str) -> None:
        print_text(masked(line), self._console)
        self._console.file.flush()  # where it is a log, it is read while the command runs

    async def tell_often(self) -> None:
        """Tells of the work until it is cancelled."""
        while True:
            await asyncio.sleep(_PLAIN_EVERY_S if self._live is None else _LIVE_EVERY_S)
            if self._live is None:
                self.say(self.line())
            else:
                self._live.update(self.line())

    def line(self) -> str:
        counts, spent = self._counts, self._spending.spent
        done = counts.num_settled
        elapsed_s, num_new = self._clock.now() - self._began, done - self._settled_before
        rate = num_new / elapsed_s if elapsed_s > 0 else 0.0
        left = f"{duration((self._num_documents - done) / rate)} left" if rate > 0 else "time left unknown"
        without = f", {counts.unparsed.total():,} without a score" if counts.unparsed else ""
        failed = f"{counted(counts.num_failed_attempts, 'attempt')} failed" if counts.num_failed_attempts else ""
        cost = f"cost {self._spending.prices.cost(spent):,.2f}" if self._spending.prices else ""
        documents = f"{done:,} of {counted(self._num_documents, 'document')} ({counts.scores.total():,} scored{without})"
        parts = (documents, f"{rate:,.1f}/s", left, f"{spent.total:,} tokens", cost, failed)
        return ", ".join(part for part in parts if part)


def duration(seconds: float) -> str:
    """1:05 or 2:03:04."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
