"""Attempts: which tasks go first, when a second attempt starts, which end counts; and those of the local engine's workers."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.config.execution import ExecutionSpec
from datapipe.engine.attempts import LEAST_S, LONGEST_WAIT_S, SILENCE_S, Attempts, Pending, input_bytes, largest_first
from datapipe.engine.local import LocalEngine
from datapipe.engine.protocol import Attempt, Failure, Message
from datapipe.machine.activity import Activity
from datapipe.metrics import TaskMetrics
from datapipe.records.commit_files import MOST_RECORDS
from datapipe.records.outputs import Content, Record, TableFile
from datapipe.steps.train import SampleTask, TrainTask
from datapipe.storage.root import Root
from tests.support import hostile_stages, runs
from tests.support.cli_processes import is_running, wait_until
from tests.support.empty_tasks import sample
from tests.support.tokenizer_files import train_tokenizer


def _task(number: int, num_bytes: int = 1000) -> SampleTask:
    return sample(number, (TableFile(path=f"{number}", rows=1, bytes=num_bytes, checksum="", row_bytes=num_bytes),))


class _Engine:
    slots = 2

    def __init__(self) -> None:
        self.submitted: list[tuple[int, str]] = []
        self.cancelled: list[str] = []

    def submit(self, task: Any, attempt: str) -> None:
        self.submitted.append((int(task.fingerprint, 16), attempt))

    def cancel(self, attempt: str) -> None:
        self.cancelled.append(attempt)


class _Case:
    """Attempts with a clock that stands still but for `wait`. One task of 1,000 bytes has taken a second."""

    def __init__(self) -> None:
        self.now, self.engine = 0.0, _Engine()
        self.attempts = Attempts(self.engine, lambda event: None, lambda: self.now)
        assert self.ends(_task(0), self.attempts.submit(_task(0)), seconds=1.0)

    def wait(self, seconds: float, *running: str, silent_s: float = 0.0, activity: Activity | None = None) -> None:
        messages = [Message(attempt=name, task="web/sample", silent_s=silent_s, activity=activity) for name in running]
        self.attempts.update(messages)
        self.now += seconds
        self.attempts.update(messages)

    def ends(self, task: Any, attempt: str, seconds: float = 1.0) -> bool:
        self.record = Record(task.step, task.fingerprint, Content({}, TaskMetrics(seconds=seconds)))
        return self.attempts.ended(Attempt(task=task, attempt=attempt, record=self.record)) is not None

    def fails(self, task: Any, attempt: str, kind: str) -> bool:
        failure = Failure(kind=kind, message="")
        return self.attempts.ended(Attempt(task=task, attempt=attempt, failure=failure)) is not None


@pytest.fixture
def case() -> _Case:
    return _Case()


def _doubled(case: _Case, task: Any) -> tuple[str, str]:
    """Two attempts at a task, the second of which has just started."""
    first = case.attempts.submit(task)
    case.wait(LEAST_S, first)
    assert case.attempts.start_second()
    return first, case.engine.submitted[-1][1]


@pytest.mark.parametrize(("num_bytes", "seconds", "is_slow"), [
    (1000, LEAST_S - 0.1, False),
    (1000, LEAST_S, True),
    (100_000, 199.9, False),  # a hundred times the input may take twice a hundred seconds
    (100_000, 200.0, True),
])  # fmt: skip
def test_an_attempt_is_slow_by_what_others_took_for_as_much_input(case, num_bytes, seconds, is_slow):
    first = case.attempts.submit(_task(1, num_bytes))
    case.wait(seconds, first)
    assert bool(case.attempts.start_second()) == is_slow
    assert [number for number, _ in case.engine.submitted] == [0, 1, *[1] * is_slow]


def test_a_silent_attempt_gets_a_second_one_where_nothing_is_known_of_its_step():
    case = _Case()
    alone = Attempts(case.engine, lambda event: None, lambda: case.now)
    attempt = alone.submit(_task(1))
    alone.update([Message(attempt=attempt, task="", silent_s=SILENCE_S - 1)])
    case.now += 1e6
    assert alone.start_second() == ""
    alone.update([Message(attempt=attempt, task="", silent_s=SILENCE_S)])
    assert alone.start_second()


def test_an_attempt_that_waits_gets_no_second_one_and_no_task_gets_a_third(case):
    first = case.attempts.submit(_task(1))
    case.wait(1e6, first, activity=Activity(work="a kernel", is_waiting=True))
    assert case.attempts.start_second() == ""
    second = _doubled(case, _task(2))
    case.wait(1e6, *second)
    assert case.attempts.start_second() == ""


def test_the_one_that_is_late_by_most_goes_first(case):
    small, large = case.attempts.submit(_task(1)), case.attempts.submit(_task(2, 10_000))
    case.wait(21.0, small, large)
    case.attempts.start_second()
    assert [number for number, _ in case.engine.submitted][3:] == [1]
    case.attempts.start_second()
    assert [number for number, _ in case.engine.submitted][3:] == [1, 2]


@pytest.mark.parametrize("winner", [0, 1])
def test_the_first_record_counts_and_the_other_attempt_is_cancelled(case, winner):
    task = _task(1)
    both = _doubled(case, task)
    assert case.ends(task, both[winner])
    assert case.record.metrics.second_attempt == ("lost", "won")[winner]
    assert case.engine.cancelled == [both[1 - winner]]
    assert not case.ends(task, both[1 - winner])
    assert len(case.attempts) == 0


@pytest.mark.parametrize("kind", ["task", "memory", "infrastructure", "node", "crash", "stall", "user", "stage", "damage"])
def test_a_failure_counts_where_no_other_attempt_goes_on_or_any_would_fail_too(case, kind):
    task = _task(1)
    first, second = _doubled(case, task)
    counts_at_once = kind in ("user", "stage", "damage")
    assert case.fails(task, first, kind) == counts_at_once
    assert case.engine.cancelled == [second] * counts_at_once
    if not counts_at_once:
        assert case.fails(task, second, kind)
        assert len(case.attempts) == 0


def test_group_is_due_when_its_first_record_has_waited_or_when_it_is_full() -> None:
    now = [10.0]
    pending, attempt = Pending(clock=lambda: now[0]), Attempt(task=_task(0), attempt="a")
    assert pending.due_in_s == float("inf")
    pending.add(attempt)
    now[0] += LONGEST_WAIT_S / 2
    pending.add(attempt)
    assert 0 < pending.due_in_s <= LONGEST_WAIT_S / 2
    now[0] += LONGEST_WAIT_S
    assert pending.due_in_s == 0
    record = Record("web/sample", "0", Content({}, TaskMetrics()))
    committed = pending.take([record, record], 2.0)
    assert committed.lags_s == pytest.approx([1.5 * LONGEST_WAIT_S, LONGEST_WAIT_S])
    assert [each.record for each in committed.attempts] == [record, record]
    assert (pending.due_in_s, pending.by_step) == (float("inf"), {})
    for _ in range(MOST_RECORDS):
        assert pending.due_in_s > 0
        pending.add(attempt)
    assert (pending.due_in_s, pending.by_step.total()) == (0, MOST_RECORDS)


@given(st.lists(st.integers(0, 40), max_size=30))
def test_largest_first_puts_the_large_ones_first_and_leaves_the_others_in_order(sizes):
    tasks = [_task(number, 2**size) for number, size in enumerate(sizes)]
    ordered = largest_first(tasks)
    assert sorted(ordered, key=lambda task: task.fingerprint) == tasks
    usual = sorted(map(input_bytes, tasks))[len(tasks) // 2] if tasks else 0
    rest = [task for task in ordered if input_bytes(task) <= usual]
    assert rest == [task for task in tasks if input_bytes(task) <= usual]
    front = [input_bytes(task) for task in ordered[: len(tasks) - len(rest)]]
    if front and min(front) > 4 * usual:
        assert front == sorted(front, reverse=True)


@pytest.mark.slow
def test_a_worker_that_stands_still_is_overtaken_by_a_second_attempt_to_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("datapipe.engine.attempts.LEAST_S", 1.0)
    monkeypatch.syspath_prepend(tmp_path)
    hostile_stages.write_module(tmp_path)
    mixture, options = hostile_stages.write_mixture(tmp_path, {17: "STOPPED"}), ["execution.split_bytes=16KiB"]
    watcher = runs.Watcher()
    overtaken = runs.run_mixture(mixture, output=tmp_path / "overtaken", overrides=options, watcher=watcher)
    plain = runs.run_mixture(mixture, output=tmp_path / "plain", overrides=options, make_engine=runs.InProcess)
    assert (overtaken.checksums, overtaken.snapshot) == (plain.checksums, plain.snapshot)
    assert overtaken.report["second_attempts"]["web/read"]["tasks"] >= 1  # whichever of its attempts stands still
    assert plain.report["second_attempts"] == {}
    assert watcher.retries == []
    folders = {path.parts[-2] for path in (tmp_path / "overtaken/work/attempts").glob("*/*/*")}
    committed = {Path(file.path).parts[-2] for record in watcher.records for files in record.outputs.values() for file in files}
    assert folders <= committed


def _next(engine: LocalEngine) -> Attempt:
    ended: list[Attempt | None] = []
    wait_until(lambda: ended.append(engine.next_attempt(1.0)) or ended[-1] is not None, "the end of an attempt")
    assert ended[-1] is not None
    return ended[-1]


def _training(content: bytes) -> TrainTask:
    return TrainTask(step="t/train", fingerprint="f" * 64, seed=0, content=content, eos="<|endoftext|>")


@pytest.fixture
def engine(tmp_path):
    made = LocalEngine(str(tmp_path), 2, ExecutionSpec())
    yield made
    made.close()


@pytest.mark.medium
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


@pytest.mark.medium
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


@pytest.mark.slow
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


@pytest.mark.medium
def test_local_engine_workers_go_when_their_driver_is_killed_also_a_stopped_one(tmp_path):
    script = f"""
from datapipe.config.execution import ExecutionSpec
from datapipe.engine.local import LocalEngine
from tests.support.empty_tasks import sample
engine = LocalEngine({str(tmp_path)!r}, 2, ExecutionSpec())
for number in range(2):
    engine.submit(sample(number), str(number))
engine.next_attempt(60); engine.next_attempt(60)
print(*engine.worker_ids, flush=True)
import signal; signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        workers = [int(worker) for worker in driver.stdout.readline().split()]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGSTOP)
        driver.kill()
        driver.wait()
    wait_until(lambda: not any(is_running(worker) for worker in workers), f"the end of workers {workers}")


@pytest.mark.slow
def test_local_engine_gives_up_attempts_that_run_or_wait_and_no_other(engine):
    for number, attempt in enumerate(("running", "running too", "waiting", "kept")):
        engine.submit(sample(number), attempt)
        for worker in engine.worker_ids[number : number + 1]:
            os.kill(worker, signal.SIGSTOP)  # it cannot finish
    for attempt in ("waiting", "unheard of", "running", "running too"):
        engine.cancel(attempt)
    kept = _next(engine)
    assert (kept.attempt, kept.failure, engine.next_attempt(0.1)) == ("kept", None, None)
