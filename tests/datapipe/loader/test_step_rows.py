"""Rows of steps that are found together are those that each step has alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import SnapshotError
from datapipe.loader.reading import FoundRows
from datapipe.loader.step_rows import STEPS_AHEAD, RowsAhead, StepRows

_LAST, _ROWS = 300, 3


def _find(steps: Sequence[int]) -> StepRows:
    """Step s has the samples 10 s, 10 s + 1, …, one fewer where s is odd; the address of a sample is its double."""
    counts = [_ROWS - step % 2 for step in steps]
    samples = np.concatenate([10 * step + np.arange(count) for step, count in zip(steps, counts)])
    found = FoundRows(2 * samples, *np.zeros((3, len(samples)), np.int64), version=0)
    return StepRows(list(steps), tuple(np.cumsum([0, *counts]).tolist()), samples, found)


def _assert_alone(rows: StepRows, steps: list[int]) -> None:
    expected = _find(steps)
    assert (rows.steps, rows.borders) == (expected.steps, expected.borders)
    assert rows.samples.tolist() == expected.samples.tolist()
    assert rows.found.addresses.tolist() == expected.found.addresses.tolist()


@given(
    stride=st.integers(1, 3),
    requests=st.lists(st.tuples(st.sampled_from([-1, 0, 1, 2]), st.integers(1, 20)), min_size=1, max_size=12),
)
def test_rows_of_any_requests_are_those_of_each_step(stride: int, requests: list[tuple[int, int]]) -> None:
    ahead = RowsAhead(_find, lambda step: step + stride if step + stride <= _LAST else None, _ROWS)
    step = 0
    for jump, count in requests:  # jump: 0 goes on, and others move the reader
        step = max(0, step + 7 * jump)
        steps = [each for each in range(step, step + count * stride, stride) if each <= _LAST]
        if steps:
            _assert_alone(ahead.rows_of(steps), steps)
        step += count * stride


@pytest.mark.parametrize("last", [0, 1, 5, 2 * STEPS_AHEAD])
def test_rows_in_order_are_found_many_steps_at_a_time(last: int) -> None:
    found: list[int] = []
    ahead = RowsAhead(
        lambda steps: (found.append(len(steps)), _find(steps))[1], lambda step: step + 1 if step < last else None, _ROWS
    )
    for step in range(last + 1):
        _assert_alone(ahead.rows_of([step]), [step])
    assert sum(found) == last + 1
    assert max(found) <= STEPS_AHEAD


def test_rows_ahead_that_are_gone_fail_with_their_own_step() -> None:
    def find(steps: Sequence[int]) -> StepRows:
        if max(steps) >= 4:
            raise SnapshotError("these rows are not here")
        return _find(steps)

    ahead = RowsAhead(find, lambda step: step + 1, _ROWS)
    for step in range(4):
        _assert_alone(ahead.rows_of([step]), [step])
    with pytest.raises(SnapshotError):
        ahead.rows_of([4])
