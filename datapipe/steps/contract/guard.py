"""Runs a stage on a batch so that a document that makes it raise costs that document alone.

    stage(batch) raises ─▶ halves ─▶ … ─▶ the failing document, alone ─▶ quarantine, with the error
                        │           └─▶ all others, as if it were not there
                        └─▶ a breach of the contract (`breaches.py`) ─▶ the smallest part that shows it ─▶ StageError

    stage(batch) crashes ─▶ the next attempt: one by one ─▶ the last document told ─▶ quarantine, or the end of the run

Nothing survives a crash of a native library. So the documents in hand are told before each call (`activity.py`), and what the
driver concludes from a crash comes back with the task (`RetryHints`).

A stage treats each document by itself, so the results of parts joined are the result of the whole; the conformance suite
checks this for every stage. Failures of the infrastructure (memory, disk) are never blamed on a document. Where memory does
not suffice for a batch, it may for its halves; where it does not for one document, StageMemoryError says so.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from datapipe.credentials import masked
from datapipe.errors import DatapipeError, StageError, is_retryable
from datapipe.machine import activity
from datapipe.stage.base import Stage
from datapipe.stage.documents import DocumentBatch
from datapipe.steps.contract.breaches import breach_of, code_line, is_about_content, memory_error, stage_error
from datapipe.storage.outages import outage_of

Result = TypeVar("Result")

_MOST_ERROR_CHARS = 4000


Failed = dict[int, str]
"""Documents that made a stage raise or crash: by row in the batch, the end of the traceback, or the cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryHints:
    """What the ends of earlier attempts at a map task have shown about its documents.

    Attributes:
        one_by_one: (stage, key of the first document) of batches in which a worker crashed or stalled. A batch with one of these
            documents goes to the stage one by one.
        known_crashes: (stage, key, cause) of documents that crash a worker, "SIGSEGV"; they go to quarantine.
        most_docs: that any stage gets in one call, where memory did not suffice for more. What it makes of the parts is joined.
    """

    one_by_one: tuple[tuple[str, bytes], ...] = ()
    known_crashes: tuple[tuple[str, bytes, str], ...] = ()
    most_docs: int | None = None


NO_HINTS = RetryHints()


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """What the errors of a stage tell.

    Attributes:
        name: of the stage in the run.
        method: of the stage, which the engine calls for a batch.
        place_of: the name of the first document of a batch: "web/a.jsonl:120".
        hints: what earlier attempts at the task have shown; nothing for almost every task.
    """

    name: str
    stage: Stage
    method: Callable[..., Any]
    place_of: Callable[[DocumentBatch], str]
    hints: RetryHints = NO_HINTS

    def run(
        self, process: Callable[[DocumentBatch], Result], batch: DocumentBatch
    ) -> tuple[list[tuple[DocumentBatch, Result]], Failed]:
        """Runs `process`, halving the batch where it raises. Returns parts of the batch without the documents that failed, each
        with its result, and the documents that did, in order.

        Raises:
            StageError: the stage broke its contract.
            StageMemoryError: memory does not suffice for one document.
            Exception: errors that are no document's fault, with a note of the stage and the document.
        """
        parts: list[tuple[DocumentBatch, Result]] = []
        pending, failed = (
            ([(0, batch.num_docs)], Failed()) if self.hints == NO_HINTS else _with_hints(batch, self.hints, self.name)
        )
        while pending:
            start, stop = pending.pop()
            part = batch if (start, stop) == (0, batch.num_docs) else batch.slice(start, stop)
            _tell(part)
            try:
                parts.append((part, process(part)))
            except BaseException as error:
                self._raise_unless_isolated(process, part, error)
                if stop - start == 1:
                    failed[start] = _end_of_traceback(error, code_line(self.stage, self.method, error))
                    continue
                middle = (start + stop) // 2
                pending += [(middle, stop), (start, middle)]
        return parts, dict(sorted(failed.items()))

    def _raise_unless_isolated(
        self, process: Callable[[DocumentBatch], Any], part: DocumentBatch, error: BaseException
    ) -> None:
        """Raises what an exception stands for, unless a document is at fault, or halves of the part may succeed."""
        what = breach_of(error, self.stage)
        if what is not None:
            raise self._breach(process, part, error, what) from error
        if isinstance(error, MemoryError) and part.num_docs == 1:
            place = self.place_of(part)
            raise memory_error(self.name, self.stage, self.method, error, place, part.text_bytes) from error
        if not self._is_isolated(error, part.num_docs):
            error.add_note(f"in stage {self.name}, from the document {self.place_of(part)} on")
            raise error

    def _is_isolated(self, error: BaseException, num_docs: int) -> bool:
        """Whether the batch is halved after the exception, or the document blamed."""
        if num_docs == 0 or isinstance(error, KeyboardInterrupt | DatapipeError):
            return False
        if isinstance(error, MemoryError) or is_about_content(error, self.stage):
            return True
        return not (is_retryable(error) or outage_of(error, ""))

    def _breach(
        self, process: Callable[[DocumentBatch], Any], batch: DocumentBatch, error: BaseException, what: str
    ) -> StageError:
        """The error that tells a breach, with the smallest part of the batch, found by halving, that shows one."""
        while batch.num_docs > 1:
            middle = batch.num_docs // 2
            halves = batch.slice(0, middle), batch.slice(middle, batch.num_docs)
            half = next((half for half in halves if self._is_breached(process, half)), None)
            if half is None:
                break
            batch = half
        place, others = self.place_of(batch), batch.num_docs - 1
        document = f"{place} and the {others:,} after it, together" if others else place
        return stage_error(self.name, self.stage, self.method, error, what, document)

    def _is_breached(self, process: Callable[[DocumentBatch], Any], batch: DocumentBatch) -> bool:
        """Whether the stage breaks its contract on a batch."""
        try:
            process(batch)
        except BaseException as error:
            is_breach = breach_of(error, self.stage) is not None
            if isinstance(error, KeyboardInterrupt) and not is_breach:
                raise
            return is_breach
        return False


def _with_hints(batch: DocumentBatch, hints: RetryHints, stage: str) -> tuple[list[tuple[int, int]], Failed]:
    """The spans of rows to process, the last one first, and the documents that are known to crash the stage."""
    keys, known_crashes = batch.keys.to_pylist(), {key: cause for name, key, cause in hints.known_crashes if name == stage}
    failed = {
        row: f"the stage crashed on this document: its process was ended by {known_crashes[key]}"
        for row, key in enumerate(keys)
        if key in known_crashes
    }
    if not {key for name, key in hints.one_by_one if name == stage}.isdisjoint(keys):
        cuts = np.arange(batch.num_docs + 1)
    else:
        step = hints.most_docs or max(1, batch.num_docs)
        cuts = np.unique([*range(0, batch.num_docs, step), *failed, *(row + 1 for row in failed), batch.num_docs])
    spans = [(start, stop) for start, stop in pairwise(cuts.tolist()) if start not in failed]
    return spans[::-1], failed


def _tell(part: DocumentBatch) -> None:
    """Tells which documents the stage gets next."""
    if activity.is_published() and part.num_docs:
        ids = part.record.column("id")
        activity.on_documents(ids[0].as_py(), part.keys[0].as_py(), part.num_docs, part.text_bytes)


def _end_of_traceback(error: BaseException, where: str) -> str:
    """The end of the traceback; its last line is the message, and the line of the stage's code."""
    text = masked("".join(traceback.format_exception(error)))[-_MOST_ERROR_CHARS:].rstrip()
    return f"{text} ({where})".encode("utf-8", "backslashreplace").decode()  # a message may quote half a surrogate pair
