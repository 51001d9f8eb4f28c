"""The queue model against an example worked by hand, and against properties that hold for any times."""

from __future__ import annotations

import random

import pytest

from datapipe.bench.simulate import simulate_waits

BUILD_S = [3, 1, 1, 5, 1]


@pytest.mark.parametrize(
    ("depth", "num_threads", "expected"),
    [
        (0, 1, [3, 1, 1, 5, 1]),  # the trainer waits for every batch
        (1, 1, [3, 0, 0, 3, 0]),  # the example in simulate.py
        (2, 1, [3, 0, 0, 1, 0]),  # batch 3 may start at 5, when batch 1 is asked for: ready at 10, asked for at 9
        (9, 1, [3, 0, 0, 1, 0]),  # one builder is busy until 3 + 1 + 1 + 5 = 10 whatever the depth
        (3, 2, [3, 0, 0, 0, 0]),  # the second builder builds 1 and 2 meanwhile, and batch 3 from 2 to 7
        (1, 2, [3, 0, 0, 3, 0]),  # a second builder has nothing to do
    ],
)
def test_waits_of_the_worked_example(depth: int, num_threads: int, expected: list[float]) -> None:
    assert simulate_waits(BUILD_S, step_s=2, depth=depth, num_threads=num_threads) == expected


def test_waits_deeper_and_wider_is_never_slower() -> None:
    draw = random.Random(5)
    for _ in range(200):
        build_s = [draw.randrange(12) for _ in range(30)]
        step_s = draw.randrange(8)
        totals = [
            [sum(simulate_waits(build_s, step_s=step_s, depth=depth, num_threads=threads)) for depth in (0, 1, 2, 4, 8)]
            for threads in (1, 2, 4)
        ]
        for row in totals:
            assert row == sorted(row, reverse=True)
        for narrow, wide in zip(totals, totals[1:]):
            assert all(more <= less for less, more in zip(narrow, wide))
