"""What follows from ends of attempts, decided without any process."""

from __future__ import annotations

from typing import Any

import pytest

from datapipe.activity import Activity
from datapipe.engine import retries as retries_module
from datapipe.engine.protocol import Failure
from datapipe.engine.retries import (
    LEAST_LIMIT_BYTES,
    MOST_CRASHING_DOCUMENTS,
    MOST_RETURNS,
    MOST_UNNAMED_CRASHES,
    Retries,
    TaskFailedError,
)
from datapipe.errors import UserError
from datapipe.plan.work import MapTask, MergeTask, Task, TrainTask

TASK = MapTask(step="web/read", fingerprint="a" * 64, seed=0)
TRAIN = TrainTask(step="tokenizer/train", fingerprint="b" * 64, seed=0, eos=None)


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(retries_module, "FIRST_PAUSE_S", 0.0)

    def made(on_crash: Any = "fail", max_retries: int = 3) -> Retries:
        return Retries(max_retries, 20, on_crash, stall_s=600.0, locate=lambda task, key: f"web/b.jsonl:{key[0]}")

    return made


def _on(num_docs: int, number: int = 0) -> Activity:
    key = bytes([number + 1]) * 16
    return Activity(work="filter.length", place=f"a.jsonl:{number}", key=key, num_docs=num_docs, num_bytes=100)


def _ended(kind: str, cause: str, *on: int, at: Activity | None = None) -> Failure:
    activity = at or (_on(*on) if on else None)
    return Failure(kind=kind, message=f"ended by {cause} at {activity}", cause=cause, activity=activity, memory_bytes=1 << 30)


def _crash(*on: int, cause: str = "SIGSEGV", at: Activity | None = None) -> Failure:
    return _ended("crash", cause, *on, at=at)


def _stall(*on: int, at: Activity | None = None) -> Failure:
    return _ended("stall", "", *on, at=at)


def _kill(*on: int, cause: str = "SIGKILL", at: Activity | None = None) -> Failure:
    return _ended("infrastructure", cause, *on, at=at)


def _memory(*on: int, at: Activity | None = None) -> Failure:
    return _ended("memory", "memory", *on, at=at)


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


@pytest.mark.parametrize(
    ("on_crash", "failures", "suspects", "crashing", "most_docs"),
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
def test_next_attempt_takes_care_of_what_failures_have_shown(make, on_crash, failures, suspects, crashing, most_docs):
    care = _after(make(on_crash, max_retries=1), failures).care
    of_stage = care.of("filter.length")
    assert set(of_stage.suspects) <= {_on(1, number).key for number in (*suspects, *crashing)}
    assert {_on(1, number).key for number in suspects} <= set(of_stage.suspects)
    assert of_stage.crashing == {_on(1, number).key: cause for number, cause in crashing.items()}
    assert (care.most_docs, of_stage.most_docs) == (most_docs, most_docs)
    assert care.of("redact.pii").suspects == frozenset()


def test_crash_of_a_task_without_documents_ends_the_run_the_second_time(make):
    retries = make("quarantine")
    assert _after(retries, [_crash(at=READING)], TRAIN) == TRAIN
    with pytest.raises(TaskFailedError, match="for the second time"):
        retries.add(TRAIN, _crash(at=READING))


@pytest.mark.parametrize("cause", ["SIGKILL", "OOM"])
@pytest.mark.parametrize(("memory", "is_told"), [(3_100_000_000, True), (9_000_000_000, False)])
def test_killed_worker_with_the_same_memory_twice_is_told(make, memory, is_told, cause):
    retries = make()
    for used in (3_000_000_000, memory):
        given = {"cause": cause, "activity": Activity(work="pack"), "memory_bytes": used}
        text = retries.add(TASK, Failure(kind="infrastructure", message="killed", **given))
        assert retries.due() == [TASK]
    assert ("with 3.0 GB" in text) is is_told


def test_failure_of_the_user_is_not_retried(make):
    with pytest.raises(UserError, match="wrong"):
        make().add(TASK, Failure(kind="user", message="wrong"))


def test_task_of_rows_that_takes_too_much_memory_gets_fewer_rows_at_once_and_fails_in_the_end(make):
    retries = make(max_retries=0)
    about = {"step": "d/merge", "fingerprint": "c" * 64, "seed": 0, "stage": None, "table": "rows", "files": ()}
    task: Any = MergeTask(**about, start=0, stop=1, limit_bytes=100 << 20)
    limits = []
    for _ in range(4):
        task = _after(retries, [_memory()], task)
        limits.append(task.limit_bytes)
    assert limits == [50 << 20, 25 << 20, 25 << 19, LEAST_LIMIT_BYTES]
    with pytest.raises(TaskFailedError, match=r"Raise execution\.memory$"):
        retries.add(task, _memory())


def test_task_that_a_node_gives_back_is_told_by_nobody(make):
    retries = make(max_retries=0)
    assert retries.add(TASK, _ended("node", "")) == ""
    assert retries.due() == [TASK]
