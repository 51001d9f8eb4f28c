"""Which exceptions of a stage are breaches of its contract, and how the stage's author is told of one.

    exception ─▶ a breach?  no  ─▶ the document's, or the infrastructure's (`guard.py`)
                            yes ─▶ StageError: the stage, what it did, file and line of its code, input file and position

A breach does not depend on luck: another attempt at the same documents ends in the same way, so it is told at once. Where the
code of a stage raises OSError:

| OSError                                                           | follows                              |
|-------------------------------------------------------------------|--------------------------------------|
| full disk; a disk, store or service that does not answer          | the run waits (`engine/retries.py`) |
| the machine is short of memory, processes, open files (`_SCARCE`) | another attempt                      |
| any other with a code, or one of `_NO_SUCH_FILE`                  | a breach                             |
| without a code, as libraries raise for bad content                | the document's fault                 |

An OSError of datapipe's own code, called by a stage, is never the stage's.
"""

from __future__ import annotations

import errno
import inspect
import signal
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

from datapipe.errors import DatapipeError, StageError, StageMemoryError, is_retryable
from datapipe.machine.memory import memory_in_words
from datapipe.quantities import size
from datapipe.stage.base import Stage
from datapipe.storage.outages import outage_of

_CODE_FAULTS = (NotImplementedError, NameError, ImportError, SyntaxError)
"""Faults of code that no document can cause."""

_NO_SUCH_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_SCARCE = frozenset(
    {errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EBUSY, errno.EINTR, errno.ENOBUFS, errno.ETXTBSY}
)
"""Codes of what a machine lacks for a while."""
_READ_ONLY = ("is read-only", "readonly array", "WRITEABLE flag")
"""Parts of the messages of NumPy, Cython and numba for a write to a read-only array."""


def breach_of(error: BaseException, stage: Stage) -> str | None:
    """How an exception of a stage breaks the contract of stages, in a sentence without its end; None if it does not."""
    if isinstance(error, StageError):
        return str(error).rstrip(".")
    if isinstance(error, DatapipeError) or (isinstance(error, KeyboardInterrupt) and _may_be_ctrl_c()):
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


def _may_be_ctrl_c() -> bool:
    """Whether a KeyboardInterrupt may come from the keyboard. Workers ignore SIGINT, so there the stage has raised it."""
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def _is_refused(error: OSError, stage: Stage) -> bool:
    """Whether the system refuses what the code of a stage asks for, and would refuse it again."""
    has_reason = isinstance(error, _NO_SUCH_FILE) or error.errno is not None
    may_pass = error.errno in _SCARCE or outage_of(error, "") is not None
    return has_reason and not may_pass and is_of_stage(error, stage)


def is_of_stage(error: BaseException, stage: Stage) -> bool:
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
    name: str, stage: Stage, method: Callable[..., Any], error: BaseException, what: str, document: str
) -> StageError:
    """The error that tells a breach.

    Args:
        name: of the stage in the run.
        method: of the stage, which the engine called.
        error: what ended the call.
        what: the breach, as `breach_of` words it.
        document: "web/a.jsonl:120", or "" where no document is involved.
    """
    found_with = f" Found with the document {document}." if document else ""
    contract = next(kind.__module__ for kind in type(stage).__mro__ if kind.__module__.startswith("datapipe."))
    return StageError(
        f"stage {name} breaks its contract: {what}. The code is {code_line(stage, method, error)}.{found_with} Correct the "
        f"stage; `{contract.replace('.', '/')}.py` says what it gets and must return."
    )


def code_line(stage: Stage, method: Callable[..., Any], error: BaseException) -> str:
    """ "/home/me/own.py:17, in process": the deepest line of the stage's modules that raised, or the first of the method."""
    own = _modules_of(stage)
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_globals.get("__name__") in own:
            return _place(frame.f_code, line)
    code = getattr(inspect.unwrap(method), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}, {code.co_name}" if code is not None else type(stage).__module__


def _place(code: CodeType, line: int) -> str:
    return f"{code.co_filename}:{line}, in {code.co_name}"


def memory_error(
    name: str, stage: Stage, method: Callable[..., Any], error: MemoryError, document: str = "", text_bytes: int = 0
) -> StageMemoryError:
    """The error of a call of a stage for which memory does not suffice.

    Args:
        document: "web/a.jsonl:120", of `text_bytes` of text; "" where the call is on no document.
    """
    subject = f"one document, {document}, of {size(text_bytes)} of text" if document else f"`{method.__name__}`"
    raised = f"{type(error).__name__}: {error}".rstrip(".: ")
    figures = memory_in_words()
    return StageMemoryError(
        f"stage {name}: memory does not suffice for {subject}: {raised}. The code is {code_line(stage, method, error)}"
        f"{'; ' + figures if figures else ''}. Run fewer --workers, or correct the stage if no machine has what it asks for."
    )


def error_without_document(name: str, stage: Stage, method: Callable[..., Any], error: BaseException) -> StageError | None:
    """The error to tell where `method` raised for no document in particular, as `open` and `reduce` do; None: another attempt
    may succeed.

    Every exception of the code is the stage's. Failures of the infrastructure are not, and neither is RuntimeError, which
    libraries raise for devices that are busy or out of memory.
    """
    if isinstance(error, MemoryError):
        return memory_error(name, stage, method, error)
    what = breach_of(error, stage)
    if what is None and not _may_pass(error, stage):
        what = f"it raises {type(error).__name__}: {error}".rstrip(".: ")
    return None if what is None else stage_error(name, stage, method, error, what, "")


def _may_pass(error: BaseException, stage: Stage) -> bool:
    if isinstance(error, KeyboardInterrupt | DatapipeError):
        return True
    if isinstance(error, RuntimeError):
        return not isinstance(error, RecursionError)
    return is_retryable(error) and not is_about_content(error, stage)


def is_about_content(error: BaseException, stage: Stage) -> bool:
    """Whether an exception is an OSError without a code, which libraries raise for content that they cannot read."""
    return isinstance(error, OSError) and error.errno is None and outage_of(error, "") is None and is_of_stage(error, stage)
