"""Attempts of the Ray engine that nobody wants any more: running ones, waiting ones, and those of an engine that was closed."""

from __future__ import annotations

import pytest

from datapipe.config import load_mixture
from datapipe.engine.run import planned
from datapipe.plan.work import MapTask
from datapipe.storage import Root
from tests.support import corpora, hostile_stages, runs
from tests.support.cli_processes import wait_until
from tests.support.late_import import late_import
from tests.support.ray_workers import ray_workers

ray_engine = late_import("datapipe.engine.ray")

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def _connected():
    """This process has a cluster of its own, which an engine neither starts nor ends."""
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def endless(tmp_path, monkeypatch, _connected):
    """An engine with one core, a task that never ends, and two that do."""
    hostile_stages.write_module(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("a", "b", "c"):
        documents = corpora.documents(ord(name), 20, exact=0, near=0, short=0)
        if name == "a":
            documents[0]["text"] += " FOREVER"
        corpora.write_jsonl(tmp_path / f"web/{name}.jsonl", documents)
    mixture = runs.write_mixture(
        tmp_path,
        f"  web:\n    path: {tmp_path}/web/*.jsonl\n",
        f"stages: [{hostile_stages.stage_name(tmp_path)}]\n",
        "tokenizer: none\nexecution: {split_bytes: 4KiB, bucket_bytes: 4KiB}\n",
    )
    request, plan = planned(load_mixture(mixture))[:2]
    tasks = {task.splits[0].file.path[0]: task for task in reversed(plan.pending()) if isinstance(task, MapTask)}
    engine = ray_engine.RayEngine(Root(str(tmp_path / "out")), request)
    yield engine, tasks["a"], tasks["b"], tasks["c"]
    if engine._running:
        engine.close()
    wait_until(lambda: not ray_workers(), "the end of the supervisors")


def test_ray_running_attempt_that_is_cancelled_gives_its_place_to_the_next(endless):
    engine, forever, short, _ = endless
    _begin(engine, forever)
    engine.cancel("one")
    engine.submit(short, "two")
    [ended] = _all_of(engine)
    assert (ended.attempt, ended.failure) == ("two", None)


def test_ray_waiting_attempt_that_is_cancelled_ends_when_it_begins_and_is_never_told(endless):
    engine, forever, short, other = endless
    _begin(engine, forever)
    engine.submit(forever, "two")
    engine.cancel("two")
    engine.submit(short, "three")
    engine.cancel("one")
    engine.submit(other, "four")
    ended = _all_of(engine)
    assert sorted((each.attempt, each.failure) for each in ended) == [("four", None), ("three", None)]


def test_ray_engine_that_is_closed_leaves_nothing_running_in_a_cluster_of_others(endless):
    engine, forever, short, _ = endless
    _begin(engine, forever)
    engine.submit(short, "two")
    assert ray_workers()
    engine.close()
    wait_until(lambda: not ray_workers(), "the end of both")


def _begin(engine, forever) -> None:
    engine.submit(forever, "one")
    wait_until(lambda: engine.next_attempt(0.1) is None and engine.messages(), "a report of the first")


def _all_of(engine) -> list:
    """What the attempts that are not withdrawn return."""
    ended = []
    while engine._running:
        if (attempt := engine.next_attempt(1.0)) is not None:
            ended.append(attempt)
    return ended
