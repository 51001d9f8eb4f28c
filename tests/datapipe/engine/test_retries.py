"""What follows from ends of attempts and from outages, decided without any process and with a clock of the test's own."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from datapipe.config import load_mixture
from datapipe.config.execution import ExecutionSpec
from datapipe.engine import retries as retries_module
from datapipe.engine.events import Event, Retried
from datapipe.engine.protocol import Attempt, Engine, Failure
from datapipe.engine.retries import (
    LEAST_LIMIT_BYTES,
    MOST_CRASHING_DOCUMENTS,
    MOST_RETURNS,
    MOST_UNNAMED_CRASHES,
    POLICY,
    OutageWait,
    Retries,
    TaskFailedError,
)
from datapipe.engine.run import Run, planned
from datapipe.engine.watching.state import RunState
from datapipe.errors import DatapipeError, UserError
from datapipe.machine.activity import Activity
from datapipe.steps.kind import Task
from datapipe.steps.map import MapTask
from datapipe.steps.merge import MergeTask
from datapipe.steps.train import TrainTask
from datapipe.storage.outages import Outage
from tests.support import corpora, runs

TASK = MapTask(step="web/read", fingerprint="a" * 64, seed=0)
TRAIN = TrainTask(step="tokenizer/train", fingerprint="b" * 64, seed=0, eos=None)


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(retries_module, "POLICY", replace(retries_module.POLICY, first_s=0.0))

    def made(on_crash: Any = "fail", max_retries: int = 3) -> Retries:
        execution = ExecutionSpec(max_retries=max_retries, max_infrastructure_retries=20, on_crash=on_crash)
        return Retries(execution, locate=lambda task, key: f"web/b.jsonl:{key[0]}")

    return made


def _on(num_docs: int, number: int = 0) -> Activity:
    key = bytes([number + 1]) * 16
    return Activity(work="filter.length", place=f"a.jsonl:{number}", key=key, num_docs=num_docs, num_bytes=100)


def _ended(kind: str, cause: str, *on: int, at: Activity | None = None) -> Failure:
    activity = at or (_on(*on) if on else None)
    return Failure(kind=kind, message=f"ended by {cause} at {activity}", cause=cause, activity=activity, memory_bytes=1 << 30)


def _crash(*on: int, cause: str = "SIGSEGV", at: Activity | None = None) -> Failure:
    return _ended("crash", cause, *on, at=at)


def _kill(*on: int, cause: str = "SIGKILL", at: Activity | None = None) -> Failure:
    return _ended("infrastructure", cause, *on, at=at)


_stall, _memory = partial(_ended, "stall", ""), partial(_ended, "memory", "memory")


def _after(retries: Retries, failures: list[Failure], task: Task = TASK) -> Any:
    """The attempt after these failures."""
    for failure in failures:
        retries.add(task, failure)
        (task,) = retries.due()
    return task


READING = Activity(work="read", place="web/a.parquet")
NAMED_BY_POSITION = Activity(work="filter.length", place="web/b.jsonl:8", key=bytes([8]) * 16, num_docs=1)


@pytest.mark.parametrize(
    ("on_crash", "failures", "last", "told"),
    [
        ("fail", [_crash(80)] * 2, _crash(1, 7), r"a\.jsonl:7 \(web/b\.jsonl:8\) crashes filter\.length: SIGSEGV.*on_crash"),
        ("fail", [_crash(at=NAMED_BY_POSITION)], _crash(at=NAMED_BY_POSITION), r"the document web/b\.jsonl:8 crashes"),
        ("fail", [_crash(at=READING)], _crash(at=READING), r"read, at web/a\.parquet, for the second time"),
        (
            "quarantine",
            [_crash(1, 0), *(_crash(1, number) for number in range(MOST_CRASHING_DOCUMENTS))],
            _crash(1, 200),
            f"after {MOST_CRASHING_DOCUMENTS} other documents",
        ),
        ("quarantine", [_crash(80, n) for n in range(MOST_UNNAMED_CRASHES)], _crash(80, 99), "on no document alone"),
        ("quarantine", [_stall(80)], _stall(1, 3), r"second time.*a\.jsonl:3 \(web/b\.jsonl:4\).*stall_s, now 600"),
        ("fail", [_stall(at=Activity(work=f"w{n}")) for n in range(20)], _stall(at=READING), "failed 21 times"),
        ("fail", [_kill(80), _kill(80), _kill(1, 7)], _kill(1, 7), r"a\.jsonl:7 .*crashes filter\.length: SIGKILL"),
        ("fail", [_kill(80, n) for n in range(20)], _kill(80, 99), "failed 21 times"),  # a machine is taken away anywhere
        ("fail", [_kill(1, 7), _kill(1, 7, cause="SIGTERM")] * 10, _kill(1, 8), "failed 21 times"),
        ("fail", [_kill(1, 7, cause="OOM")] * 20, _kill(80, 99), "failed 21 times"),  # another machine may have more memory
        ("fail", [_kill(at=READING)] * 20, _kill(80, 99), "failed 21 times"),
        ("fail", [_memory(1)] * 3, _memory(1), r"Raise execution\.memory, or take out the document"),
        ("fail", [_memory()] * 3, _memory(), "failed 4 times"),
        ("fail", [_ended("task", "")] * 3, _ended("task", ""), "failed 4 times"),
        ("fail", [_ended("node", "")] * MOST_RETURNS, _ended("node", "SIGTERM"), "ended by SIGTERM"),
    ],
)
def test_run_ends_after_failures_that_another_attempt_cannot_mend(make, on_crash, failures, last, told):
    retries = make(on_crash)
    task = _after(retries, failures)
    with pytest.raises(TaskFailedError, match=told):
        retries.add(task, last)


def test_task_without_documents_that_crashes_twice_ends_the_run_and_one_that_is_given_back_or_wrong_is_not_counted(make):
    retries = make("quarantine", max_retries=0)
    assert retries.add(TRAIN, _ended("node", "")) == ""
    assert retries.due() == [TRAIN]
    with pytest.raises(UserError, match="wrong"):
        retries.add(TRAIN, Failure(kind="user", message="wrong"))
    assert _after(retries, [_crash(at=READING)], TRAIN) == TRAIN
    with pytest.raises(TaskFailedError, match="for the second time"):
        retries.add(TRAIN, _crash(at=READING))


@pytest.mark.parametrize(
    ("on_crash", "failures", "one_by_one", "known_crashes", "most_docs"),
    [
        ("fail", [_crash(80)], [], {}, None),
        ("fail", [_crash(80)] * 2, [0], {}, None),
        ("fail", [_crash(at=READING), _crash(cause="SIGABRT", at=READING)], [], {}, None),  # signals are counted apart
        ("quarantine", [_crash(80), _crash(80), _crash(1, 7), _crash(1, 9)], [0], {7: "SIGSEGV", 9: "SIGSEGV"}, None),
        ("quarantine", [_crash(1, 7), _crash(1, 7), _crash(80, 20)], [20], {7: "SIGSEGV"}, None),
        ("quarantine", [_stall(80)], [0], {}, None),
        ("fail", [_kill(80)], [], {}, None),
        ("fail", [_kill(80)] * 2, [0], {}, None),
        ("quarantine", [_kill(80), _kill(80), _kill(1, 7), _kill(1, 7)], [0], {7: "SIGKILL"}, None),
        ("fail", [_kill(80, cause="OOM")], [], {}, 40),
        ("fail", [_memory(num_docs) for num_docs in (80, 40, 20, 10, 5)], [], {}, 2),
        ("quarantine", [_memory(1, 7)], [], {}, None),
        ("quarantine", [_memory(1, 7)] * 2, [], {7: "memory"}, None),
        ("fail", [_memory(80), _crash(40), _crash(40)], [0], {}, 40),
    ],
)
def test_next_attempt_has_hints_of_what_failures_have_shown(make, on_crash, failures, one_by_one, known_crashes, most_docs):
    hints = _after(make(on_crash, max_retries=1), failures).hints
    assert {stage for stage, *_ in (*hints.one_by_one, *hints.known_crashes)} <= {"filter.length"}
    suspected = {key for _, key in hints.one_by_one}
    assert suspected <= {_on(1, number).key for number in (*one_by_one, *known_crashes)}
    assert {_on(1, number).key for number in one_by_one} <= suspected
    assert {key: cause for _, key, cause in hints.known_crashes} == {
        _on(1, number).key: cause for number, cause in known_crashes.items()
    }
    assert hints.most_docs == most_docs


def test_task_of_rows_that_takes_too_much_memory_gets_fewer_rows_at_once_and_fails_in_the_end(make):
    retries = make(max_retries=0)
    about = {"step": "d/merge", "fingerprint": "c" * 64, "seed": 0, "tables": {}}
    task: Any = MergeTask(**about, start=0, stop=1, limit_bytes=100 << 20)
    limits = []
    for _ in range(4):
        task = _after(retries, [_memory()], task)
        limits.append(task.limit_bytes)
    assert limits == [50 << 20, 25 << 20, 25 << 19, LEAST_LIMIT_BYTES]
    with pytest.raises(TaskFailedError, match=r"Raise execution\.memory$"):
        retries.add(task, _memory())


def _full(free_bytes: int = 0) -> Outage:
    return Outage(where="/data/out", cause="the disk is full", free_bytes=free_bytes)


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _lines_until_stop(wait: OutageWait, clock: _Clock, outage: Outage) -> tuple[list[str], str]:
    """The lines of attempts that fail at once, and the message of the stop."""
    lines: list[str] = []
    while True:
        try:
            lines.append(wait.wait(outage))
        except DatapipeError as error:
            return lines, str(error)
        clock.now = wait.resumes_at


@pytest.mark.parametrize("outage", [_full(), Outage(where="s3://bucket/out", cause="no answer")])
def test_outage_without_change_stops_the_run_after_a_minute_or_the_retries_that_the_mixture_allows(outage):
    clock = _Clock()
    lines, stop = _lines_until_stop(OutageWait(21, clock), clock, outage)
    assert clock.now == pytest.approx(1000 + POLICY.most_s)
    assert len(set(lines)) == len(lines)
    assert all(line.startswith(str(outage)) for line in [*lines, stop])
    for attempts in (1, 3):
        assert len(_lines_until_stop(OutageWait(attempts, clock), clock, outage)[0]) == attempts - 1


def test_failures_of_other_tasks_during_a_pause_belong_to_the_same_attempt():
    clock = _Clock()
    wait = OutageWait(21, clock)
    assert wait.wait(_full())
    resumes_at = wait.resumes_at
    clock.now += 0.1
    assert wait.is_waiting
    assert wait.wait(_full()) == ""
    assert wait.resumes_at == resumes_at
    clock.now = resumes_at
    assert "Attempt 2 of" in wait.wait(_full())


@pytest.mark.parametrize("change", ["space", "commit"])
def test_minute_begins_again_when_space_is_freed_or_a_task_is_committed(change):
    clock = _Clock()
    wait = OutageWait(21, clock)
    assert "Attempt 1 of" in wait.wait(_full())
    clock.now += POLICY.most_s - 1
    if change == "commit":
        wait.change()
    outage = _full(10_000_000 if change == "space" else 0)
    assert "Attempt 1 of" in wait.wait(outage)
    clock.now += POLICY.most_s - 1
    assert "Attempt 2 of" in wait.wait(outage)
    clock.now += 1
    with pytest.raises(DatapipeError):
        wait.wait(outage)


def test_free_space_that_only_goes_up_and_down_is_no_change():
    clock = _Clock()
    wait = OutageWait(21, clock)
    wait.wait(_full(9_000_000))
    for free in (0, 9_100_000, 5_000_000):
        clock.now = max(wait.resumes_at, clock.now)
        wait.wait(_full(free))
    clock.now = 1000 + POLICY.most_s
    with pytest.raises(DatapipeError):
        wait.wait(_full(9_000_000))


class _Failing(Engine):
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


def _mixture(folder, count):
    corpora.write_jsonl(folder / "web.jsonl", corpora.documents(5, count, exact=0, near=0, short=0))
    return runs.write_mixture(folder, f"  web:\n    path: {folder}/web.jsonl\n", "stages: [normalize.unicode]")


def test_figures_report_which_store_all_tasks_wait_for_until_the_run_ends(tmp_path):
    outage = Outage(where="s3://bucket/a.jsonl", cause="no answer: 503 Slow Down")
    engine, state, seen = _Failing(Failure(kind="infrastructure", message="", outage=outage)), RunState(), []

    def observe(event: Event) -> None:
        state.observe(event)
        if isinstance(event, Retried):
            seen.append(state.waiting())
            raise DatapipeError("seen")

    run = Run(load_mixture(_mixture(tmp_path, 20)), observe, make_engine=lambda root, request: engine)
    with pytest.raises(DatapipeError, match="seen"):
        run.execute()
    assert seen == [["s3://bucket/a.jsonl: no answer"]]
    assert state.waiting() == []


@pytest.mark.parametrize("kind", ["stall", "crash"])
def test_work_that_fails_in_every_task_ends_the_run_after_few_attempts_of_many_tasks(tmp_path, kind):
    mixture = _mixture(tmp_path, 200)
    failure = Failure(kind=kind, message="ended", cause="SIGSEGV", activity=Activity(work="normalize.unicode: open"))
    engine, overrides = _Failing(failure), ["execution.split_bytes=4KiB"]
    assert len(planned(load_mixture(mixture, overrides))[1].pending()) > 4 * engine.slots
    with pytest.raises(DatapipeError, match="for the second time"):
        runs.run_mixture(mixture, make_engine=lambda root, request: engine, overrides=overrides)
    assert len(engine.tried) <= 2 * engine.slots + 1
