"""A short storm: one small round of each kind that is quick. `python -m tests.storm` is the long one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.storm.__main__ import all_faults, play
from tests.storm.rounds import Storm, Table, Verdict

SHORT = [kind for kind in all_faults() if kind.is_short]


@pytest.mark.storm
@pytest.mark.timeout(1800)
def test_storm_of_a_minute_finds_nothing_wrong(tmp_path: Path) -> None:
    storm = Storm(tmp_path, seed=1, say=print, stops_at=time.monotonic() + 60, is_small=True)
    for kind in SHORT:
        play(storm, kind, 0)
    storm.close()
    assert storm.table.failures == []
    assert set(storm.table.counts) | set(storm.table.skipped) == {kind.name for kind in SHORT}


def test_storm_table_counts_faults_by_verdict_and_tells_what_was_skipped() -> None:
    table = Table()
    table.add("kill", Verdict.SAME, 4)
    table.add("kill", Verdict.REFUSED, 1_000)
    assert not table.is_wrong
    table.add("flip", Verdict.WRONG, 1)
    table.skipped["clock"] = "no compiler"
    table.rounds.update(["kill", "kill", "flip"])
    assert table.is_wrong
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.lines()]
    assert cells[0] == ["fault", "rounds", "faults", "same bytes", "refused, fault named", "wrong"]
    assert cells[2:4] == [["kill", "2", "1,004", "4", "1,000", "0"], ["flip", "1", "1", "0", "0", "1"]]
    assert cells[4] == ["clock: skipped, no compiler"]
