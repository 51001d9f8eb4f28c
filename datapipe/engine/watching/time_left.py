"""What is known of each step, and how long a run takes until all its steps are committed. Pure.

    planned step: tasks left × (seconds of its committed tasks, else the estimate) − the time of its running attempts
    step that waits for others: the estimate, of `datapipe plan`, at the pace of this run

The planned steps run at the same time, on all slots; the steps that wait come after them. The training of a tokenizer is one
task that runs alone. Rough like the estimate: slots that the last tasks of a step leave idle are not counted.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from datapipe.dataclass import dataclass, field
from datapipe.quantities import duration
from datapipe.steps.costs import StepCost
from datapipe.steps.kind import Step
from datapipe.steps.totals import Totals

_SLOWEST, _FASTEST = 3.0, 1 / 3
"""Limits of the pace: in a run of seconds, the start of processes would pass for slow work."""


@dataclass(kw_only=True, slots=True)
class StepState:
    step: Step
    planned: int | None  # tasks; None while the step waits for others
    totals: Totals = field(default_factory=Totals)  # of its committed tasks
    running_s: Sequence[float] = ()  # of each running attempt
    estimate: StepCost | None = None  # of all its tasks; None for none
    began: float | None = None  # when this process first saw its tasks, in seconds of `time.monotonic`
    bytes_here: int = 0  # text that the tasks which this process has committed have read

    @property
    def state(self) -> str:
        if self.planned is None:
            return "waiting"
        return "committed" if self.totals.tasks >= self.planned else "running"

    @property
    def is_alone(self) -> bool:
        return self.step.kind == "train"


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeLeft:
    """Seconds until all steps are committed; at least, where some work has no estimate. `by_step`: of each running step,
    if all slots work for it."""

    seconds: float
    is_least: bool = False
    by_step: Mapping[str, float] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        """Empty below a second, for steps so short that the estimate is worthless."""
        return f"{'at least' if self.is_least else 'about'} {duration(self.seconds)} left" if self.seconds >= 1 else ""


def time_left(steps: Sequence[StepState], slots: int) -> TimeLeft | None:
    """The time left on so many slots; None for no slots, or where no step has a time."""
    ahead = [step for step in steps if step.state != "committed"]
    if not ahead:
        return TimeLeft(seconds=0.0)
    if slots < 1:
        return None
    slowdown, is_known, is_least = _slowdown(steps), False, False
    now_s = longest_s = alone_s = later_s = 0.0
    by_step: dict[str, float] = {}
    for step in ahead:
        task_s = _task_seconds(step, slowdown)
        if not step.totals.tasks:  # no committed task corrects the estimate
            is_late = task_s is not None and max(step.running_s, default=0.0) > task_s
            is_least |= is_late or step.estimate is None or bool(step.estimate.unknown)
        if task_s is None:
            continue
        is_known |= task_s > 0
        num_left = 1 if step.planned is None else step.planned - step.totals.tasks
        left_s = num_left * task_s - sum(min(running_s, task_s) for running_s in step.running_s)
        if step.is_alone:
            alone_s, by_step[step.step.id] = alone_s + left_s, left_s
        elif step.planned is None:
            later_s += left_s
        else:  # its last tasks may be fewer than the slots
            least_s = math.ceil(num_left / slots) * task_s - min(task_s, min(step.running_s, default=0.0))
            now_s, longest_s = now_s + left_s, max(longest_s, least_s)
            by_step[step.step.id] = max(left_s / slots, least_s)
    seconds = max(now_s / slots, longest_s) + alone_s + later_s / slots
    return TimeLeft(seconds=seconds, is_least=is_least, by_step=by_step) if is_known else None


def _slowdown(steps: Iterable[StepState]) -> float:
    """Seconds that tasks took here for each second of their estimate."""
    took = expected = 0.0
    for step in steps:
        if step.planned and step.totals.tasks and step.estimate and not step.estimate.unknown:
            took += step.totals.seconds
            expected += step.estimate.seconds * step.totals.tasks / step.planned
    return min(_SLOWEST, max(_FASTEST, took / expected)) if expected else 1.0


def _task_seconds(step: StepState, slowdown: float) -> float | None:
    """Seconds of one task; of the whole step where its tasks are unknown. None where unknown."""
    if step.totals.tasks:
        return step.totals.seconds / step.totals.tasks
    return None if step.estimate is None else step.estimate.seconds * slowdown / (step.planned or 1)
