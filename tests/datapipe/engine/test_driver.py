"""The driver with engines that run nothing: in which order tasks are tried, and how many attempts a run takes until it ends."""

from __future__ import annotations

import pytest

from datapipe.activity import Activity
from datapipe.config import load_mixture
from datapipe.engine.protocol import Attempt, Failure
from datapipe.engine.run import Run, planned
from datapipe.errors import DatapipeError
from datapipe.outages import Outage
from datapipe.watching.state import RunState
from tests.support import corpora, runs


class _Failing:
    """An engine of two workers, of which every attempt ends in the same way."""

    slots = 2

    def __init__(self, failure: Failure) -> None:
        self.failure, self.waiting, self.tried = failure, [], []

    def submit(self, task, attempt):
        self.waiting.append((task, attempt))

    def next_attempt(self, timeout_s):
        task, attempt = self.waiting.pop(0)
        self.tried.append(task)
        return Attempt(task=task, attempt=attempt, failure=self.failure)

    def messages(self):
        return ()

    def close(self): ...


def test_figures_tell_which_store_all_tasks_wait_for_until_the_run_ends(tmp_path):
    corpora.write_jsonl(tmp_path / "web.jsonl", corpora.documents(5, 20))
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/web.jsonl\n", "stages: [normalize.unicode]")
    outage = Outage(where="s3://bucket/a.jsonl", cause="no answer: 503 Slow Down")
    engine, state, seen = _Failing(Failure(kind="infrastructure", message="", outage=outage)), RunState(), []

    class Seen(runs.Watcher):
        def retried(self, task, failure):
            seen.append(state.waiting())
            raise DatapipeError("seen")

    run = Run(load_mixture(mixture), lambda root, request: engine, Seen(), figures=state.driver)
    with pytest.raises(DatapipeError, match="seen"):
        run.execute()
    assert seen == [["s3://bucket/a.jsonl: no answer"]]
    assert state.waiting() == []


@pytest.mark.parametrize(("kind", "told"), [("stall", "for the second time"), ("crash", "for the second time")])
def test_work_that_fails_in_every_task_ends_the_run_after_few_attempts_of_many_tasks(tmp_path, kind, told):
    corpora.write_jsonl(tmp_path / "web.jsonl", corpora.documents(5, 200, exact=0, near=0, short=0))
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/web.jsonl\n", "stages: [normalize.unicode]")
    failure = Failure(kind=kind, message="ended", cause="SIGSEGV", activity=Activity(work="normalize.unicode: open"))
    engine, overrides = _Failing(failure), ["execution.split_bytes=4KiB"]
    num_tasks = len(planned(load_mixture(mixture, overrides))[1].pending())
    assert num_tasks > 4 * engine.slots
    with pytest.raises(DatapipeError, match=told):
        runs.run_mixture(mixture, make_engine=lambda root, request: engine, overrides=overrides)
    assert len(engine.tried) <= 2 * engine.slots + 1
