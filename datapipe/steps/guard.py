"""Runs a stage on a batch so that a document that makes it raise costs that document alone.

    stage(batch) raises ─▶ halves ─▶ … ─▶ the failing document, alone ─▶ quarantine, with the error
                        │           └─▶ all others, as if it were not there
                        └─▶ a breach of the contract ─▶ the smallest part that shows it ─▶ StageError with the line of code

    stage(batch) crashes ─▶ the next attempt: one by one ─▶ the last published document ─▶ quarantine, or the end of the run

Nothing survives a crash of a native library. So each call's documents are published first
(`machine/activity.py`), and the driver's conclusions from a crash come back with the task
(`RetryHints`).

A stage treats each document by itself, so the joined results of parts are the result of the whole.
Failures of the infrastructure (memory, disk) are never blamed on a document. Where memory does not
suffice for a batch, it may for its halves; where it does not for one document, StageMemoryError
names the document.

A breach does not depend on luck: another attempt at the same documents ends in the same way. Where
the code of a stage raises OSError:

| OSError                                                           | follows                              |
|-------------------------------------------------------------------|--------------------------------------|
| full disk; a disk, store or service that does not answer          | the run waits (`engine/retries.py`) |
| the machine is short of memory, processes, open files (`_SCARCE`) | another attempt                      |
| any other with a code, or one of `_NO_SUCH_FILE`                  | a breach                             |
| without a code, as libraries raise for bad content                | the document's fault                 |

An OSError of datapipe's own code, called by a stage, is never the stage's.
"""

import errno
import inspect
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from datapipe.credentials import masked
from datapipe.dataclass import dataclass
from datapipe.errors import DatapipeError, StageError, StageMemoryError, is_retryable
from datapipe.machine import activity
from datapipe.machine.memory import memory_in_words
from datapipe.quantities import size
from datapipe.stage.base import Stage
from datapipe.stage.documents import DocumentBatch
from datapipe.storage.outages import outage_of

Result = TypeVar("Result")

_MOST_ERROR_CHARS = 4000
_CODE_FAULTS = (NotImplementedError, NameError, ImportError, SyntaxError)
"""Faults of code that no document can cause."""

_NO_SUCH_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_SCARCE = frozenset(
    {errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EBUSY, errno.EINTR, errno.ENOBUFS, errno.ETXTBSY}
)
"""Codes of what a machine lacks for a while."""
_READ_ONLY = ("is read-only", "readonly array", "WRITEABLE flag")
"""Parts of the messages of NumPy, Cython and numba for a write to a read-only array."""

Failed = dict[int, str]
"""Documents that made a stage raise or crash: by row in the batch, the end of the traceback, or the cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryHints:
    """What earlier attempts at a map task have shown about its documents."""

    # (stage, key of the first document) of batches in which a worker crashed or stalled. The documents of
    # such a batch go to the stage one by one.
    one_by_one: tuple[tuple[str, bytes], ...] = ()
    # (stage, key, cause) of documents that crash a worker, "SIGSEGV"; they go to quarantine
    known_crashes: tuple[tuple[str, bytes, str], ...] = ()
    # the most documents that a stage gets in one call, where memory did not suffice for more
    most_docs: int | None = None


NO_HINTS = RetryHints()


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    name: str  # of the stage in the run
    stage: Stage
    method: Callable[..., Any]  # of the stage, which the engine calls for a batch
    place_of: Callable[[DocumentBatch], str]  # the name of the first document of a batch: "web/a.jsonl:120"
    hints: RetryHints = NO_HINTS  # of earlier attempts at the task; none for almost every task

    def run(
        self, process: Callable[[DocumentBatch], Result], batch: DocumentBatch
    ) -> tuple[list[tuple[DocumentBatch, Result]], Failed]:
        """Runs `process`, halving the batch where it raises. Returns parts of the batch without the documents that failed,
        each with its result, and the documents that did, in order. Raises StageError for a breach of the contract,
        StageMemoryError, and errors that are no document's fault, with a note of the stage and the document."""
        parts: list[tuple[DocumentBatch, Result]] = []
        pending, failed = ([(0, batch.num_docs)], Failed()) if self.hints == NO_HINTS else self._planned_spans(batch)
        while pending:
            start, stop = pending.pop()
            part = batch if (start, stop) == (0, batch.num_docs) else batch.slice(start, stop)
            _publish(part)
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

    def _planned_spans(self, batch: DocumentBatch) -> tuple[list[tuple[int, int]], Failed]:
        """The spans of rows to process, the last one first, and the documents that are known to crash the stage."""
        crashes = {key: cause for name, key, cause in self.hints.known_crashes if name == self.name}
        keys = batch.keys.to_pylist()
        failed = {
            row: f"the stage crashed on this document: its process was ended by {crashes[key]}"
            for row, key in enumerate(keys)
            if key in crashes
        }
        if not {key for name, key in self.hints.one_by_one if name == self.name}.isdisjoint(keys):
            cuts = np.arange(batch.num_docs + 1)
        else:
            step = self.hints.most_docs or max(1, batch.num_docs)
            cuts = np.unique([*range(0, batch.num_docs, step), *failed, *(row + 1 for row in failed), batch.num_docs])
        spans = [(start, stop) for start, stop in pairwise(cuts.tolist()) if start not in failed]
        return spans[::-1], failed

    def _raise_unless_isolated(
        self, process: Callable[[DocumentBatch], Any], part: DocumentBatch, error: BaseException
    ) -> None:
        what = breach_of(error, self.stage)
        if what is not None:
            document = self._smallest_breach(process, part)
            raise stage_error(self.name, self.stage, self.method, error, what, document) from error
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
        if isinstance(error, MemoryError) or _is_about_content(error, self.stage):
            return True
        return not (is_retryable(error) or outage_of(error, ""))

    def _smallest_breach(self, process: Callable[[DocumentBatch], Any], batch: DocumentBatch) -> str:
        """The name of the smallest part of the batch, found by halving, in which the stage breaks its contract."""
        while batch.num_docs > 1:
            middle = batch.num_docs // 2
            halves = batch.slice(0, middle), batch.slice(middle, batch.num_docs)
            half = next((half for half in halves if self._is_breached(process, half)), None)
            if half is None:
                break
            batch = half
        place, others = self.place_of(batch), batch.num_docs - 1
        return f"{place} and the {others:,} after it, together" if others else place

    def _is_breached(self, process: Callable[[DocumentBatch], Any], batch: DocumentBatch) -> bool:
        try:
            process(batch)
        except BaseException as error:
            is_breach = breach_of(error, self.stage) is not None
            if isinstance(error, KeyboardInterrupt) and not is_breach:
                raise
            return is_breach
        return False


def _publish(part: DocumentBatch) -> None:
    if activity.is_published() and part.num_docs:
        ids = part.record.column("id")
        activity.on_documents(ids[0].as_py(), part.keys[0].as_py(), part.num_docs, part.text_bytes)


def _end_of_traceback(error: BaseException, where: str) -> str:
    """The end of the traceback; its last line is the message, and the line of the stage's code."""
    text = masked("".join(traceback.format_exception(error)))[-_MOST_ERROR_CHARS:].rstrip()
    return f"{text} ({where})".encode("utf-8", "backslashreplace").decode()  # a message may quote half a surrogate pair


@contextmanager
def breaches_raised(name: str, stage: Stage, method: Callable[..., Any]) -> Iterator[None]:
    """Raises StageError where `method` of a stage raises for no document in particular, as `open` and `reduce` do. Failures of
    the infrastructure pass, and so does RuntimeError, which libraries raise for devices that are busy or out of memory."""
    try:
        yield
    except MemoryError as error:
        raise memory_error(name, stage, method, error) from error
    except BaseException as error:
        what = breach_of(error, stage)
        if what is None and not _may_pass(error, stage):
            what = f"it raises {type(error).__name__}: {error}".rstrip(".: ")
        if what is None:
            raise
        raise stage_error(name, stage, method, error, what) from error


def _may_pass(error: BaseException, stage: Stage) -> bool:
    if isinstance(error, KeyboardInterrupt | DatapipeError):
        return True
    if isinstance(error, RuntimeError):
        return not isinstance(error, RecursionError)
    return is_retryable(error) and not _is_about_content(error, stage)


def breach_of(error: BaseException, stage: Stage) -> str | None:
    """How an exception of a stage breaks the contract of stages, in a sentence without its end; None if it does not."""
    if isinstance(error, StageError):
        return str(error).rstrip(".")
    is_ctrl_c = isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if isinstance(error, DatapipeError) or is_ctrl_c:  # workers ignore SIGINT, so there the stage has raised it
        return None
    if isinstance(error, SystemExit):
        return f"it ends the process by sys.exit({error.code!r}). Raise an exception for a document that it cannot process"
    raised = f"{type(error).__name__}: {error}".rstrip(".: ")
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return f"it raises {raised}, which ends programs. Raise an Exception for a document that it cannot process"
    if not is_retryable(error) and any(words in str(error) for words in _READ_ONLY):
        return f"it writes into the batch, which is read-only and belongs to all stages ({raised}). Write into a copy"
    if isinstance(error, _CODE_FAULTS) or (isinstance(error, OSError) and _is_refused(error, stage)):
        return f"it raises {raised}"
    return None


def _is_refused(error: OSError, stage: Stage) -> bool:
    has_reason = isinstance(error, _NO_SUCH_FILE) or error.errno is not None
    may_pass = error.errno in _SCARCE or outage_of(error, "") is not None
    return has_reason and not may_pass and _is_of_stage(error, stage)


def _is_about_content(error: BaseException, stage: Stage) -> bool:
    """Whether an exception is an OSError without a code, which libraries raise for content that they cannot read."""
    return isinstance(error, OSError) and error.errno is None and outage_of(error, "") is None and _is_of_stage(error, stage)


def _is_of_stage(error: BaseException, stage: Stage) -> bool:
    """Whether the code of a stage, or a library that it called, raised an exception: no code of datapipe that it called."""
    own = _modules_of(stage)
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        if module in own:
            return True
        if module.partition(".")[0] == "datapipe":
            return False
    return False


def _modules_of(stage: Stage) -> set[str]:
    """The modules of a stage's class and its bases, without those of datapipe and of libraries."""
    kinds = (kind for kind in type(stage).__mro__ if issubclass(kind, Stage))
    return {kind.__module__ for kind in kinds if not kind.__module__.startswith("datapipe.")}


def stage_error(
    name: str, stage: Stage, method: Callable[..., Any], error: BaseException, what: str, document: str = ""
) -> StageError:
    """The error of a stage (`name` in the run) that breaks its contract: `what` is the breach in
    the words of `breach_of`, `document` "" where none is involved."""
    found_with = f" Found with the document {document}." if document else ""
    contract = next(kind.__module__ for kind in type(stage).__mro__ if kind.__module__.startswith("datapipe."))
    return StageError(
        f"stage {name} breaks its contract: {what}. The code is {code_line(stage, method, error)}.{found_with} Correct the "
        f"stage; `{contract.replace('.', '/')}.py` documents what it gets and must return."
    )


def code_line(stage: Stage, method: Callable[..., Any], error: BaseException) -> str:
    """ "/home/me/own.py:17, in process": the deepest line of the stage's modules that raised, or the first of the method."""
    own = _modules_of(stage)
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_globals.get("__name__") in own:
            return f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_name}"
    code = getattr(inspect.unwrap(method), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}, in {code.co_name}" if code is not None else type(stage).__module__


def memory_error(
    name: str, stage: Stage, method: Callable[..., Any], error: MemoryError, document: str = "", text_bytes: int = 0
) -> StageMemoryError:
    """The error of a call for which memory does not suffice: on `document`, of `text_bytes` of text, or on none."""
    subject = f"one document, {document}, of {size(text_bytes)} of text" if document else f"`{method.__name__}`"
    raised = f"{type(error).__name__}: {error}".rstrip(".: ")
    figures = memory_in_words()
    return StageMemoryError(
        f"stage {name}: memory does not suffice for {subject}: {raised}. The code is {code_line(stage, method, error)}"
        f"{'; ' + figures if figures else ''}. Run fewer --workers, or correct the stage if no machine has what it asks for."
    )
