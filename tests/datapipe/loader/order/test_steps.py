"""Steps to samples and back, with batch sizes that change and steps that are left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import UserError
from datapipe.loader.order.steps import BatchEra, Steps, merged

FIRST = BatchEra(step=0, sample=0, size=3)
ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)).map(lambda one: (one[0], one[0] + one[1])), max_size=5)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9), st.booleans()), max_size=3),
    st.integers(0, 90) | st.none(),
    st.booleans(),
)
def test_samples_and_steps_are_those_of_a_simulation(
    changes: list[tuple[int, int, bool]], num_samples: int | None, drop_last: bool
) -> None:
    """Each change: after so many steps, batches of another size; the last step before may be smaller."""
    eras, batches, sample = [FIRST], list[tuple[int, int]](), 0
    for count, size, is_smaller in changes:
        batches += [(sample + at * eras[-1].size, sample + (at + 1) * eras[-1].size) for at in range(count)]
        if is_smaller and eras[-1].size > 1:
            batches[-1] = (batches[-1][0], batches[-1][1] - 1)
        sample = batches[-1][1]
        eras.append(BatchEra(step=len(batches), sample=sample, size=size))
    end = sample + 40 if num_samples is None else sample + num_samples
    size = eras[-1].size
    batches += [(start, min(start + size, end)) for start in range(sample, end, size)]
    if num_samples is None or drop_last:
        batches = [batch for batch in batches if batch[0] < sample or batch[1] - batch[0] == size]
    steps = Steps(eras, (), None if num_samples is None else end, drop_last=drop_last)
    assert [steps.samples(step) for step in range(len(batches))] == batches
    step_of = {sample: step for step, batch in enumerate(batches) for sample in range(*batch)}
    assert all(steps.step_of(sample) == step for sample, step in step_of.items())
    if num_samples is not None:
        assert steps.num_steps == len(batches)
        assert steps.num_dropped == end - len(step_of)
        assert [steps.step_of(sample) for sample in range(len(step_of), end + 2)] == [None] * (end + 2 - len(step_of))
    else:
        assert (steps.num_steps, steps.num_dropped) == (None, 0)


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
    for wrong in ((3, 3), (5, 2), (-1, 2), (1.5, 3), (1, 2, 3), (3, 1 << 60), 4):
        with pytest.raises(UserError):
            merged([wrong])  # type: ignore[list-item]
