"""The rows of a rank by step. Where steps are asked for in turn, those of many steps are found together.

    steps 40, 41  ──▶  RowsAhead  ──▶  samples, addresses and blocks of the steps 40 to 103
    steps 42, 43  ──▶  a slice of these

Of a batch that is built alone, without its copies, the arithmetic of its own rows was a third of the time.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from datapipe.errors import SnapshotError
from datapipe.loader.order.batch_order import BatchOrder
from datapipe.loader.reading import FoundRows, RowReader
from datapipe.loader.share import Mesh

STEPS_AHEAD, ROWS_AHEAD = 64, 1 << 12  # the most steps and rows that are found before they are asked for


class StepRows(NamedTuple):
    """Rows of some steps, end to end."""

    steps: list[int]
    borders: tuple[int, ...]  # step i of `steps` has the rows borders[i] to borders[i + 1]
    samples: np.ndarray  # (num_rows,) int64
    found: FoundRows  # of `num_rows` rows

    def part(self, start: int, stop: int) -> "StepRows":
        """The rows of the steps `start` to `stop` of these."""
        first, last = self.borders[start], self.borders[stop]
        borders = tuple([border - first for border in self.borders[start : stop + 1]])
        return StepRows(self.steps[start:stop], borders, self.samples[first:last], self.found.part(first, last))


def rows_of(order: BatchOrder, reader: RowReader, mesh: Mesh, steps: Sequence[int]) -> StepRows:
    """The rows of one rank at some steps, in any order."""
    samples, borders = samples_of(order, mesh, steps)
    return StepRows(steps=list(steps), borders=borders, samples=samples, found=reader.find(order.addresses_of(samples))[0])


def samples_of(order: BatchOrder, mesh: Mesh, steps: Sequence[int]) -> tuple[np.ndarray, tuple[int, ...]]:
    """The samples of one rank at some steps, end to end, int64; and the borders of the steps."""
    spans = [mesh.share(*order.steps.samples(step)) for step in steps]
    borders = (0, *accumulate([stop - start for start, stop in spans]))
    # shifts: (num_steps,) from the number of a row to its sample
    shifts = np.array([start - border for (start, _), border in zip(spans, borders)], np.int64)
    return np.repeat(shifts, np.diff(borders)) + np.arange(borders[-1]), borders


class RowsAhead:
    """The rows at steps that are mostly asked for in the order of `successor`. Several threads may ask at once.

    `find`: the rows at some steps, a pure function. `rows_per_step`: about how many."""

    def __init__(
        self, find: Callable[[Sequence[int]], StepRows], successor: Callable[[int], int | None], rows_per_step: int
    ) -> None:
        self._find, self._successor = find, successor
        self._most_steps = min(STEPS_AHEAD, ROWS_AHEAD // max(1, rows_per_step))
        self._known: tuple[StepRows | None, dict[int, int]] = (None, {})  # replaced, never changed

    def rows_of(self, steps: Sequence[int]) -> StepRows:
        rows, index_of = self._known
        start = index_of.get(steps[0], -1)
        if rows is not None and start >= 0 and rows.steps[start : start + len(steps)] == list(steps):
            return rows.part(start, start + len(steps))
        rows = self._find_ahead(steps)
        self._known = rows, {step: index for index, step in enumerate(rows.steps)}
        return rows.part(0, len(steps))

    def _find_ahead(self, steps: Sequence[int]) -> StepRows:
        wanted, step = list(steps), self._successor(steps[-1])
        while step is not None and len(wanted) < self._most_steps:
            wanted.append(step)
            step = self._successor(step)
        with suppress(SnapshotError):  # of a later step, perhaps
            return self._find(wanted)
        return self._find(steps)
