"""When requests begin, and how long to wait for a silent server.

A request begins when the server's Retry-After allows. Pauses between attempts double, with a jitter
that is a keyed hash of the request: requests that failed together do not come back together.
"""

import asyncio
import time
from collections.abc import Callable

from datapipe.language_model.endpoint import AttemptError, EndpointError
from datapipe.machine.retries import RetryPolicy
from datapipe.rng import seed_for

_POLICY = RetryPolicy(first_s=0.5, longest_s=30.0, longest_asked_s=120.0)
_REPORT_AFTER_S, _REPORT_EVERY_S = 5.0, 30.0


class Clock:
    """The time of this machine, which never goes back."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def pause_s(error: AttemptError, number: int, key: str) -> float:
    """Seconds until the next attempt of the request with this key, behind `number` failed ones."""
    jitter = seed_for(0, "language model", "retry", key, number) / 2**64
    share = 1.0 if error.retry_after_s is not None else 0.5 + jitter / 2
    return _POLICY.pause_s(number, error.retry_after_s) * share


class RateLimiter:
    """The moment from which requests may begin, and the end of waiting for a silent server:
    `most_s` seconds after the first failure since the last answer. `report` gets a line after
    `_REPORT_AFTER_S` without an answer, then every half minute, and when answers come again."""

    def __init__(self, clock: Clock, most_s: float, endpoint: str, report: Callable[[str], None]) -> None:
        self.clock, self._most_s, self._endpoint, self._report = clock, most_s, endpoint, report
        self._held_until = clock.now()
        self._silent_since: float | None = None
        self._reported_at: float | None = None
        self.num_answered = self.num_failed = 0

    async def wait(self) -> None:
        while (wait_s := self._held_until - self.clock.now()) > 0:
            await self.clock.sleep(wait_s)

    async def pause(self, error: AttemptError, number: int, key: str) -> None:
        """Waits between two attempts; all requests wait where the server asked for it. Arguments as for `pause_s`."""
        seconds = pause_s(error, number, key)
        if error.kind == "busy":
            self._held_until = max(self._held_until, self.clock.now() + seconds)
        else:
            await self.clock.sleep(seconds)

    def answered(self) -> None:
        self.num_answered += 1
        if self._reported_at is not None:
            self._report(f"{self._endpoint} answers again")
        self._silent_since = self._reported_at = None

    def failed(self, error: AttemptError) -> None:
        """Notes a failed attempt. Raises EndpointError when the server has been silent for too long."""
        self.num_failed += 1
        now = self.clock.now()
        self._silent_since = now if self._silent_since is None else self._silent_since
        silent_s = now - self._silent_since
        if silent_s >= self._most_s:
            raise EndpointError(
                f"no answer from {self._endpoint} for {silent_s:.0f} s: {error}. What was answered is kept: run the same "
                "command again when the server answers. --max-wait sets how long it is waited for"
            )
        if silent_s >= _REPORT_AFTER_S if self._reported_at is None else now - self._reported_at >= _REPORT_EVERY_S:
            left_s = self._most_s - silent_s
            self._report(f"no answer from {self._endpoint}: {error}. Trying again, for {left_s:.0f} s at most")
            self._reported_at = now
