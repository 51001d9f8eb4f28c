"""Steps to samples and back: batch sizes that may change on the way, and steps that are left out.

    step       0 1 2 3 4 5 6 7 …          legs   from step 0, sample 0: batches of 2;  from step 3, sample 6: batches of 4
    samples    0 2 4 6   10 …             skip   3:5  ->  after step 2 comes step 5, with the samples it would have had anyway

A step is a place in the order of the data: it keeps its number and its samples whatever is skipped before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from datapipe.errors import UserError

MOST_STEPS = 1 << 48
"""More than any run has; beyond, sample numbers would leave int64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchEra:
    """From `step` on, which begins at `sample`, global batches have `size` rows."""

    step: int
    sample: int
    size: int


class Steps:
    """All steps of a run.

    Args:
        legs: at least one, the first from step 0, rising.
        skip: ranges (start, stop) of steps that are not handed out; any order, they may overlap.
        num_samples: where the run ends, None if nowhere.
        drop_last: whether a last batch of fewer rows is left away.
    """

    def __init__(
        self, eras: Sequence[BatchEra], skip: Sequence[tuple[int, int]], num_samples: int | None, drop_last: bool
    ) -> None:
        self._eras = tuple(eras)
        self._skip = merged(skip)
        self._num_samples = num_samples
        self.num_steps = None if num_samples is None else self._count(num_samples, drop_last)

    def samples(self, step: int) -> tuple[int, int]:
        """The first sample of a step, and the one after its last."""
        era = self._eras[bisect_right(self._eras, step, key=lambda era: era.step) - 1]
        start = era.sample + (step - era.step) * era.size
        stop = start + era.size
        return start, stop if self._num_samples is None else max(start, min(stop, self._num_samples))

    def step_of(self, sample: int) -> int | None:
        """The step that holds a sample; None if it is past the end."""
        era = self._eras[bisect_right(self._eras, sample, key=lambda era: era.sample) - 1]
        step = era.step + (sample - era.sample) // era.size
        return step if self.num_steps is None or step < self.num_steps else None

    def is_skipped(self, step: int) -> bool:
        return self.next(step) != step

    def next(self, step: int) -> int:
        """The first step from `step` on that is not skipped; it may lie at or behind the end."""
        number = bisect_right(self._skip, step, key=lambda one: one[0]) - 1
        return self._skip[number][1] if number >= 0 and step < self._skip[number][1] else step

    def advance(self, step: int, count: int) -> int:
        """The `count`-th step after `step`, counting those that are not skipped."""
        at = self.next(step)
        for start, stop in self._skip[bisect_right(self._skip, at, key=lambda one: one[0]) :]:
            if at + count < start:
                break
            count -= start - at
            at = stop
        return at + count

    def _count(self, num_samples: int, drop_last: bool) -> int:
        era = self._eras[-1]
        rows = max(0, num_samples - era.sample)
        return era.step + (rows // era.size if drop_last else -(-rows // era.size))


def merged(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same steps as ranges that neither touch nor overlap, rising. Raises UserError for one that is none."""
    found: list[tuple[int, int]] = []
    for one in ranges:
        try:
            start, stop = one
        except (TypeError, ValueError) as error:
            raise UserError(f"skip: {one!r} is no range of steps. Expected (start, stop), the stop not included.") from error
        if not isinstance(start, Integral) or not isinstance(stop, Integral) or not 0 <= start < stop <= MOST_STEPS:
            raise UserError(
                f"skip: {one} is no range of steps. Expected (start, stop) with 0 <= start < stop <= 2^48, stop not included."
            )
    for start, stop in sorted((int(start), int(stop)) for start, stop in ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return tuple(found)
