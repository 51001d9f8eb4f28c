"""How long a run waits for an outage: with a clock of the test's own."""

from __future__ import annotations

import pytest

from datapipe.engine.patience import PATIENCE_S, Patience
from datapipe.errors import DatapipeError
from datapipe.outages import Outage


def _full(free_bytes: int = 0) -> Outage:
    return Outage(where="/data/out", cause="the disk is full", free_bytes=free_bytes)


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _lines_until_stop(patience: Patience, clock: _Clock, outage: Outage) -> tuple[list[str], str]:
    """The lines of attempts that fail at once, and the message of the stop."""
    lines: list[str] = []
    while True:
        try:
            lines.append(patience.wait(outage))
        except DatapipeError as error:
            return lines, str(error)
        clock.now = patience.resumes_at


@pytest.mark.parametrize("outage", [_full(), Outage(where="s3://bucket/out", cause="no answer")])
def test_outage_without_change_stops_the_run_after_a_minute(outage):
    clock = _Clock()
    lines, stop = _lines_until_stop(Patience(21, clock), clock, outage)
    assert clock.now == pytest.approx(1000 + PATIENCE_S)
    assert len(set(lines)) == len(lines)
    assert all(line.startswith(f"{outage}. Attempt {number} of") for number, line in enumerate(lines, 1))
    assert stop.startswith(f"{outage} ({len(lines) + 1} attempts in 60 s")


def test_outage_stops_after_the_retries_that_the_mixture_allows():
    clock = _Clock()
    lines, _ = _lines_until_stop(Patience(3, clock), clock, _full())
    assert len(lines) == 2
    assert _lines_until_stop(Patience(1, clock), clock, _full())[0] == []


def test_failures_of_other_tasks_during_a_pause_belong_to_the_same_attempt():
    clock = _Clock()
    patience = Patience(21, clock)
    assert patience.wait(_full())
    resumes_at = patience.resumes_at
    clock.now += 0.1
    assert patience.is_waiting
    assert patience.wait(_full()) == ""
    assert patience.resumes_at == resumes_at
    clock.now = resumes_at
    assert "Attempt 2 of" in patience.wait(_full())


@pytest.mark.parametrize("change", ["space", "commit"])
def test_minute_begins_again_when_space_is_freed_or_a_task_is_committed(change):
    clock = _Clock()
    patience = Patience(21, clock)
    assert "Attempt 1 of" in patience.wait(_full())
    clock.now += PATIENCE_S - 1
    if change == "commit":
        patience.change()
    outage = _full(10_000_000 if change == "space" else 0)
    assert "Attempt 1 of" in patience.wait(outage)
    clock.now += PATIENCE_S - 1
    assert "Attempt 2 of" in patience.wait(outage)
    clock.now += 1
    with pytest.raises(DatapipeError, match="3 attempts in 60 s"):
        patience.wait(outage)


def test_free_space_that_only_goes_up_and_down_is_no_change():
    clock = _Clock()
    patience = Patience(21, clock)
    patience.wait(_full(9_000_000))
    for free in (0, 9_100_000, 5_000_000):
        clock.now = max(patience.resumes_at, clock.now)
        patience.wait(_full(free))
    clock.now = 1000 + PATIENCE_S
    with pytest.raises(DatapipeError):
        patience.wait(_full(9_000_000))
