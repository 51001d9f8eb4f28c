"""A source that grew draws what a simulation draws, row by row, and its order can be inverted, across any number of moves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import SnapshotError
from datapipe.loader.order.address_finder import AddressFinder
from datapipe.loader.order.grown_order import GrownOrder, Parts, legs_of
from datapipe.loader.order.source_order import SourceOrder

PARTS = [[7, 0, 30, 1], [5, 5], [0], [12, 3, 3], [1]]
"""Rows of the shards of each part."""

SIZES = [sum(part) for part in PARTS]


def part_orders(window: int = 2, shuffle: bool = True) -> list[SourceOrder]:
    names = ("loader", "train", "web")
    return [
        SourceOrder(5, (*names, "part", number), np.array(sizes), np.full(len(sizes), -1), None, window, shuffle=shuffle)
        for number, sizes in enumerate(PARTS)
    ]


def moves_of(steps: Sequence[tuple[int, int]]) -> list[tuple[int, Parts]]:
    """The moves of a run.

    Args:
        steps: (samples drawn before, parts from then on), ascending.
    """
    parts, moves = Parts(count=steps[0][1]), []
    for (_, before), (start, count) in pairwise([(0, 0), *steps]):
        parts = parts.grown(count, sum(SIZES[:before]), start) if before else parts
        moves.append((start, parts))
    return moves


def grown(steps: Sequence[tuple[int, int]], **options) -> GrownOrder:
    return GrownOrder(part_orders(**options), legs_of(moves_of(steps), SIZES))


def rows_of(order: SourceOrder | GrownOrder, ordinals: np.ndarray, attempt: int = 0) -> np.ndarray:
    return AddressFinder([order], np.array([0, order.num_rows])).find(np.zeros(len(ordinals), np.int64), ordinals, attempt)


def simulated(steps: Sequence[tuple[int, int]], count: int, **options) -> list[int]:
    """The rows of the first `count` samples: parts are queued, and drawn to their end."""
    orders, first_rows = part_orders(**options), np.cumsum([0, *SIZES])
    later, epochs, queue, drawn = list(steps), [0] * len(PARTS), [], []
    num_parts = 0
    while len(drawn) < count:
        if later and len(drawn) == later[0][0]:
            _, more = later.pop(0)
            queue += [(part, number) for part in range(num_parts, more) for number in range(SIZES[part])]
            num_parts = more
            continue
        if not queue:
            queue = [(part, number) for part in range(num_parts) for number in range(SIZES[part])]
        part, number = queue.pop(0)
        row = rows_of(orders[part], np.array([epochs[part] * SIZES[part] + number]))
        drawn.append(int(first_rows[part] + row[0]))
        epochs[part] += number + 1 == SIZES[part]
    return drawn


CASES = [
    [(0, 1)],
    [(0, 5)],
    [(0, 1), (0, 3)],
    [(0, 1), (20, 2), (30, 4)],
    [(0, 1), (38, 2)],
    [(0, 1), (39, 2), (47, 3), (48, 4), (48, 5)],
    [(0, 2), (200, 4), (311, 5)],
]


@pytest.mark.parametrize("steps", CASES)
@pytest.mark.parametrize("window", [0, 2])
def test_samples_are_those_of_a_simulation_and_each_row_comes_once_an_epoch(steps, window):
    order = grown(steps, window=window)
    rows = rows_of(order, np.arange(450)).tolist()
    assert rows == simulated(steps, 450, window=window)
    last = legs_of(moves_of(steps), SIZES)[-1]
    assert sorted(rows[last.origin : last.origin + last.size]) == list(range(last.size))


@pytest.mark.parametrize("steps", CASES)
@pytest.mark.parametrize("attempt", [0, 1, 5])
def test_replacements_are_rows_of_the_same_epoch_that_no_move_changes_and_are_inverted(steps, attempt):
    order, last = grown(steps), legs_of(moves_of(steps), SIZES)[-1]
    for number in range(1, len(steps)):
        before = np.arange(steps[number][0])
        np.testing.assert_array_equal(rows_of(order, before, attempt), rows_of(grown(steps[:number]), before, attempt))
    epoch = np.arange(last.origin + last.size, last.origin + 2 * last.size)
    rows, replaced = rows_of(order, epoch), rows_of(order, epoch, attempt)
    assert sorted(replaced.tolist()) == sorted(rows.tolist())
    assert (replaced != rows).any() or last.size < 3 or attempt == 0
    rows, epochs = rows_of(order, np.arange(450), attempt), range(order.epochs_until(450))
    for row in range(0, order.num_rows, 3):
        found = sorted(ordinal for number in epochs for ordinal in order.ordinals_of(row, number, attempt))
        assert [ordinal for ordinal in found if ordinal < 450] == np.flatnonzero(rows == row).tolist()
        assert len(set(found)) == len(found)


@pytest.mark.parametrize("steps", CASES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_windows_ahead_hold_the_shards_of_the_samples(steps, shuffle):
    order = grown(steps, shuffle=shuffle)
    shard_starts = np.cumsum([0, *(rows for part in PARTS for rows in part)])
    for ordinal in (0, 13, 40, 250):
        ahead = list(islice(order.windows_from(ordinal), 12))
        assert ahead[0][0] <= ordinal
        for (first, shards), (after, _) in pairwise(ahead):
            rows = rows_of(order, np.arange(max(first, ordinal), after))
            assert {int(shard) for shard in np.searchsorted(shard_starts, rows, side="right") - 1} <= set(shards)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 150), st.integers(1, 2)), min_size=1, max_size=4), st.integers(1, 2))
def test_any_moves_are_those_of_a_simulation(later, first):
    steps, drawn, count = [(0, first)], 0, first
    for more, parts in later:
        drawn, count = drawn + more, min(count + parts, len(PARTS))
        if count > steps[-1][1]:
            steps.append((drawn, count))
    assert rows_of(grown(steps), np.arange(drawn + 120)).tolist() == simulated(steps, drawn + 120)


@pytest.mark.parametrize(
    "moves",
    [
        [(0, 6)],
        [(3, 1)],
        [(0, 1, 38, 1)],
        [(0, 1), (40, 1)],
        [(0, 2), (40, 1)],
        [(0, 1), (40, 2, 37, 1)],
        [(0, 1), (40, 2, 38, 2)],
        [(0, 1), (40, 2, 76, 2)],
        [(0, 1), (120, 2, 38, 1)],
    ],
)
def test_moves_that_no_run_makes_are_refused(moves):
    """(samples drawn before, parts, origin, epochs) of each move."""
    names = ("count", "origin", "epochs")
    with pytest.raises(SnapshotError):
        legs_of([(start, Parts(**dict(zip(names, parts)))) for start, *parts in moves], SIZES)
