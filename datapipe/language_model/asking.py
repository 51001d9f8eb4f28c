"""Asks for the answers that the cache lacks, many at a time.

    requests, one after another ─▶ `concurrency` workers ─▶ rate limiter ─▶ one attempt ─▶ answer in the cache ─▶ next request
                                                             └── pause ◀── busy, unreachable, failed

When something ends the command, no further attempt begins, and those under way are completed and stored, since they are
paid for. An interrupt (Ctrl-C) ends them at once. Memory: the requests under way.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Literal

from datapipe.dataclass import dataclass, field
from datapipe.errors import CorruptionError, DatapipeError
from datapipe.language_model.cache import Answer, AnswerCache
from datapipe.language_model.endpoint import AttemptError, Client, RefusedError
from datapipe.language_model.rate_limiter import RateLimiter
from datapipe.language_model.spending import Spending, Tokens, tokens_of

_MOST_FAILED, _MOST_BUSY = 5, 20
"""Attempts for one request that fail or find the server busy, before it is given up.
`RateLimiter.failed` counts others."""

_FAILING_S = 120.0
"""A request is to blame where others are answered between its attempts; where none are, after so many seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    name: str  # of what it asks about, such as the id of a document, for messages
    body: dict[str, Any]  # as it is sent
    key: str  # in the cache
    expected: Tokens  # tokens that it may take


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Why a request that the server refuses or fails on is left out, with its message."""

    reason: Literal["refused", "failed"]
    message: str


@dataclass(kw_only=True)
class Asking:
    client: Client
    cache: AnswerCache
    limiter: RateLimiter
    spending: Spending
    # gets every request with its answer, which is in the cache. What it raises ends the command.
    on_answer: Callable[[Request, Answer | LeftOut], None]
    concurrency: int
    skip_failed: bool = False  # leave out requests that the server refuses or fails on, instead of ending
    _attempts: set[asyncio.Task[None]] = field(default_factory=set)

    async def ask_all(self, requests: Iterator[Request]) -> None:
        """Asks until every request is answered or left out. Raises the error that ended it."""
        workers = [asyncio.create_task(self._work(requests)) for _ in range(self.concurrency)]
        try:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            await _ended(workers)
            while self._attempts:
                await asyncio.wait(self._attempts)
        finally:
            await _ended([*workers, *self._attempts])
        problems = [problem for worker in done if (problem := worker.exception()) is not None]
        if problems:
            raise problems[0]

    async def _work(self, requests: Iterator[Request]) -> None:
        for request in requests:
            self.on_answer(request, await self._answer(request))

    async def _answer(self, request: Request) -> Answer | LeftOut:
        num_failed = num_busy = 0
        limiter, began, num_answered = self.limiter, self.limiter.clock.now(), self.limiter.num_answered
        while True:
            await limiter.wait()
            self.spending.begin(request.expected)
            try:
                await asyncio.shield(self._begin(request))
            except RefusedError as error:
                if self.skip_failed and error.is_of_content:
                    return LeftOut(reason="refused", message=str(error))
                raise RefusedError(f"{error} (asked about {request.name})") from error
            except AttemptError as error:
                num_failed += error.kind == "failed"
                num_busy += error.kind == "busy"
                limiter.failed(error)
                is_to_blame = limiter.num_answered > num_answered or limiter.clock.now() - began >= _FAILING_S
                if is_to_blame and (num_failed >= _MOST_FAILED or num_busy >= _MOST_BUSY):
                    if self.skip_failed:
                        return LeftOut(reason="failed", message=str(error))
                    raise DatapipeError(
                        f"{self.client.endpoint.shown}: {num_failed + num_busy} attempts for {request.name} failed, the last "
                        f"with: {error}. What was answered is kept: run the same command again, or with --skip-failed to go on "
                        "without what fails"
                    ) from error
                await limiter.pause(error, max(num_failed + num_busy, 1), request.key)
            else:
                if (answer := self.cache.get(request.key)) is None:
                    raise CorruptionError(f"{self.cache.path}: an answer that was just written is damaged. Check the disk")
                return answer

    def _begin(self, request: Request) -> asyncio.Task[None]:
        attempt = asyncio.create_task(self._attempt(request))
        self._attempts.add(attempt)
        attempt.add_done_callback(self._attempt_ended)
        return attempt

    async def _attempt(self, request: Request) -> None:
        taken = Tokens()
        try:
            answer = await self.client.ask(request.body)
            taken = tokens_of(answer, request.expected)
            await self.cache.put(request.key, answer)
        finally:
            self.spending.end(request.expected, taken)
        self.limiter.answered()

    def _attempt_ended(self, attempt: asyncio.Task[None]) -> None:
        self._attempts.discard(attempt)
        if not attempt.cancelled():
            attempt.exception()  # known, also where its worker was cancelled and asks no more


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """Cancels tasks, and waits for them. Their errors are known, or follow from the end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
