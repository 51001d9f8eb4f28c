"""The time left of runs that are made up."""

from __future__ import annotations

import pytest

from datapipe.plan.estimate import StepTime
from datapipe.watching.time_left import StepProgress, TimeLeft, time_left


def _estimate(seconds: float, *, is_least: bool = False) -> StepTime:
    return StepTime(seconds=seconds, is_least=is_least)


READING = StepProgress(planned=10, committed=4, seconds=40.0, estimate=_estimate(100.0))
DONE = StepProgress(planned=3, committed=3, seconds=9.0)


def _running(committed: int, seconds: float, *running_s: float) -> StepProgress:
    return StepProgress(planned=10, committed=committed, seconds=seconds, running_s=running_s, estimate=_estimate(100.0))


WAITING = StepProgress(planned=None, estimate=_estimate(50.0))
TRAINING = StepProgress(planned=None, estimate=_estimate(50.0), is_alone=True)
LATE = StepProgress(planned=1, running_s=(20.0,), estimate=_estimate(2.0))


@pytest.mark.parametrize(
    ("steps", "slots", "seconds"),
    [
        ([DONE], 0, 0.0),  # on any number of slots
        ([DONE, READING], 2, 30.0),
        ([_running(4, 40.0, 4.0, 30.0)], 2, (60.0 - 4.0 - 10.0) / 2 + 3.0),  # tasks less what their attempts have done
        ([_running(9, 90.0, 4.0)], 16, 6.0),  # the last task takes as long on many slots
        ([READING, WAITING], 2, 30.0 + 25.0),
        ([_running(5, 100.0), WAITING], 1, 100.0 + 2 * 50.0),  # at the pace of the run
        ([_running(5, 5000.0), WAITING], 1, 5000.0 + 3 * 50.0),
        ([READING, TRAINING], 2, 30.0 + 50.0),  # shared by no slots
        ([StepProgress(planned=1, running_s=(1.0,), estimate=_estimate(2.0))], 2, 1.0),
    ],
)
def test_time_left_of_steps_follows_from_their_tasks_and_estimates(
    steps: list[StepProgress], slots: int, seconds: float
) -> None:
    assert time_left(steps, slots) == TimeLeft(seconds=seconds)


@pytest.mark.parametrize("estimate", [None, _estimate(0.0, is_least=True)], ids=["none", "in part"])
def test_a_step_without_an_estimate_makes_the_time_a_lower_bound_until_tasks_are_committed(
    estimate: StepTime | None,
) -> None:
    assert time_left([READING, StepProgress(planned=None, estimate=estimate)], 2) == TimeLeft(seconds=30.0, is_least=True)
    begun = StepProgress(planned=5, committed=1, seconds=2.0, estimate=estimate)
    assert time_left([READING, begun], 2) == TimeLeft(seconds=34.0)
    assert time_left([StepProgress(planned=5, estimate=estimate)], 2) is None


def test_time_left_in_words_is_told_once_it_is_known_and_above_a_second() -> None:
    assert time_left([READING], 0) is None
    assert str(TimeLeft(seconds=250.0)) == "about 4:10 left"
    assert str(TimeLeft(seconds=4000.0, is_least=True)) == "at least 1:06:40 left"
    assert str(TimeLeft(seconds=0.4)) == str(time_left([LATE], 2)) == ""
    assert str(time_left([LATE, WAITING], 1)) == "at least 0:50 left"
