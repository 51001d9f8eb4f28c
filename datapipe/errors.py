"""The kinds of failure, which differ in what happens next.

    UserError            what the user gave is wrong: exit status 2, never retried
    DamagedInputError    an input file cannot be read at all: counted (`max_unreadable_files`), then as UserError
    UnsplittableInputError   a range of an input file does not end where the next one begins: the file is read in one task
    StageError           the code of a stage is wrong: exit status 1, never retried
    EncodingError        the tokenizer cannot encode a text: the document is quarantined
    StageMemoryError     memory does not suffice for one call of a stage: exit status 1, retried a few times
    DatapipeError        the run failed: exit status 1
    RETRYABLE            the infrastructure failed (memory, disk, network, a lost worker): retried generously

Any other exception of a task is a fault of the task: it is retried a few times, then the run fails.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from datapipe.credentials import masked


class DatapipeError(Exception):
    """An error for the user: what was found, what was expected, and what to do next. It holds no credentials."""

    def __init__(self, message: str = "") -> None:
        super().__init__(masked(message))


class UserError(DatapipeError):
    """The user's mixture, options or input files are wrong. The command exits with status 2."""


class EndlessError(UserError, TypeError):
    """The length of something endless was asked for. It is a TypeError, as `list` and `len` expect."""


class DamagedInputError(UserError):
    """Nothing of an input file can be read: it is damaged, cut off, or not of the format that its name says."""


class UnsplittableInputError(DatapipeError):
    """An input file was cut into ranges at which it cannot be cut. The run reads the file in one task and warns."""


class StageError(DatapipeError):
    """A stage breaks its contract, or its code fails for a reason other than a document. Another attempt fails, too."""


class EncodingError(DatapipeError):
    """A library that encodes text raised an error, or panicked, for a text."""


class StageMemoryError(StageError):
    """Too little memory for a call of a stage that cannot be split further: on one document, or on rows. It may succeed
    later."""


class SnapshotError(UserError):
    """A snapshot or a loader state is invalid, or does not belong to the other."""


class CorruptionError(DatapipeError):
    """Bytes on disk differ from the bytes that were committed."""


class CutShortError(CorruptionError):
    """A file lost its end while it was open."""


class DroppedRowsWarning(UserWarning):
    """Rows at the end of a run are left out, because they make no whole batch."""


RETRYABLE: tuple[type[BaseException], ...] = (MemoryError, OSError)
"""Failures of the infrastructure. `TimeoutError` and `ConnectionError` are subclasses of `OSError`."""


def is_retryable(error: BaseException) -> bool:
    """Whether the infrastructure caused `error`, so that the same task may succeed elsewhere."""
    return isinstance(error, RETRYABLE) and not isinstance(error, UserError)


def exit_status_of(problem: BaseException | None) -> int:
    """The exit status of a command that a problem ended; 0 for none."""
    if problem is None:
        return 0
    return 130 if isinstance(problem, KeyboardInterrupt) else 2 if isinstance(problem, UserError) else 1


def suggest(name: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?" with the known name nearest to `name`; empty if none is near."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""
