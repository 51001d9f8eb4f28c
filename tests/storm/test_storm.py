"""A short storm: one small round of each kind that is quick. `python -m tests.storm` is the long one."""

import time
from pathlib import Path

import pytest

from tests.storm.__main__ import play
from tests.storm.rounds import KINDS, Storm

SHORT = [kind for kind in KINDS if kind.is_short]


@pytest.mark.storm
@pytest.mark.timeout(1800)
def test_storm_of_a_minute_finds_nothing_wrong(tmp_path: Path) -> None:
    storm = Storm(tmp_path, seed=1, say=print, stops_at=time.monotonic() + 60, is_small=True)
    for kind in SHORT:
        play(storm, kind, 0)
    storm.close()
    assert storm.table.failures == []
    assert set(storm.table.counts) | set(storm.table.skipped) == {kind.name for kind in SHORT}
