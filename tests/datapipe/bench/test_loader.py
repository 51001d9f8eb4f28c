"""The simulated trainer: its figures follow from its waits and from the build times."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.bench.loader import DEPTHS, bench_loader, forecast
from datapipe.errors import UserError
from datapipe.loader import Loader
from tests.support.snapshots import make_snapshot

S = 16


def test_forecast_of_a_worked_example() -> None:
    found = forecast([3, 1, 1, 5, 1], step_s=2, depths=(0, 1, 2, 3), threads_of=lambda depth: min(2, depth), batch_bytes=10)
    waited = [1 + 1 + 5 + 1, 3, 1, 0]  # the first batch apart; two threads from depth 2 on
    assert [one.wait_s * 4 for one in found] == waited
    assert [one.longest_wait_s for one in found] == [5, 3, 1, 0]
    assert [one.lost_share for one in found] == [wait / (wait + 8) for wait in waited]
    assert [one.host_bytes for one in found] == [20, 20, 30, 40]  # batches requested ahead, and the one that the trainer holds


def test_bench_runs_the_steps_and_measures_build_times_of_later_batches(tmp_path: Path) -> None:
    output = make_snapshot(tmp_path, {"web": 40})
    computed: list[float] = []
    loaders = [Loader(output, batch_size=4, prefetch=3)]
    found = bench_loader(loaders.pop, step_s=0.08, steps=12, compute=computed.append)
    assert computed == [0.08] * 12
    assert (found.stats.steps, len(found.waits_s), len(found.build_s)) == (12, 11, 12)
    assert all(seconds > 0 for seconds in (found.open_s, found.first_batch_s, *found.waits_s, *found.build_s))
    assert tuple(one.prefetch for one in found.forecasts) == DEPTHS
    assert found.stats.host_memory.batch_bytes == 4 * S * 8 * 2


def test_bench_of_finite_data_stops_at_its_end(tmp_path: Path) -> None:
    output = make_snapshot(tmp_path, {"web": 40}, total_tokens=S * 20)
    found = bench_loader(lambda: Loader(output, batch_size=4), step_s=0.0, steps=99, compute=lambda _: None)
    assert (found.stats.steps, len(found.build_s)) == (5, 5)
    with pytest.raises(UserError, match="fewer sequences than a global batch"):
        bench_loader(lambda: Loader(output, batch_size=64), step_s=0.0, steps=9)
