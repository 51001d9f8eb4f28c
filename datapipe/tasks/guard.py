"""Running a stage on a batch so that one document that makes it raise costs that document alone.

    stage(batch) raises ─▶ halves ─▶ … ─▶ the culprit, alone ─▶ quarantine, with the error
                                    └─▶ all others, as if it had not been there

A stage treats each document by itself, so the results of halves joined are the result of the whole; the conformance suite
of the stages holds every stage to it. What the infrastructure does (memory, disk) is never blamed on a document.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from datapipe.errors import DatapipeError, is_retryable
from datapipe.stage.documents import DocumentBatch

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """A document that made a stage raise: its row in the batch, and the end of the traceback."""

    row: int
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarded(Generic[Result]):
    """Results over the rows that did not raise, as consecutive (start, stop, result) parts, and those that did."""

    parts: tuple[tuple[int, int, Result], ...]
    culprits: tuple[Culprit, ...]


def guarded(process: Callable[[DocumentBatch], Result], batch: DocumentBatch) -> Guarded[Result]:
    """Runs `process`, splitting the batch where it raises. Raises only what is not a document's fault."""
    parts: list[tuple[int, int, Result]] = []
    culprits: list[Culprit] = []
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
                culprits.append(Culprit(row=start, error=_tail(error)))
                continue
            middle = (start + stop) // 2
            pending += [(middle, stop), (start, middle)]
    return Guarded(parts=tuple(parts), culprits=tuple(culprits))


def _tail(error: Exception) -> str:
    text = "".join(traceback.format_exception(error))[-4000:]
    return text.encode("utf-8", "backslashreplace").decode()  # a message may quote half a surrogate pair
