"""Dates as seconds, against Python's own."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest

from datapipe.stage import dates

_START = datetime(1, 1, 1, tzinfo=UTC)


def _read(column: pa.Array) -> list[datetime | None]:
    seconds, there = dates.seconds(column)
    return [_START + timedelta(seconds=one) if is_there else None for one, is_there in zip(seconds.tolist(), there.tolist())]


def test_seconds_iso_text_in_any_precision_is_the_same_moment() -> None:
    texts = ["2023", "2023-04", "2023-04-05", "2023-04-05T06:07", " 2023-04-05 06:07:08.9Z\n", "2023-04-05T06:07:08-01:30"]
    expected = [
        datetime(2023, 1, 1),
        datetime(2023, 4, 1),
        datetime(2023, 4, 5),
        datetime(2023, 4, 5, 6, 7),
        datetime(2023, 4, 5, 6, 7, 8),
        datetime(2023, 4, 5, 7, 37, 8),
    ]
    assert _read(pa.array(texts)) == [one.replace(tzinfo=UTC) for one in expected]


def test_seconds_random_moments_equal_those_of_python() -> None:
    drawn = np.random.default_rng(1).integers(0, 315_537_897_599, 300).tolist()
    moments = [_START + timedelta(seconds=one) for one in [0, 315_537_897_599, *drawn]]
    zoned = [one.astimezone(timezone(timedelta(minutes=-345))) for one in moments[2:]]
    assert _read(pa.array([one.isoformat() for one in moments])) == moments
    assert _read(pa.array([one.isoformat() for one in zoned if one.year > 1])) == moments[2:]


@pytest.mark.parametrize(
    "text", ["", "x", "23-04-05", "2023-13-01", "2023-02-29", "1900-02-29", "2023-04-05T24:00", "0000-01-01"]
)
def test_seconds_text_that_is_no_date_is_none(text: str) -> None:
    assert _read(pa.array([text, None, "2024-02-29"])) == [None, None, datetime(2024, 2, 29, tzinfo=UTC)]


def test_seconds_dates_and_timestamps_are_read_as_text_is() -> None:
    moment = datetime(1903, 4, 5, 6, 7, 8, 900_000, tzinfo=UTC)
    assert _read(pa.array([date(1903, 4, 5), None])) == [datetime(1903, 4, 5, tzinfo=UTC), None]
    for unit in ("ms", "us", "ns"):
        column = pa.array([moment, None], pa.timestamp("us", "Europe/Berlin")).cast(pa.timestamp(unit, "UTC"), safe=False)
        assert _read(column) == [moment.replace(microsecond=0), None]
    assert _read(pa.nulls(2)) == [None, None]
