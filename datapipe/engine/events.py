"""The events of a run, as frozen records: one stream for everything that shows or records the run.

    driver, run, follower ─▶ Event ─▶ RunState ─▶ terminal, work/status.json, Prometheus
                                   └▶ terminal, log of JSON, logger of a program

    RunStarted ─▶ Planned ─▶ Started ┬▶ Failed ─▶ Retried ─▶ Started …        ─▶ Planned … ─▶ RunEnded
                     Progress        ├▶ Cancelled
                                     └▶ Committed, with the others of its commit

Events come from one thread, in order. Each attempt starts once, and ends once unless the run ends before. An attempt that is
shorter than the time between two updates of the driver starts when it ends.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from datapipe.dataclass import asdict, dataclass
from datapipe.engine.protocol import Attempt, Message
from datapipe.machine.json_log import JsonLog
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
    """A run ends, by an error (`problem`) or not."""

    problem: BaseException | None = None
    snapshot: str = ""  # the fingerprint of the published snapshot; empty for none
    is_new: bool = False  # whether that is a new snapshot of its output


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A new plan, at the start and whenever a step ends. `costs` estimate each step on one core."""

    plan: Plan
    costs: Mapping[str, StepCost]


@dataclass(frozen=True, slots=True)
class AttemptEvent:
    """An attempt has started (it was found running, or ended between two updates), has failed, or was cancelled: another
    attempt at the task ended first."""

    state: Literal["started", "failed", "cancelled"]
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
    """The state of the engine, a few times a second, and once when the driver ends."""

    messages: Sequence[Message] = ()  # the activity of each running attempt
    slots: int = 0  # tasks that the engine runs at once
    queued: int = 0  # tasks that could run and wait for a slot, here or in the engine
    waits_for: str = ""  # what all tasks wait for on the machines of the engine; empty for nothing
    is_last: bool = False  # whether the driver has ended


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocked:
    """All tasks wait for a disk or a store, which `by` names, until the next commit."""

    by: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A line for the user, such as a node that is gone."""

    line: str


@dataclass(frozen=True, slots=True)
class SourcesListed:
    """A follower has listed the sources."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Why a follower adds nothing now, when that has changed."""

    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Adding:
    """A run begins that adds so many files to these sources."""

    generation: int
    sources: Sequence[str]
    files: int

    def __str__(self) -> str:
        return f"adding {counted(self.files, 'new file')} as generation {self.generation} of {', '.join(self.sources)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A snapshot that follows another one: documents and tokens more than before, documents taken down since.
    `is_generation`: whether files were added; else documents were taken down, and its shards are those before."""

    snapshot: str
    documents: int = 0
    tokens: int = 0
    taken_down: int
    is_generation: bool

    def __str__(self) -> str:
        begin = f"published snapshot {self.snapshot[:12]}"
        if not self.is_generation:
            return f"{begin} without {counted(self.taken_down, 'document')} taken down"
        if not self.tokens:
            return f"{begin} with {counted(self.documents, 'document')} more"
        return f"{begin} with {self.tokens:,} tokens more.\nTrainers move with loader.advance()"


OfFollower = SourcesListed | Waiting | Adding | Published
Event = RunStarted | RunEnded | Planned | AttemptEvent | Retried | Committed | Progress | Blocked | UserMessage | OfFollower
Observer = Callable[[Event], None]


def all_of(observers: Sequence[Observer]) -> Observer:
    def observe(event: Event) -> None:
        for observer in observers:
            observer(event)

    return observe


def line_of(event: Event) -> str:
    """The line of an event for people; empty for none."""
    match event:
        case UserMessage():
            return event.line
        case Retried():
            return f"retrying: {event}"
        case Waiting():
            return event.what
        case Adding() | Published():
            return str(event)
        case _:
            return ""


class EventLog:
    """The log of `run --log-json`: a JSON object a line. watching/README.md lists them."""

    def __init__(self, log: JsonLog) -> None:
        self._write = log.write
        self._states: dict[str, str] = {}

    def observe(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._states = {}
                self._write("run_started", **asdict(event))
            case Planned():
                self._planned(event.plan)
            case AttemptEvent():
                self._write(f"task_{event.state}", **_facts(event.attempt))
            case Committed():
                for attempt in event.attempts:
                    self._write("task_committed", **_facts(attempt))
            case Retried():
                self._write("task_retried", **_facts(event.attempt) | {"message": event.text})
            case UserMessage():
                self._write("message", message=event.line)
            case RunEnded(problem=None):
                self._write("run_finished", snapshot=event.snapshot or None)
            case RunEnded(problem=KeyboardInterrupt()):
                self._write("run_stopped")
            case RunEnded():
                self._write("run_failed", kind=type(event.problem).__name__, message=str(event.problem))
            case Waiting() | Adding() | Published():
                self._write(type(event).__name__.lower(), **asdict(event))
            case _:
                pass

    def _planned(self, plan: Plan) -> None:
        self._write("planned", steps=len(plan.steps), tasks=sum(len(step.tasks or ()) for step in plan.steps))
        for step in plan.steps:
            state = "committed" if step.is_committed else "waiting" if step.tasks is None else "started"
            if state != self._states.get(step.id) and state != "waiting":
                self._write(f"step_{state}", step=step.id, title=step.title, tasks=len(step.tasks or ()))
            self._states[step.id] = state


def _facts(attempt: Attempt) -> dict[str, Any]:
    facts: dict[str, Any] = {"step": attempt.task.step, "task": attempt.task.fingerprint[:12], "attempt": attempt.attempt}
    if attempt.node:
        facts["node"] = attempt.node
    if attempt.failure is not None:
        facts |= {"kind": attempt.failure.kind, "message": attempt.failure.message}
    if attempt.record is not None:
        metrics = attempt.record.metrics
        counts = metrics.document_counts
        facts |= {"seconds": round(metrics.seconds, 3), "peak_bytes": metrics.peak_bytes}
        facts |= {"read": counts.read, "kept": counts.kept}
    return facts
