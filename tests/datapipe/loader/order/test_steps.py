"""Steps to samples and back, with batch sizes that change and steps that are left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import UserError
from datapipe.loader.order.steps import BatchEra, Steps, merged

FIRST = BatchEra(step=0, sample=0, size=3)
ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)).map(lambda one: (one[0], one[0] + one[1])), max_size=5)


def test_samples_follow_the_batch_size_of_each_era() -> None:
    steps = Steps([FIRST, BatchEra(step=4, sample=12, size=5)], (), 40, drop_last=True)
    assert [steps.samples(step) for step in (0, 3, 4, 5)] == [(0, 3), (9, 12), (12, 17), (17, 22)]
    assert steps.num_steps == 4 + 5
    assert [steps.step_of(sample) for sample in (0, 11, 12, 16, 17, 36, 37)] == [0, 3, 4, 4, 5, 8, None]


def test_last_batch_is_dropped_or_smaller() -> None:
    assert Steps([FIRST], (), 10, drop_last=True).num_steps == 3
    validation = Steps([FIRST], (), 10, drop_last=False)
    assert (validation.num_steps, validation.samples(3)) == (4, (9, 10))
    assert [validation.step_of(sample) for sample in (9, 10, 11)] == [3, None, None]
    assert Steps([FIRST], (), None, drop_last=True).num_steps is None
    assert [Steps([FIRST], (), 10, drop_last=dropped).num_dropped for dropped in (True, False)] == [1, 0]


def test_run_that_went_on_after_a_smaller_step_keeps_that_step() -> None:
    steps = Steps([FIRST, BatchEra(step=4, sample=10, size=5)], (), 23, drop_last=True)
    assert [steps.samples(step) for step in (2, 3, 4, 5)] == [(6, 9), (9, 10), (10, 15), (15, 20)]
    assert [steps.step_of(sample) for sample in (8, 9, 10, 19, 20)] == [2, 3, 4, 5, None]
    assert (steps.num_steps, steps.num_dropped) == (6, 3)


@given(ranges, st.integers(0, 40), st.integers(0, 12))
def test_skipped_steps_are_left_out_and_all_others_kept(skip: list[tuple[int, int]], step: int, count: int) -> None:
    steps = Steps([FIRST], skip, None, drop_last=True)
    left_out = {one for start, stop in skip for one in range(start, stop)}
    there = [one for one in range(step, 120) if one not in left_out]
    assert steps.next(step) == there[0]
    assert steps.advance(step, count) == there[count]
    assert steps.is_skipped(step) == (step in left_out)
    assert steps.before(step) == max((one for one in range(step) if one not in left_out), default=-1)
    finite = Steps([FIRST], skip, 3 * step, drop_last=True)
    assert finite.num_batches == len([one for one in range(step) if one not in left_out])
    assert steps.samples(there[0]) == (3 * there[0], 3 * there[0] + 3)


def test_ranges_are_merged_and_wrong_ones_refused() -> None:
    assert merged([(7, 9), (1, 3), (3, 4), (8, 12)]) == ((1, 4), (7, 12))
    for wrong in ((3, 3), (5, 2), (-1, 2)):
        with pytest.raises(UserError, match="not a range of steps"):
            merged([wrong])
