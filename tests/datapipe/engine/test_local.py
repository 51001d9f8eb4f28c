"""The local engine: a lost worker costs its task, and no worker outlives its driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from datapipe.engine.local import LocalEngine
from datapipe.engine.protocol import Attempt
from datapipe.plan.work import SampleTask, TrainTask
from datapipe.storage import Root
from datapipe.tokens.training import train_tokenizer
from tests.support.cli_processes import DEADLINE_S, is_running, wait_until

pytestmark = pytest.mark.medium


def _task(number: int) -> SampleTask:
    """A task that ends at once: a sample of no documents."""
    return SampleTask(
        step="s/sample",
        fingerprint=f"{number:064x}",
        seed=0,
        before="",
        documents=(),
        fraction=1.0,
        validation=0.0,
        pattern="gpt2",
    )


def _next(engine: LocalEngine) -> Attempt:
    started = time.monotonic()
    while time.monotonic() - started < DEADLINE_S:
        attempt = engine.next_attempt(1.0)
        if attempt is not None:
            return attempt
    raise AssertionError("no attempt ended in time")


@pytest.fixture
def engine(tmp_path):
    made = LocalEngine(str(tmp_path), 2)
    yield made
    made.close()


def test_local_engine_runs_every_task_it_is_given(engine):
    for number in range(6):
        engine.submit(_task(number), f"attempt-{number}")
    done = sorted(_next(engine).task.fingerprint for _ in range(6))
    assert done == [f"{number:064x}" for number in range(6)]
    assert len(engine.worker_ids) == 2


def test_local_engine_killed_worker_costs_its_task_and_no_other(engine, tmp_path):
    content = train_tokenizer([], vocab_size=257)
    slow = TrainTask(step="t/train", fingerprint="f" * 64, seed=0, content=content, eos="<|endoftext|>")
    engine.submit(slow, "one")
    os.kill(engine.worker_ids[0], signal.SIGSTOP)  # it can no longer finish
    engine.submit(_task(1), "two")
    assert _next(engine).record is not None
    os.kill(engine.worker_ids[0], signal.SIGKILL)
    lost = _next(engine)
    assert lost.task == slow
    assert lost.failure is not None
    assert lost.failure.kind == "infrastructure"
    assert "SIGKILL" in lost.failure.message

    engine.submit(slow, "three")
    again = _next(engine)
    assert again.record is not None
    assert Root(str(tmp_path)).exists(again.record.of("tokenizer")[0].path)


def test_local_engine_idle_worker_that_dies_is_replaced(engine):
    engine.submit(_task(0), "a")
    assert _next(engine).record is not None
    os.kill(engine.worker_ids[0], signal.SIGKILL)
    engine.submit(_task(1), "b")
    attempt = _next(engine)
    if attempt.failure is not None:  # it was given the task before its death was seen
        engine.submit(_task(1), "c")
        attempt = _next(engine)
    assert attempt.record is not None


def test_local_engine_task_that_raises_is_a_failure_of_the_task(engine):
    engine.submit(TrainTask(step="t/train", fingerprint="0" * 64, seed=0, content=b"not json", eos=None), "a")
    failure = _next(engine).failure
    assert failure is not None
    assert failure.kind == "user"
    assert "t/train" in failure.message


def test_local_engine_workers_go_when_their_driver_is_killed(tmp_path):
    script = textwrap.dedent(
        f"""
        from datapipe.engine.local import LocalEngine
        from datapipe.plan.work import SampleTask
        engine = LocalEngine({str(tmp_path)!r}, 2)
        for number in range(2):
            engine.submit(SampleTask(step="s/sample", fingerprint=str(number), seed=0, before="", documents=(), fraction=1.0,
                                     validation=0.0, pattern="gpt2"), str(number))
        engine.next_attempt(60); engine.next_attempt(60)
        print(*engine.worker_ids, flush=True)
        import signal; signal.pause()
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        workers = [int(one) for one in driver.stdout.readline().split()]
        assert len(workers) == 2
        driver.kill()
        driver.wait()
    wait_until(lambda: not any(is_running(worker) for worker in workers), f"the end of workers {workers}")
