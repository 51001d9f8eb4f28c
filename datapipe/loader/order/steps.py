"""Steps to samples and back: batch sizes that change during a run, and steps that are left out.

    step       0 1 2 3  4  5 …          eras   from step 0, sample 0: batches of 2;  from step 3, sample 6: batches of 4
    sample     0 2 4 6 10 14 …          skip   3:5  ->  step 5 follows step 2; it keeps its samples 14 to 17

A step keeps its number and its samples, whichever steps are skipped before it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from numbers import Integral

from datapipe.dataclass import dataclass
from datapipe.errors import UserError

MOST_STEPS = 1 << 48  # the limit of step numbers: sample numbers beyond it could leave int64
MOST_SAMPLES = 1 << 63  # Beyond every sample number


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchEra:
    """From `step` on, which begins at `sample`, global batches have `size` rows. The last one of an
    era may be smaller, where a run went on after its end."""

    step: int
    sample: int
    size: int


class Steps:
    """All steps of a run. `eras`: at least one, ascending, the first from step 0. `skip`: ranges
    (start, stop) of steps that are not handed out, in any order; they may overlap."""

    def __init__(
        self, eras: Sequence[BatchEra], skip: Sequence[tuple[int, int]], num_samples: int | None, drop_last: bool
    ) -> None:
        self._eras = tuple(eras)
        self._first_steps = [era.step for era in eras]
        self._skip = merged(skip)
        self._first_skipped = [start for start, _ in self._skip]
        self._num_samples = num_samples
        ends = [era.sample for era in self._eras[1:]] + [MOST_SAMPLES]
        self._stops = [end if num_samples is None else min(end, num_samples) for end in ends]
        self.num_steps = None if num_samples is None else self._count(num_samples, drop_last)

    @property
    def num_batches(self) -> int | None:
        if self.num_steps is None:
            return None
        return self.num_steps - sum(max(0, min(stop, self.num_steps) - start) for start, stop in self._skip)

    @property
    def num_dropped(self) -> int:
        """Samples at the end of the run that no step holds."""
        if self.num_steps is None or self._num_samples is None:
            return 0
        return max(0, self._num_samples - self.samples(self.num_steps)[0])

    def samples(self, step: int) -> tuple[int, int]:
        number = bisect_right(self._first_steps, step) - 1
        era = self._eras[number]
        start = era.sample + (step - era.step) * era.size
        return start, max(start, min(start + era.size, self._stops[number]))

    def step_of(self, sample: int) -> int | None:
        if self._num_samples is not None and sample >= self._num_samples:
            return None
        era = self._eras[bisect_right(self._eras, sample, key=lambda era: era.sample) - 1]
        step = era.step + (sample - era.sample) // era.size
        return step if self.num_steps is None or step < self.num_steps else None

    def is_skipped(self, step: int) -> bool:
        return self.next(step) != step

    def next(self, step: int) -> int:
        """The first step from `step` on that is not skipped; it may lie at or past the end."""
        number = bisect_right(self._first_skipped, step) - 1
        return self._skip[number][1] if number >= 0 and step < self._skip[number][1] else step

    def before(self, step: int) -> int:
        """The last step before `step` that is not skipped; -1 if there is none."""
        number = bisect_right(self._first_skipped, step - 1) - 1
        return self._skip[number][0] - 1 if number >= 0 and step - 1 < self._skip[number][1] else step - 1

    def upcoming(self, step: int) -> Iterator[int]:
        """The steps from `step` on that are not skipped, to the end."""
        step = self.next(step)
        while self.num_steps is None or step < self.num_steps:
            yield step
            step = self.next(step + 1)

    def advance(self, step: int, count: int) -> int:
        """The `count`-th step after `step`, counting those that are not skipped."""
        if not self._skip:
            return step + count
        step = self.next(step)
        for start, stop in self._skip[bisect_right(self._first_skipped, step) :]:
            if step + count < start:
                break
            count -= start - step
            step = stop
        return step + count

    def following(self, step: int, stride: int = 1) -> int | None:
        """The `stride`-th step after `step`, counting those that are not skipped; None past the end."""
        later = self.advance(step, stride) if self._skip else step + stride
        return later if self.num_steps is None or later < self.num_steps else None

    def _count(self, num_samples: int, drop_last: bool) -> int:
        era = self._eras[-1]
        rows = max(0, num_samples - era.sample)
        return era.step + (rows // era.size if drop_last else -(-rows // era.size))


def merged(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same steps as ascending ranges that neither touch nor overlap. Raises UserError for a value that is not a range."""
    for steps in ranges:
        try:
            start, stop = steps
        except (TypeError, ValueError) as error:
            raise UserError(f"skip: {steps!r} is not a range of steps. Expected (start, stop), stop not included.") from error
        if not isinstance(start, Integral) or not isinstance(stop, Integral) or not 0 <= start < stop <= MOST_STEPS:
            raise UserError(
                f"skip: {steps} is not a range of steps. Expected (start, stop) with 0 <= start < stop <= 2^48, stop not "
                f"included."
            )
    apart: list[tuple[int, int]] = []
    for start, stop in sorted((int(start), int(stop)) for start, stop in ranges):
        if apart and start <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(stop, apart[-1][1]))
        else:
            apart.append((start, stop))
    return tuple(apart)
