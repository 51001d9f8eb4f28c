"""Which exceptions of a stage are breaches of its contract, and how the stage's author is told of one.

    exception ─▶ a breach?  no  ─▶ the document's, or the infrastructure's (`guard.py`)
                            yes ─▶ StageError: the stage, what it did, file and line of its code, input file and position

A breach does not depend on luck: another attempt at the same documents ends in the same way, so it is told at once.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any

from datapipe.errors import DatapipeError, StageError, is_retryable
from datapipe.stage.base import Stage

_CODE_FAULTS = (NotImplementedError, NameError, ImportError, SyntaxError, GeneratorExit)
"""Faults of code that no document can cause."""

_NO_SUCH_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_READ_ONLY = ("is read-only", "readonly array", "WRITEABLE flag")
"""Parts of the messages of NumPy, Cython and numba for a write to a read-only array."""


def breach_of(error: BaseException) -> str | None:
    """How an exception breaks the contract of stages, in a sentence without its end; None if it does not."""
    if isinstance(error, StageError):
        return str(error).rstrip(".")
    if isinstance(error, DatapipeError):
        return None
    if isinstance(error, SystemExit):
        return f"it ends the process by sys.exit({error.code!r}). Raise an exception for a document that it cannot process"
    raised = f"{type(error).__name__}: {error}".rstrip(".: ")
    if isinstance(error, Exception) and not is_retryable(error) and any(words in str(error) for words in _READ_ONLY):
        return f"it writes into the batch, which is read-only and belongs to all stages ({raised}). Write into a copy"
    if isinstance(error, _CODE_FAULTS) or (isinstance(error, _NO_SUCH_FILE) and not _is_ours(error)):
        return f"it raises {raised}"
    return None


def _is_ours(error: BaseException) -> bool:
    """Whether datapipe itself, called by the stage, raised the exception."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and str(frames[-1][0].f_globals.get("__name__", "")).partition(".")[0] == "datapipe"


def stage_error(
    name: str, stage: Stage, method: Callable[..., Any], error: BaseException, what: str, document: str
) -> StageError:
    """The error that tells a breach.

    Args:
        name: of the stage in the run.
        method: of the stage, which the engine called.
        error: what ended the call.
        what: the breach, as `breach_of` words it.
        document: "a.jsonl at 120", or "" where no document is involved.
    """
    found_with = f" Found with the document {document}." if document else ""
    return StageError(
        f"stage {name} breaks its contract: {what}. The code is {_line(stage, method, error)}.{found_with} Correct the stage; "
        "`datapipe/stage/base.py` says what it gets and must return."
    )


def _line(stage: Stage, method: Callable[..., Any], error: BaseException) -> str:
    """ "/home/me/own.py:17, in process": the deepest line of the stage's own files that raised, or the first of the method."""
    own = {code_file for kind in type(stage).__mro__ if (code_file := _file_of(kind))}
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    for code, line in reversed(frames):
        if code.co_filename in own:
            return f"{code.co_filename}:{line}, in {code.co_name}"
    code = getattr(inspect.unwrap(method), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}, {code.co_name}" if code is not None else type(stage).__module__


def _file_of(kind: type) -> str | None:
    """The file of a class that belongs to a stage, not to its base classes in datapipe or a library."""
    if not issubclass(kind, Stage) or kind.__module__.startswith("datapipe."):
        return None
    try:
        return inspect.getfile(kind)
    except (OSError, TypeError):  # defined in an interactive session
        return None


def error_without_document(name: str, stage: Stage, method: Callable[..., Any], error: BaseException) -> StageError | None:
    """The error to tell where `method` raised for no document in particular, as `open` and `reduce` do; None: another attempt
    may succeed.

    Every exception of the code is the stage's. Failures of the infrastructure are not, and neither is RuntimeError, which
    libraries raise for devices that are busy or out of memory.
    """
    what = breach_of(error)
    if what is None and not _may_pass(error):
        what = f"it raises {type(error).__name__}: {error}".rstrip(".: ")
    return None if what is None else stage_error(name, stage, method, error, what, "")


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, KeyboardInterrupt):
        return True
    is_device = isinstance(error, RuntimeError) and not isinstance(error, RecursionError)
    return is_device or is_retryable(error) or isinstance(error, DatapipeError)
