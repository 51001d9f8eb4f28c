"""The local engine: a lost worker costs its task, and no worker outlives its driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from datapipe.engine.local import LocalEngine
from datapipe.engine.protocol import Attempt
from datapipe.plan.work import TrainTask
from datapipe.storage import Root
from datapipe.tokens.training import train_tokenizer
from tests.support.cli_processes import is_running, wait_until
from tests.support.empty_tasks import sample

pytestmark = pytest.mark.medium


def _next(engine: LocalEngine) -> Attempt:
    ended: list[Attempt | None] = []
    wait_until(lambda: ended.append(engine.next_attempt(1.0)) or ended[-1] is not None, "the end of an attempt")
    assert ended[-1] is not None
    return ended[-1]


def _training(content: bytes) -> TrainTask:
    return TrainTask(step="t/train", fingerprint="f" * 64, seed=0, content=content, eos="<|endoftext|>")


@pytest.fixture
def engine(tmp_path):
    made = LocalEngine(str(tmp_path), 2)
    yield made
    made.close()


def test_local_engine_runs_every_task_it_is_given_and_a_task_that_raises_fails(engine):
    tasks = [sample(number) for number in range(6)]
    for task in tasks:
        engine.submit(task, f"attempt-{task.fingerprint}")
    assert sorted(_next(engine).task.fingerprint for _ in tasks) == [task.fingerprint for task in tasks]
    assert len(engine.worker_ids) == 2
    engine.submit(_training(b"not json"), "a")
    failure = _next(engine).failure
    assert failure is not None
    assert (failure.kind, "t/train" in failure.message) == ("user", True)


def test_local_engine_killed_worker_costs_its_task_and_no_other(engine, tmp_path):
    training = _training(train_tokenizer([], vocab_size=257))
    engine.submit(training, "one")
    os.kill(engine.worker_ids[0], signal.SIGSTOP)  # it can no longer finish
    engine.submit(sample(1), "two")
    assert _next(engine).record is not None
    os.kill(engine.worker_ids[0], signal.SIGKILL)
    lost = _next(engine)
    assert lost.task == training
    assert lost.failure is not None
    assert (lost.failure.kind, "SIGKILL" in lost.failure.message) == ("infrastructure", True)
    engine.submit(training, "three")
    again = _next(engine)
    assert again.record is not None
    assert Root(str(tmp_path)).exists(again.record.of("tokenizer")[0].path)


def test_local_engine_idle_worker_that_dies_is_replaced(engine):
    engine.submit(sample(0), "a")
    assert _next(engine).record is not None
    os.kill(engine.worker_ids[0], signal.SIGKILL)
    engine.submit(sample(1), "b")
    attempt = _next(engine)
    if attempt.failure is not None:  # it was given the task before its death was seen
        engine.submit(sample(1), "c")
        attempt = _next(engine)
    assert attempt.record is not None


def test_local_engine_workers_go_when_their_driver_is_killed(tmp_path):
    script = textwrap.dedent(
        f"""
        from datapipe.engine.local import LocalEngine
        from tests.support.empty_tasks import sample
        engine = LocalEngine({str(tmp_path)!r}, 2)
        for number in range(2):
            engine.submit(sample(number), str(number))
        engine.next_attempt(60); engine.next_attempt(60)
        print(*engine.worker_ids, flush=True)
        import signal; signal.pause()
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        workers = [int(worker) for worker in driver.stdout.readline().split()]
        assert len(workers) == 2
        driver.kill()
        driver.wait()
    wait_until(lambda: not any(is_running(worker) for worker in workers), f"the end of workers {workers}")
