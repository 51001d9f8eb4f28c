"""The events of a run, as frozen records: one stream for everything that shows or records the run.

    driver, run, follower ─▶ Event ─▶ RunState ─▶ terminal, work/status.json, Prometheus
                                   └▶ terminal, log of JSON, logger of a program

    RunStarted ─▶ Planned ─▶ Started ┬▶ Failed ─▶ Retried ─▶ Started …        ─▶ Planned … ─▶ RunEnded
                     Progress, Said  ├▶ Cancelled: another attempt ended first
                                     └▶ Committed, with the others of its commit

Events come from one thread, in order. Each attempt starts once, and ends once unless the run ends before. An attempt that is
shorter than the time between two updates of the driver starts when it ends.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from datapipe.engine.protocol import Attempt, Message
from datapipe.quantities import counted
from datapipe.steps.estimate import StepCost
from datapipe.steps.kind import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStarted:
    """A run begins, without anything from a run before."""

    mixture: str
    output: str
    engine: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnded:
    """A run ends, by an error (`problem`) or not.

    Attributes:
        snapshot: the fingerprint of the published snapshot; empty for none.
        is_new: whether that is a new snapshot of its output. That of an addition is published later.
    """

    problem: BaseException | None = None
    snapshot: str = ""
    is_new: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A new plan, at the start and whenever a step ends. `costs` estimate each step on one core."""

    plan: Plan
    costs: Mapping[str, StepCost]


@dataclass(frozen=True, slots=True)
class Started:
    """An attempt was found running, or has ended between two updates."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Another attempt at the task ended first."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Failed:
    attempt: Attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class Retried:
    """The task of a failed attempt goes on; the text gives the failure and what follows."""

    attempt: Attempt
    text: str

    def __str__(self) -> str:
        return f"{self.attempt.task.label}: {self.text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """A commit, which took `seconds`. `lags_s` are the times from the end of each attempt to it."""

    attempts: Sequence[Attempt]
    lags_s: Sequence[float]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The state of the engine, a few times a second, and once when the driver ends.

    Attributes:
        messages: the activity of each running attempt.
        slots: tasks that the engine runs at once.
        queued: tasks that could run and wait for a slot, here or in the engine.
        is_last: whether the driver has ended.
    """

    messages: Sequence[Message] = ()
    slots: int = 0
    queued: int = 0
    is_last: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocked:
    """All tasks wait for a disk or a store, which `by` names, until the next commit."""

    by: str


@dataclass(frozen=True, slots=True)
class Said:
    """A line for the user."""

    line: str


@dataclass(frozen=True, slots=True)
class Looked:
    """A follower has listed the sources."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Why a follower adds nothing now, when that has changed."""

    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Adding:
    """A run into `output` begins, which makes this part of these sources, of so many files."""

    part: int
    sources: Sequence[str]
    files: int
    output: str

    def __str__(self) -> str:
        return f"adding {counted(self.files, 'new file')} as part {self.part} of {', '.join(self.sources)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A snapshot that follows another one: tokens more than before, documents taken down since."""

    snapshot: str
    tokens: int
    taken_down: int
    is_addition: bool

    def __str__(self) -> str:
        begin = f"published snapshot {self.snapshot[:12]}"
        if self.is_addition:
            return f"{begin} with {self.tokens:,} tokens more. Trainers move with loader.advance()"
        return f"{begin} without {counted(self.taken_down, 'document')} taken down"


OfAttempt = Started | Cancelled | Failed | Retried
OfFollower = Looked | Waiting | Adding | Published
Event = RunStarted | RunEnded | Planned | OfAttempt | Committed | Progress | Blocked | Said | OfFollower
Observer = Callable[[Event], None]


def all_of(observers: Sequence[Observer]) -> Observer:

    def observe(event: Event) -> None:
        for observer in observers:
            observer(event)

    return observe


def line_of(event: Event) -> str:
    """The line of an event for people; empty for none."""
    match event:
        case Said():
            return event.line
        case Retried():
            return f"retrying: {event}"
        case Waiting():
            return event.what
        case Adding() | Published():
            return str(event)
        case _:
            return ""
