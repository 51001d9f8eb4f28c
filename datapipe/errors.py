"""The three kinds of failure, told apart by what the reader should do next.

    UserError            the user's input is wrong: exit status 2, never retried
    DatapipeError        the run failed: exit status 1
    RETRYABLE            the infrastructure failed (memory, disk, network, a lost worker): retried generously

Anything else that a task raises is the task's own fault: retried a few times, then fatal.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class DatapipeError(Exception):
    """Something a person must hear about: what was found, what was expected, what to do next."""


class UserError(DatapipeError):
    """The user's mixture, options or input files are wrong. The command line exits with status 2."""


class SnapshotError(UserError):
    """A snapshot, or a loader state, is not what it is said to be."""


class CorruptionError(DatapipeError):
    """Bytes on disk differ from what was committed."""


RETRYABLE: tuple[type[BaseException], ...] = (MemoryError, OSError)
"""What the infrastructure does to a task. `TimeoutError` and `ConnectionError` are kinds of `OSError`."""


def is_retryable(error: BaseException) -> bool:
    """Whether `error` is the infrastructure's fault, so that the same task may well succeed elsewhere."""
    return isinstance(error, RETRYABLE) and not isinstance(error, UserError)


def suggest(found: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?" for the known name nearest to `found`; empty when none is near."""
    near = get_close_matches(found, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""
