"""Numbers in words."""

from __future__ import annotations

import pytest

from datapipe import activity
from datapipe.metrics import TaskMetrics, counted


def test_counted_noun_is_singular_for_one_alone() -> None:
    assert [counted(number, "file") for number in (0, 1, 1001, -1)] == ["0 files", "1 file", "1,001 files", "-1 files"]
    assert [counted(number, "batch", "batches") for number in (1, 2)] == ["1 batch", "2 batches"]


def test_work_is_not_charged_for_what_only_its_first_call_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.0, 19.0, 20.0])
    monkeypatch.setattr(activity, "perf_counter", lambda: next(now))
    metrics = TaskMetrics()
    with metrics.timed("read"), activity.starting():
        pass
    assert metrics.work["read"].seconds == 2.0
