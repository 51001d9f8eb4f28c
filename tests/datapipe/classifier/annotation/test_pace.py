"""When requests begin, by a clock of the test."""

from __future__ import annotations

import asyncio

import pytest

from datapipe.classifier.annotation.endpoint import AttemptError, EndpointError
from datapipe.classifier.annotation.pace import Pace, Patience, pause_s
from tests.support.annotation_jobs import FakeClock


def begun(pace: Pace, clock: FakeClock, tokens: list[int]) -> list[float]:
    """When so many requests, all made at once, begin."""
    times: list[float] = []

    async def request(num_tokens: int) -> None:
        await pace.turn(num_tokens)
        times.append(clock.time - 1000)

    async def all_requests() -> None:
        await asyncio.gather(*map(request, tokens))

    asyncio.run(all_requests())
    return times


@pytest.mark.parametrize(
    ("limits", "tokens", "times"),
    [
        ((None, None), [1000] * 50, [0.0] * 50),
        ((120, None), [1] * 4, [0.0, 0.5, 1.0, 1.5]),
        ((120, 6000), [100, 10, 400, 1], [0.0, 1.0, 1.5, 5.5]),
    ],
)
def test_pace_spreads_requests_and_tokens_evenly(limits, tokens, times):
    clock = FakeClock()
    assert begun(Pace(clock, *limits), clock, tokens) == times


def test_pace_counts_the_tokens_that_were_used():
    clock = FakeClock()
    pace = Pace(clock, None, 60)
    assert begun(pace, clock, [30]) == [0.0]
    pace.used(30, 5)
    assert begun(pace, clock, [30]) == [5.0]
    pace.used(30, 50)
    assert begun(pace, clock, [30]) == [55.0]


def test_pace_holds_all_requests_for_the_longest_pause():
    clock = FakeClock()
    pace = Pace(clock, None, None)
    pace.hold(7)
    pace.hold(3)
    assert begun(pace, clock, [1, 1]) == [7.0, 7.0]


def test_pauses_grow_differ_by_request_and_are_capped():
    error = AttemptError("failed", "x")
    pauses = [pause_s(error, number, "key") for number in range(1, 20)]
    assert pauses == [pause_s(error, number, "key") for number in range(1, 20)]
    assert all(min(0.25 * 2**number, 15) <= pause <= min(0.5 * 2**number, 30) for number, pause in enumerate(pauses))
    assert len({pause_s(error, 3, f"key {number}") for number in range(50)}) == 50
    assert pause_s(AttemptError("busy", "x", 4.5), 9, "key") == 4.5
    assert pause_s(AttemptError("busy", "x", 1e9), 1, "key") == 120.0


def test_patience_tells_of_silence_and_ends_it():
    clock, told = FakeClock(), []
    patience = Patience(clock, 100.0, "http://host", told.append)
    error = AttemptError("unreachable", "no route")
    patience.failed(error)
    patience.answered()
    assert told == []  # a moment is not worth a line
    for _ in range(10):
        patience.failed(error)
        clock.time += 10
    assert [f"for {left} s" in line and "no route" in line for left, line in zip((90, 60, 30), told, strict=True)] == [True] * 3
    with pytest.raises(EndpointError, match="100 s: no route"):
        patience.failed(error)
    patience.answered()
    assert len(told) == 4
    patience.failed(error)
