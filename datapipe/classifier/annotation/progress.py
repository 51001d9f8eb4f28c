"""What a command that annotates says: the estimate, a line every ten seconds or a live one on a terminal, and the end.

420 of 1,000 documents (412 scored, 8 without a score), 5.2/s, 1:51 left, 310,000 tokens, cost 0.12 of about 0.29
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
from datapipe.report.layout import fitting, print_text
from datapipe.report.progress import duration

_PLAIN_EVERY_S, _LIVE_EVERY_S = 10.0, 0.5
_SPINNER_CELLS = 2


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
                self._live.update(fitting(self.line(), self._console.width - _SPINNER_CELLS))

    def line(self) -> str:
        counts, spent = self._counts, self._spending.spent
        done = counts.num_settled
        elapsed_s, num_new = self._clock.now() - self._began, done - self._settled_before
        rate = num_new / elapsed_s if elapsed_s > 0 else 0.0
        left = f"{duration((self._num_documents - done) / rate)} left" if rate > 0 else "time left unknown"
        without = f", {counts.unparsed.total():,} without a score" if counts.unparsed else ""
        failed = f"{counted(counts.num_failed_attempts, 'attempt')} failed" if counts.num_failed_attempts else ""
        documents = f"{done:,} of {counted(self._num_documents, 'document')} ({counts.scores.total():,} scored{without})"
        parts = (documents, f"{rate:,.1f}/s", left, f"{spent.total:,} tokens", self._cost(num_new), failed)
        return ", ".join(part for part in parts if part)

    def _cost(self, num_new: int) -> str:
        """What was spent, and what the command will cost by it."""
        prices = self._spending.prices
        if not prices or not num_new:
            return ""
        cost = prices.cost(self._spending.spent)
        return f"cost {cost:,.2f} of about {cost / num_new * (self._num_documents - self._settled_before):,.2f}"
