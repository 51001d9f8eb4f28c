"""Figures of the driver, with a clock that tests set."""

from __future__ import annotations

from contextlib import suppress

from datapipe.figures import DriverFigures, Histogram


def test_histogram_counts_a_number_at_a_bound_below_it_and_those_above_every_bound() -> None:
    histogram = Histogram((1, 10))
    for value in (0.5, 1, 2, 10, 11):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 24.5


def test_lag_is_from_the_end_of_each_task_to_the_commit_and_a_commit_that_fails_counts_nothing() -> None:
    now = [100.0]
    figures = DriverFigures(lambda: now[0])

    def commit(records: list[str]) -> list[str]:
        now[0] += 2.0
        if not records:
            raise OSError
        return records

    assert figures.timed(commit, ["a", "b"]) == ["a", "b"]
    figures.committed([99.0, 101.5])
    with suppress(OSError):
        figures.timed(commit, [])
    assert (figures.commit_s.total, sum(figures.commit_s.counts)) == (2.0, 1)
    assert (figures.lag_s.total, sum(figures.lag_s.counts)) == (3.5, 2)
    assert (figures.commit_records.total, sum(figures.commit_records.counts)) == (2, 1)


def test_longest_pause_is_forgotten_after_two_minutes_and_grows_while_the_driver_hangs() -> None:
    now = [1000.0]
    figures = DriverFigures(lambda: now[0])
    for step_s in (0.0, 0.1, 7.0, 0.1):
        now[0] += step_s
        figures.look(8, 3)
    assert (figures.slots, figures.queued) == (8, 3)
    assert figures.longest_pause_s == 7.0
    for _ in range(130):
        now[0] += 1.0
        figures.look(8, -1)
    assert (figures.queued, figures.longest_pause_s) == (0, 1.0)
    now[0] += 40.0
    assert figures.longest_pause_s == 40.0
    figures.end()
    now[0] += 500.0
    assert figures.slots == 0
    assert figures.longest_pause_s == 0.0  # it stands while --follow waits for the next run, perhaps for hours
