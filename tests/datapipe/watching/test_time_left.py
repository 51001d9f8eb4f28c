"""The time left of runs that are made up."""

from __future__ import annotations

import pytest

from datapipe.plan.estimate import StepTime
from datapipe.watching.time_left import StepProgress, TimeLeft, time_left


def _estimate(seconds: float, *, is_least: bool = False) -> StepTime:
    return StepTime(seconds=seconds, is_least=is_least)


READING = StepProgress(planned=10, committed=4, seconds=40.0, estimate=_estimate(100.0))
DONE = StepProgress(planned=3, committed=3, seconds=9.0)


def test_a_run_without_steps_left_takes_no_time_on_any_number_of_slots() -> None:
    assert time_left([DONE], 0) == TimeLeft(seconds=0.0)


def test_a_planned_step_goes_by_its_tasks_less_what_its_attempts_have_done() -> None:
    assert time_left([DONE, READING], 2) == TimeLeft(seconds=30.0)
    running = StepProgress(planned=10, committed=4, seconds=40.0, running_s=(4.0, 30.0))
    assert time_left([running], 2) == TimeLeft(seconds=(60.0 - 4.0 - 10.0) / 2 + 3.0)


def test_the_last_task_of_a_step_takes_as_long_on_many_slots() -> None:
    last = StepProgress(planned=10, committed=9, seconds=90.0, running_s=(4.0,))
    assert time_left([last], 16) == TimeLeft(seconds=6.0)


def test_a_step_that_waits_goes_by_its_estimate_at_the_pace_of_the_run() -> None:
    waiting = StepProgress(planned=None, estimate=_estimate(50.0))
    assert time_left([READING, waiting], 2) == TimeLeft(seconds=30.0 + 25.0)
    slow = StepProgress(planned=10, committed=5, seconds=100.0, estimate=_estimate(100.0))
    assert time_left([slow, waiting], 1) == TimeLeft(seconds=100.0 + 2 * 50.0)
    very_slow = StepProgress(planned=10, committed=5, seconds=5000.0, estimate=_estimate(100.0))
    assert time_left([very_slow, waiting], 1) == TimeLeft(seconds=5000.0 + 3 * 50.0)


def test_the_training_of_a_tokenizer_is_shared_by_no_slots() -> None:
    training = StepProgress(planned=None, estimate=_estimate(50.0), is_alone=True)
    assert time_left([READING, training], 2) == TimeLeft(seconds=30.0 + 50.0)


@pytest.mark.parametrize("estimate", [None, _estimate(0.0, is_least=True)], ids=["none", "in part"])
def test_a_step_without_an_estimate_makes_the_time_a_lower_bound_until_tasks_are_committed(
    estimate: StepTime | None,
) -> None:
    assert time_left([READING, StepProgress(planned=None, estimate=estimate)], 2) == TimeLeft(seconds=30.0, is_least=True)
    begun = StepProgress(planned=5, committed=1, seconds=2.0, estimate=estimate)
    assert time_left([READING, begun], 2) == TimeLeft(seconds=34.0)
    assert time_left([StepProgress(planned=5, estimate=estimate)], 2) is None


def test_nothing_is_told_before_a_slot_is_known() -> None:
    assert time_left([READING], 0) is None


def test_time_left_in_words() -> None:
    assert str(TimeLeft(seconds=250.0)) == "about 4:10 left"
    assert str(TimeLeft(seconds=4000.0, is_least=True)) == "at least 1:06:40 left"


def test_time_left_below_a_second_is_not_told_and_a_late_first_task_makes_it_a_lower_bound() -> None:
    assert str(TimeLeft(seconds=0.4)) == ""
    late = StepProgress(planned=1, running_s=(20.0,), estimate=_estimate(2.0))
    assert str(time_left([late], 2)) == ""
    waiting = StepProgress(planned=None, estimate=_estimate(50.0))
    assert str(time_left([late, waiting], 1)) == "at least 0:50 left"
    assert time_left([StepProgress(planned=1, running_s=(1.0,), estimate=_estimate(2.0))], 2) == TimeLeft(seconds=1.0)
