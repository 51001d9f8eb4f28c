"""Training goes on while the corpus grows and processes die: what it was given follows from its last state alone."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cli_processes import run as run_process
from tests.support.cli_processes import start
from tests.support.late_import import late_import
from tests.support.service import served

pytest.importorskip("torch")
growing = late_import("tests.support.growing_corpus")

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    "over", [pytest.param("files", marks=pytest.mark.storm), pytest.param("service", marks=pytest.mark.slow)]
)
def test_training_across_published_snapshots_kills_and_worlds_is_what_its_state_tells(tmp_path: Path, over: str) -> None:
    """Three snapshots that `run --follow` publishes while it trains; killed twice; on two, three and one rank."""
    corpus = tmp_path / "corpus"
    path, output = growing.write_mixture(corpus), str(corpus / "out")
    assert run_process(["run", str(path), "--workers", "1"]).returncode == 0
    with ExitStack() as stack:
        follower = start(["run", str(path), "--workers", "1", "--follow", "0.2"])
        stack.callback(follower.communicate)
        stack.callback(os.killpg, follower.pid, signal.SIGKILL)
        url = output
        if over == "service":
            url = f"{stack.enter_context(served(tmp_path / 'server', f'web={output}', '--no-files')).location}/web"
        trainer = growing.Trainer(url, tmp_path / "trainer")
        for number, world in ((1, 2), (2, 3), (3, 1)):
            trainer.begin(world)
            trainer.wait_for(number, 3)
            growing.add_file(corpus, number)
            trainer.wait_for(number + 1, 7)
            if number < 3:
                trainer.kill()
        trainer.end()
    told = trainer.check(output)
    assert len({step["snapshot"] for step in told}) == 4
