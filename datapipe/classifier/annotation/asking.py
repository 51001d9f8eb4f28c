"""Asks for the answers that the cache lacks, many at a time.

    documents, one after another ─▶ `concurrency` workers ─▶ pace ─▶ one attempt ─▶ answer in the cache ─▶ next document
                                                              └── pause ◀── busy, unreachable, failed

An attempt and the storing of its answer belong together. When something ends the command, no further attempt begins, and those
under way are waited for and stored, since they are paid for. An interrupt (Ctrl-C) ends them at once. In memory are the
documents that are being asked about, and a few words of each that was left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from datapipe.classifier.annotation.answers import FAILED, REFUSED, Questions, Request, Settled
from datapipe.classifier.annotation.cache import AnswerCache
from datapipe.classifier.annotation.counts import Counts
from datapipe.classifier.annotation.endpoint import AttemptError, Client, EndpointError, RefusedError
from datapipe.classifier.annotation.pace import Clock, Pace, Patience, pause_s
from datapipe.classifier.annotation.spending import Spending, Tokens, tokens_of
from datapipe.errors import CorruptionError

_MOST_FAILED, _MOST_BUSY = 5, 20
"""Attempts for one document that fail, or find the server busy, before the document is given up. Attempts that do not reach the
server are not counted: `Patience` ends them."""

_FAILING_S = 120.0
"""A document is to blame where others are answered between its attempts; where none are, after so many seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Why a document has no answer: "refused" or "failed", and what the server said."""

    reason: str
    message: str


@dataclass(kw_only=True)
class Asking:
    """One command's requests.

    Attributes:
        skip_failed: go on without documents that the server refuses or fails on, instead of ending.
        left_out: such documents, by id.
        counts: of documents, for the progress.
    """

    client: Client
    questions: Questions
    cache: AnswerCache
    clock: Clock
    pace: Pace
    patience: Patience
    spending: Spending
    counts: Counts
    concurrency: int
    skip_failed: bool = False
    left_out: dict[str, LeftOut] = field(default_factory=dict)
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
            while isinstance(state := self.questions.state_of(text, self.cache), Request):
                left_out = await self._answered(document, state)
                if left_out is not None:
                    self.left_out[document] = left_out
                    self.counts.add(left_out.reason, left_out.message)
                    break
            if isinstance(state, Settled):
                self.counts.settled(state)
            self.counts.check()

    async def _answered(self, document: str, request: Request) -> LeftOut | None:
        """Asks until the answer is in the cache; the reason where there will be none."""
        num_failed = num_busy = 0
        began, num_answered = self.clock.now(), self.patience.num_answered
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
                    return LeftOut(reason=REFUSED, message=str(error))
                raise RefusedError(f"{error} (asked about the document {document})") from error
            except AttemptError as error:
                num_failed += error.kind == "failed"
                num_busy += error.kind == "busy"
                self.counts.num_failed_attempts += 1
                self.patience.failed(error)
                is_to_blame = self.patience.num_answered > num_answered or self.clock.now() - began >= _FAILING_S
                if is_to_blame and (num_failed >= _MOST_FAILED or num_busy >= _MOST_BUSY):
                    return self._given_up(document, error, num_failed + num_busy)
                await self._pause(error, num_failed + num_busy, request.key)
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
        self.patience.answered()

    def _attempt_ended(self, attempt: asyncio.Task[None]) -> None:
        self._attempts.discard(attempt)
        if not attempt.cancelled():
            attempt.exception()  # known, also where its worker was cancelled and asks no more

    async def _pause(self, error: AttemptError, number: int, key: str) -> None:
        seconds = pause_s(error, max(number, 1), key)
        if error.kind == "busy":
            self.pace.hold(seconds)
        else:
            await self.clock.sleep(seconds)

    def _given_up(self, document: str, error: AttemptError, number: int) -> LeftOut:
        if self.skip_failed:
            return LeftOut(reason=FAILED, message=str(error))
        raise EndpointError(
            f"{self.client.endpoint.shown}: {number} attempts for the document {document} failed, the last with: {error}. "
            "What was answered is kept: run the same command again, or with --skip-failed to go on without such documents"
        )


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """Cancels tasks and waits until they have ended. Their errors are those that the caller knows, or follow from the end."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
