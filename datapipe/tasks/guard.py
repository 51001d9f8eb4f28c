"""Runs a stage on a batch so that a document that makes it raise costs that document alone.

    stage(batch) raises ─▶ halves ─▶ … ─▶ the failing document, alone ─▶ quarantine, with the error
                        │           └─▶ all others, as if it were not there
                        └─▶ a breach of the contract (`breaches.py`) ─▶ the smallest part that shows it ─▶ StageError

A stage treats each document by itself, so the results of halves joined are the result of the whole; the conformance suite
checks this for every stage. Failures of the infrastructure (memory, disk) are never blamed on a document. Where memory does not
suffice for a batch, it may for its halves.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from datapipe.errors import DatapipeError, StageError, is_retryable
from datapipe.stage.base import Stage
from datapipe.stage.documents import DocumentBatch
from datapipe.tasks.breaches import breach_of, stage_error

Result = TypeVar("Result")

_MOST_ERROR_CHARS = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedDocument:
    """A document that made a stage raise: its row in the batch, and the end of the traceback."""

    row: int
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarded(Generic[Result]):
    """Consecutive (start, stop, result) parts over the rows that did not raise, and the documents that did."""

    parts: tuple[tuple[int, int, Result], ...]
    failed: tuple[FailedDocument, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """What the errors of a stage tell.

    Attributes:
        name: of the stage in the run.
        method: of the stage, which the engine calls for a batch.
        place_of: the input file and position of the first document of a batch: "a.jsonl at 120".
    """

    name: str
    stage: Stage
    method: Callable[..., Any]
    place_of: Callable[[DocumentBatch], str]

    def run(self, process: Callable[[DocumentBatch], Result], batch: DocumentBatch) -> Guarded[Result]:
        """Runs `process`, halving the batch where it raises.

        Raises:
            StageError: the stage broke its contract.
            Exception: errors that are no document's fault, with a note of the stage and the document.
        """
        parts: list[tuple[int, int, Result]] = []
        failed: list[FailedDocument] = []
        pending = [(0, batch.num_docs)]
        while pending:
            start, stop = pending.pop()
            part = batch if (start, stop) == (0, batch.num_docs) else batch.slice(start, stop)
            try:
                parts.append((start, stop, process(part)))
            except BaseException as error:
                what = breach_of(error)
                if what is not None:
                    raise self._breach(process, part, error, what) from error
                if not _is_isolated(error, stop - start):
                    error.add_note(f"in stage {self.name}, from the document {self.place_of(part)} on")
                    raise
                if stop - start == 1:
                    failed.append(FailedDocument(row=start, error=_end_of_traceback(error)))
                    continue
                middle = (start + stop) // 2
                pending += [(middle, stop), (start, middle)]
        return Guarded(parts=tuple(parts), failed=tuple(failed))

    def _breach(
        self, process: Callable[[DocumentBatch], Any], batch: DocumentBatch, error: BaseException, what: str
    ) -> StageError:
        """The error that tells a breach, with the smallest part of the batch, found by halving, that shows one."""
        while batch.num_docs > 1:
            middle = batch.num_docs // 2
            halves = batch.slice(0, middle), batch.slice(middle, batch.num_docs)
            half = next((half for half in halves if _is_breached(process, half)), None)
            if half is None:
                break
            batch = half
        place, others = self.place_of(batch), batch.num_docs - 1
        document = f"{place} and the {others:,} after it, together" if others else place
        return stage_error(self.name, self.stage, self.method, error, what, document)


def _is_breached(process: Callable[[DocumentBatch], Any], batch: DocumentBatch) -> bool:
    """Whether the stage breaks its contract on a batch."""
    try:
        process(batch)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return breach_of(error) is not None
    return False


def _is_isolated(error: BaseException, num_docs: int) -> bool:
    """Whether the batch is halved after the exception, or the document blamed."""
    if num_docs == 0 or isinstance(error, KeyboardInterrupt | DatapipeError):
        return False
    return num_docs > 1 if isinstance(error, MemoryError) else not is_retryable(error)


def _end_of_traceback(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))[-_MOST_ERROR_CHARS:]
    return text.encode("utf-8", "backslashreplace").decode()  # a message may quote half a surrogate pair
