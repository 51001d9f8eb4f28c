"""The contract of engines: they take tasks, return the result of each attempt, in any order, and report its activity.

They decide one thing: an attempt that is silent longer than allowed is ended, and fails as a stall.
"""

import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from datapipe.credentials import masked
from datapipe.dataclass import dataclass
from datapipe.errors import CorruptionError, DatapipeError, StageError, StageMemoryError, UserError, is_retryable
from datapipe.machine.activity import Activity
from datapipe.records.outputs import Record
from datapipe.steps.kind import Task
from datapipe.storage.outages import Outage, OutageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """The activity of an attempt, and the process of its worker as its supervisor sees it."""

    attempt: str
    task: str  # for display: its step and the first digits of its fingerprint
    node: str = ""  # for display; empty while it waits for a node
    activity: Activity | None = None
    # silent_s, idle_s: seconds since its last report; since it reported anything or used a CPU
    silent_s: float = 0.0
    idle_s: float = 0.0
    memory_bytes: int = 0  # resident memory of the worker; 0 where unknown
    is_stopped: bool = False  # by SIGSTOP or a debugger

    @property
    def step(self) -> str:
        return self.task.partition(" (")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why an attempt failed, in a form that travels between processes."""

    # "user", "stage" and "damage" (never retried), "task" and "memory" (retried a few times), "infrastructure" (retried
    # generously), "node" (run elsewhere), "crash" (its work ended the process) and "stall" (it was silent for too long)
    kind: str
    message: str
    details: str = ""  # the traceback, for a log
    # of a lost worker: "SIGSEGV", "exit status 3"; "OOM" where the kernel has killed a process for memory
    # meanwhile; "memory" where the worker exceeded its limit
    cause: str = ""
    # activity, memory_bytes: of a lost worker: its last ones
    activity: Activity | None = None
    memory_bytes: int = 0
    outage: Outage | None = None  # of a disk or store, which all tasks wait for together


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """An attempt at a task, and once it has ended, a record or a failure. `node` is for display."""

    task: Task
    attempt: str
    node: str = ""
    record: Record | None = None
    failure: Failure | None = None


class Engine(Protocol):
    """Workers on this or other machines. Used by one thread, the driver's."""

    @property
    def slots(self) -> int:
        """Tasks that run at once. The driver submits at most twice as many."""
        ...

    def submit(self, task: Task, attempt: str) -> None: ...

    def cancel(self, attempt: str) -> None:
        """Ends an attempt, which `next_attempt` does not return."""
        ...

    def next_attempt(self, timeout_s: float) -> Attempt | None:
        """Waits for the next attempt to end; None if none ends in time."""
        ...

    def demand(self, waiting: Iterable[Task]) -> None:
        """Learns which tasks wait beside the submitted ones, where its machines may become more."""

    def messages(self) -> Sequence[Message]:
        """The activity of each running attempt, as far as known."""
        ...

    def waits_for(self) -> str:
        """What all tasks wait for on its machines, in words; empty for nothing."""
        return ""

    def take_lines(self) -> Sequence[str]:
        """Lines about its machines for the user, since the last call."""
        return ()

    def close(self) -> None:
        """Stops all workers at once. Their running tasks are not committed."""
        ...


_KINDS = {StageMemoryError: "memory", StageError: "stage", UserError: "user", CorruptionError: "damage"}


def failure_of(error: BaseException) -> Failure:
    is_outage = isinstance(error, OutageError) or is_retryable(error)
    kind = "infrastructure" if is_outage else "task" if isinstance(error, Exception) else "stage"  # SystemExit and its like
    kind = next((known for of, known in _KINDS.items() if isinstance(error, of)), kind)
    notes = " ".join(getattr(error, "__notes__", []))
    name = "" if isinstance(error, DatapipeError) else f"{type(error).__name__}: "
    message = f"{name}{error}" + (f" ({notes})" if notes else "")
    outage = error.outage if isinstance(error, OutageError) else None
    details = masked("".join(traceback.format_exception(error)))
    return Failure(kind=kind, message=masked(message), details=details, outage=outage)


@contextmanager
def no_exit() -> Iterator[None]:
    """Raises StageError in place of `sys.exit`, which only the code of a stage may have called."""
    try:
        yield
    except SystemExit as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise StageError(
            f"the code of a stage ends the process by sys.exit({error.code!r}): {frame.filename}:{frame.lineno}, in "
            f"{frame.name}. Raise an exception instead."
        ) from error
