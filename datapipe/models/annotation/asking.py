"""Asks for the answers that the cache lacks, many at a time.

    documents, one after another ─▶ `concurrency` workers ─▶ pace ─▶ one attempt ─▶ answer in the cache ─▶ next document
                                                              └── pause ◀── busy, unreachable, failed

An attempt and the storing of its answer belong together. When something ends the command, no further attempt begins, and those
under way are waited for and stored, since they are paid for. An interrupt (Ctrl-C) ends them at once. In memory are the
documents that are being asked about, and a few words of each that was left out.

`Pace` says when requests begin: the earliest moment that the server's Retry-After allows. Pauses between attempts grow from
`_FIRST_PAUSE_S` to `_MOST_PAUSE_S`. Their jitter is a keyed hash of the request, so that documents that failed together do not
come back together. Time comes from a `Clock`, which tests replace.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from datapipe.errors import CorruptionError
from datapipe.language_model.cache import AnswerCache
from datapipe.language_model.endpoint import AttemptError, Client, EndpointError, RefusedError
from datapipe.models.annotation.outcomes import (
    FAILED,
    REFUSED,
    Counts,
    Questions,
    Request,
    Settled,
    Spending,
    Tokens,
    tokens_of,
)
from datapipe.rng import seed_for

_MOST_FAILED, _MOST_BUSY = 5, 20
"""Attempts for one document that fail, or find the server busy, before the document is given up. Attempts that do not reach the
server are not counted: `Pace.failed` ends them."""

_FAILING_S = 120.0
"""A document is to blame where others are answered between its attempts; where none are, after so many seconds."""

_FIRST_PAUSE_S = 0.5
_MOST_PAUSE_S = 30.0
_MOST_RETRY_AFTER_S = 120.0
_TELL_AFTER_S, _TELL_EVERY_S = 5.0, 30.0


@dataclass(kw_only=True)
class Asking:
    """One command's requests.

    Attributes:
        skip_failed: go on without documents that the server refuses or fails on, instead of ending.
        left_out: such documents by id, with what the server said.
        counts: of documents, for the progress.
    """

    client: Client
    questions: Questions
    cache: AnswerCache
    pace: Pace
    spending: Spending
    counts: Counts
    concurrency: int
    skip_failed: bool = False
    left_out: dict[str, Settled] = field(default_factory=dict)
    _attempts: set[asyncio.Task[None]] = field(default_factory=set)

    async def ask_all(self, documents: Iterator[tuple[str, str]]) -> None:
        """Asks until every document is settled or left out. Raises what ended it: RefusedError, EndpointError, LimitError and
        others, when the attempts under way have ended.

        Args:
            documents: (id, text).
        """
        workers = [asyncio.create_task(self._work(documents)) for _ in range(self.concurrency)]
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

    async def _work(self, documents: Iterator[tuple[str, str]]) -> None:
        for document, text in documents:
            state = self.questions.state_of(text, self.cache)
            while isinstance(state, Request):
                state = await self._answered(document, state) or self.questions.state_of(text, self.cache)
            self.counts.add(state)
            self.counts.check()

    async def _answered(self, document: str, request: Request) -> Settled | None:
        """Asks until the answer is in the cache. Returns the document where it is left out."""
        num_failed = num_busy = 0
        began, num_answered = self.pace.clock.now(), self.pace.num_answered
        while True:
            await self.pace.turn()
            self.spending.begin(request.expected)
            attempt = asyncio.create_task(self._attempt(request))
            self._attempts.add(attempt)
            attempt.add_done_callback(self._attempt_ended)
            try:
                await asyncio.shield(attempt)
            except RefusedError as error:
                if self.skip_failed and error.is_of_document:
                    return self._leave_out(document, REFUSED, error)
                raise RefusedError(f"{error} (asked about the document {document})") from error
            except AttemptError as error:
                num_failed += error.kind == "failed"
                num_busy += error.kind == "busy"
                self.counts.num_failed_attempts += 1
                self.pace.failed(error)
                is_to_blame = self.pace.num_answered > num_answered or self.pace.clock.now() - began >= _FAILING_S
                if is_to_blame and (num_failed >= _MOST_FAILED or num_busy >= _MOST_BUSY):
                    if self.skip_failed:
                        return self._leave_out(document, FAILED, error)
                    raise EndpointError(
                        f"{self.client.endpoint.shown}: {num_failed + num_busy} attempts for the document {document} failed, "
                        f"the last with: {error}. What was answered is kept: run the same command again, or with --skip-failed "
                        "to go on without such documents"
                    ) from error
                await self.pace.pause(error, max(num_failed + num_busy, 1), request.key)
            else:
                if self.cache.get(request.key) is None:
                    raise CorruptionError(f"{self.cache.path}: an answer that was just written is damaged. Check the disk")
                return None

    async def _attempt(self, request: Request) -> None:
        taken = Tokens()
        try:
            answer = await self.client.ask(request.body)
            taken = tokens_of(answer, request.expected)
            await self.cache.put(request.key, answer)
        finally:
            self.spending.end(request.expected, taken)
        self.pace.answered()

    def _attempt_ended(self, attempt: asyncio.Task[None]) -> None:
        self._attempts.discard(attempt)
        if not attempt.cancelled():
            attempt.exception()  # known, also where its worker was cancelled and asks no more

    def _leave_out(self, document: str, reason: str, error: Exception) -> Settled:
        self.left_out[document] = Settled(outcome=reason, answer=str(error))
        return self.left_out[document]


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """Cancels tasks and waits until they have ended. Their errors are those that the caller knows, or follow from the end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Clock:
    """The time of this machine, which never goes back."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def pause_s(error: AttemptError, number: int, key: str) -> float:
    """Seconds until the next attempt.

    Args:
        number: failed attempts so far, from 1.
        key: of the request.
    """
    if error.retry_after_s is not None:
        return min(error.retry_after_s, _MOST_RETRY_AFTER_S)
    jitter = seed_for(0, "annotate", "retry", key, number) / 2**64
    return min(_FIRST_PAUSE_S * 2.0 ** min(number - 1, 16), _MOST_PAUSE_S) * (0.5 + jitter / 2)


class Pace:
    """The moment from which requests may begin, and how long the command waits for a server that gives no answer at all.

    Args:
        most_s: seconds from the first failure behind the last answer until the command ends.
        tell: gets a line after `_TELL_AFTER_S` without an answer, then every half minute, and when answers come again.
    """

    def __init__(self, clock: Clock, most_s: float, shown: str, tell: Callable[[str], None]) -> None:
        self.clock, self._most_s, self._shown, self._tell = clock, most_s, shown, tell
        self._held_until = clock.now()
        self._since: float | None = None
        self._told_at: float | None = None
        self.num_answered = 0

    async def turn(self) -> None:
        """Waits until a request may begin."""
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
        if self._told_at is not None:
            self._tell(f"{self._shown} answers again")
        self._since = self._told_at = None

    def failed(self, error: AttemptError) -> None:
        """Notes a failed attempt. Raises EndpointError when the server has been silent for too long."""
        now = self.clock.now()
        self._since = now if self._since is None else self._since
        silent_s = now - self._since
        if silent_s >= self._most_s:
            raise EndpointError(
                f"no answer from {self._shown} for {silent_s:.0f} s: {error}. What was answered is kept: run the same command "
                "again when the server answers. --max-wait sets how long it is waited for"
            )
        is_due = silent_s >= _TELL_AFTER_S if self._told_at is None else now - self._told_at >= _TELL_EVERY_S
        if is_due:
            left_s = self._most_s - silent_s
            self._tell(f"no answer from {self._shown}: {error}. Trying again, for {left_s:.0f} s at most")
            self._told_at = now
