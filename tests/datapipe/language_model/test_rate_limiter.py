"""When requests begin, by a clock of the test."""

import asyncio

import pytest

from datapipe.errors import DatapipeError
from datapipe.language_model.endpoint import AttemptError
from datapipe.language_model.rate_limiter import RateLimiter, pause_s
from tests.support.annotation_jobs import FakeClock


def test_rate_limiter_holds_all_requests_for_the_longest_pause():
    clock = FakeClock()
    limiter = RateLimiter(clock, 100.0, "http://host", print)

    async def all_requests() -> None:
        for seconds in (7.0, 3.0):
            await limiter.pause(AttemptError("busy", "x", seconds), 1, "key")
        await asyncio.gather(limiter.wait(), limiter.wait())

    asyncio.run(all_requests())
    assert clock.time == 1007.0


def test_pauses_grow_differ_by_request_and_are_capped():
    error = AttemptError("failed", "x")
    pauses = [pause_s(error, number, "key") for number in range(1, 20)]
    assert pauses == [pause_s(error, number, "key") for number in range(1, 20)]
    assert all(min(0.25 * 2**number, 15) <= pause <= min(0.5 * 2**number, 30) for number, pause in enumerate(pauses))
    assert len({pause_s(error, 3, f"key {number}") for number in range(50)}) == 50
    assert pause_s(AttemptError("busy", "x", 4.5), 9, "key") == 4.5
    assert pause_s(AttemptError("busy", "x", 1e9), 1, "key") == 120.0


def test_rate_limiter_reports_silence_and_ends_it():
    clock, reported = FakeClock(), []
    limiter = RateLimiter(clock, 100.0, "http://host", reported.append)
    error = AttemptError("unreachable", "no route")
    limiter.failed(error)
    limiter.answered()
    assert reported == []  # a moment is not worth a line
    for _ in range(10):
        limiter.failed(error)
        clock.time += 10
    assert [f"for {left} s" in line and "no route" in line for left, line in zip((90, 60, 30), reported, strict=True)] == [
        True
    ] * 3
    with pytest.raises(DatapipeError, match="100 s: no route"):
        limiter.failed(error)
    limiter.answered()
    assert len(reported) == 4
    limiter.failed(error)
