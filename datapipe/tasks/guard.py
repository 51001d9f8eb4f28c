"""Runs a stage on a batch so that a document that makes it raise costs that document alone.

    stage(batch) raises ─▶ halves ─▶ … ─▶ the failing document, alone ─▶ quarantine, with the error
                                    └─▶ all others, as if it were not there

A stage treats each document by itself, so the results of halves joined are the result of the whole; the conformance suite
checks this for every stage. Failures of the infrastructure (memory, disk) are never blamed on a document.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from datapipe.errors import DatapipeError, is_retryable
from datapipe.stage.documents import DocumentBatch

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


def guarded(process: Callable[[DocumentBatch], Result], batch: DocumentBatch) -> Guarded[Result]:
    """Runs `process`, halving the batch where it raises. Raises only errors that are no document's fault."""
    parts: list[tuple[int, int, Result]] = []
    failed: list[FailedDocument] = []
    pending = [(0, batch.num_docs)]
    while pending:
        start, stop = pending.pop()
        part = batch if (start, stop) == (0, batch.num_docs) else batch.slice(start, stop)
        try:
            parts.append((start, stop, process(part)))
        except Exception as error:
            if is_retryable(error) or isinstance(error, DatapipeError) or stop == start:
                raise
            if stop - start == 1:
                failed.append(FailedDocument(row=start, error=_end_of_traceback(error)))
                continue
            middle = (start + stop) // 2
            pending += [(middle, stop), (start, middle)]
    return Guarded(parts=tuple(parts), failed=tuple(failed))


def _end_of_traceback(error: Exception) -> str:
    text = "".join(traceback.format_exception(error))[-_MOST_ERROR_CHARS:]
    return text.encode("utf-8", "backslashreplace").decode()  # a message may quote half a surrogate pair
