"""Attempts of the Ray engine that no one wants any more are withdrawn, and a node that has no datapipe reports it."""

import subprocess
import sys

import pytest

from datapipe.config import load_mixture
from datapipe.engine.run import planned
from datapipe.steps.map import MapTask
from datapipe.storage.root import Root
from tests.support import corpora, hostile_stages, runs
from tests.support.cli_processes import wait_until
from tests.support.late_import import late_import
from tests.support.ray_workers import ray_workers

ray_engine = late_import("datapipe.engine.ray")
ray_nodes = late_import("datapipe.engine.cluster.ray_nodes")

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def _connected():
    """This process has its own cluster, which an engine neither starts nor ends."""
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def endless(tmp_path, monkeypatch, _connected):
    """An engine with one core, a task that never ends, which it has begun, and two that do."""
    hostile_stages.write_module(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("a", "b", "c"):
        documents = corpora.documents(ord(name), 20, exact=0, near=0, short=0)
        documents[0]["text"] += " FOREVER" if name == "a" else ""
        corpora.write_jsonl(tmp_path / f"web/{name}.jsonl", documents)
    stages = f"stages: [{hostile_stages.stage_name(tmp_path)}]\n"
    tail = "tokenizer: none\nexecution: {split_bytes: 4KiB, bucket_bytes: 4KiB}\n"
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/web/*.jsonl\n", stages, tail)
    request, plan = planned(load_mixture(mixture))[:2]
    tasks = {task.splits[0].file.path[0]: task for task in reversed(plan.pending()) if isinstance(task, MapTask)}
    engine = ray_engine.RayEngine(Root(str(tmp_path / "out")), request)
    wait_until(lambda: not engine.messages() and engine.slots, "the kernels of the node")
    engine.submit(tasks["a"], "one")
    wait_until(lambda: engine.next_attempt(0.1) is None and engine.messages(), "a report of the first")
    yield engine, tasks["a"], tasks["b"], tasks["c"]
    if engine._running:
        engine.close()
    wait_until(lambda: not ray_workers(), "the end of the supervisors")


def test_ray_running_attempt_that_is_cancelled_gives_its_place_to_the_next(endless):
    engine, _, short, _ = endless
    engine.cancel("one")
    engine.submit(short, "two")
    [ended] = _all_of(engine)
    assert (ended.attempt, ended.failure) == ("two", None)


def test_ray_waiting_attempt_that_is_cancelled_ends_when_it_begins_and_is_never_reported(endless):
    engine, forever, short, other = endless
    engine.submit(forever, "two")
    engine.cancel("two")
    engine.submit(short, "three")
    engine.cancel("one")
    engine.submit(other, "four")
    ended = _all_of(engine)
    assert sorted((each.attempt, each.failure) for each in ended) == [("four", None), ("three", None)]


def test_ray_engine_that_is_closed_leaves_nothing_running_in_a_cluster_of_others(endless):
    engine, _, short, _ = endless
    engine.submit(short, "two")
    assert ray_workers()
    engine.close()
    wait_until(lambda: not ray_workers(), "the end of both")


def test_ray_attempt_that_reached_a_node_which_compiles_kernels_comes_back_and_the_node_gets_tasks_after_it(endless):
    engine, _, short, _ = endless
    [node] = engine._nodes.known.fit
    engine._nodes.known.answer(node.node_id, [], num_missing=1)
    engine._nodes.update(0.0)
    returned = engine.next_attempt(1.0)
    assert returned is not None and (returned.attempt, returned.failure.kind, engine.slots) == ("one", "node", 0)
    wait_until(lambda: not engine.messages() and engine.slots, "the kernels of the node")
    engine.submit(short, "two")
    [ended] = _all_of(engine)
    assert (ended.attempt, ended.failure) == ("two", None)


def _all_of(engine) -> list:
    """What the attempts that are not withdrawn return."""
    ended = []
    while engine._running:
        if (attempt := engine.next_attempt(1.0)) is not None:
            ended.append(attempt)
    return ended


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("datapipe", "ModuleNotFoundError"),
        ("datapipe.engine.cluster", "ModuleNotFoundError"),  # an older one
        ("numba", "UnpicklingError"),  # no lack by itself, but the question is not one of this datapipe
    ],
)
def test_ray_node_without_the_datapipe_of_the_driver_can_report_it(module, told):
    """The question travels whole: a node that can import nothing of it answers."""
    from ray import cloudpickle

    script = f"import pickle, sys\nsys.modules[{module!r}] = None\nprint(pickle.load(sys.stdin.buffer)(b'?', 'n', [])[0][0])"
    question = cloudpickle.dumps(ray_nodes.question_that_travels())
    done = subprocess.run([sys.executable, "-c", script], input=question, capture_output=True, check=False)
    assert done.stdout.decode().startswith(f"it cannot run the datapipe of the driver: {told}: "), done.stderr.decode()
