"""What follows from ends of attempts, decided without any process."""

from __future__ import annotations

import pytest

from datapipe.activity import Activity
from datapipe.engine import retries as retries_module
from datapipe.engine.protocol import Failure
from datapipe.engine.retries import LEAST_LIMIT_BYTES, MOST_CRASHING_DOCUMENTS, MOST_UNNAMED_CRASHES, Retries, TaskFailedError
from datapipe.errors import UserError
from datapipe.plan.work import MapTask, MergeTask, TrainTask

TASK = MapTask(step="web/read", fingerprint="a" * 64, seed=0)
TRAIN = TrainTask(step="tokenizer/train", fingerprint="b" * 64, seed=0, eos=None)


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(retries_module, "FIRST_PAUSE_S", 0.0)

    def made(on_crash="fail", max_retries=3, max_infrastructure_retries=20):
        return Retries(
            max_retries, max_infrastructure_retries, on_crash, stall_s=600.0, locate=lambda task, key: f"web/b.jsonl:{key[0]}"
        )

    return made


def _on(num_docs: int, number: int = 0, work: str = "filter.length") -> Activity:
    return Activity(work=work, place=f"a.jsonl:{number}", key=bytes([number + 1]) * 16, num_docs=num_docs, num_bytes=100)


def _crash(activity: Activity, cause: str = "SIGSEGV") -> Failure:
    return Failure(kind="crash", message=f"ended by {cause} at {activity}", cause=cause, activity=activity)


def _stall(activity: Activity) -> Failure:
    return Failure(kind="stall", message=f"silent at {activity}", activity=activity)


def _after(retries: Retries, task, failure: Failure):
    """The next attempt at the task."""
    retries.add(task, failure)
    (again,) = retries.due()
    return again


def test_crash_is_narrowed_to_its_document_which_is_named(make):
    retries = make()
    again = _after(retries, TASK, _crash(_on(80)))
    assert again == TASK
    again = _after(retries, again, _crash(_on(80)))
    assert again.care.of("filter.length").suspects == {_on(80).key}
    assert again.care.of("redact.pii").suspects == frozenset()
    with pytest.raises(
        TaskFailedError, match=r"document a\.jsonl:7 \(web/b\.jsonl:8\) crashes filter\.length: SIGSEGV.*on_crash: quarantine"
    ):
        retries.add(again, _crash(_on(1, 7)))


def test_crash_with_quarantine_goes_on_without_the_document_and_then_without_the_next(make):
    retries = make("quarantine")
    task = TASK
    for failure in (_crash(_on(80)), _crash(_on(80)), _crash(_on(1, 7)), _crash(_on(1, 9))):
        task = _after(retries, task, failure)
    assert task.care.of("filter.length").crashing == {_on(1, 7).key: "SIGSEGV", _on(1, 9).key: "SIGSEGV"}
    task = _after(retries, task, _crash(_on(80, 20)))
    assert _on(80, 20).key in task.care.of("filter.length").suspects


def test_crash_of_too_many_documents_ends_the_run(make):
    retries = make("quarantine")
    task = _after(retries, TASK, _crash(_on(1, 0)))
    for number in range(MOST_CRASHING_DOCUMENTS):
        task = _after(retries, task, _crash(_on(1, number)))
    with pytest.raises(TaskFailedError, match=f"after {MOST_CRASHING_DOCUMENTS} other documents"):
        retries.add(task, _crash(_on(1, 200)))


def test_crash_that_blames_no_document_ends_the_run(make):
    retries, task = make("quarantine"), TASK
    for number in range(MOST_UNNAMED_CRASHES):
        task = _after(retries, task, _crash(_on(80, number)))
    with pytest.raises(TaskFailedError, match="on no document alone"):
        retries.add(task, _crash(_on(80, 99)))


@pytest.mark.parametrize("task", [TASK, TRAIN], ids=["map", "train"])
def test_crash_on_no_document_ends_the_run_the_second_time_and_names_the_work(make, task):
    retries, activity = make("quarantine"), Activity(work="read", place="web/a.parquet")
    assert _after(retries, task, _crash(activity)) == task
    with pytest.raises(TaskFailedError, match=r"read, at web/a\.parquet, for the second time"):
        retries.add(task, _crash(activity))


def test_crash_by_another_signal_is_counted_apart(make):
    retries, activity = make(), Activity(work="read")
    assert _after(retries, TASK, _crash(activity, "SIGSEGV")) == TASK
    assert _after(retries, TASK, _crash(activity, "SIGABRT")) == TASK


def test_stall_is_narrowed_and_the_second_ends_the_run_and_never_the_document(make):
    retries = make("quarantine")
    again = _after(retries, TASK, _stall(_on(80)))
    assert again.care.of("filter.length").suspects == {_on(80).key}
    with pytest.raises(
        TaskFailedError, match=r"for the second time\. The document is a\.jsonl:3 \(web/b\.jsonl:4\)\..*stall_s, now 600"
    ):
        retries.add(again, _stall(_on(1, 3)))


def test_stalls_at_different_work_are_retried_like_lost_workers(make):
    retries, task = make(max_infrastructure_retries=2), TASK
    for work in ("read", "write documents"):
        task = _after(retries, task, _stall(Activity(work=work)))
    with pytest.raises(TaskFailedError, match="failed 3 times"):
        retries.add(task, _stall(Activity(work="exchange")))


def _kill(activity: Activity, cause: str = "SIGKILL") -> Failure:
    return Failure(kind="infrastructure", message=f"ended by {cause} at {activity}", cause=cause, activity=activity)


def test_kill_twice_on_the_same_documents_is_narrowed_and_twice_on_one_blames_it(make):
    retries = make()
    again = _after(retries, TASK, _kill(_on(80)))
    assert again == TASK
    again = _after(retries, again, _kill(_on(80)))
    assert again.care.of("filter.length").suspects == {_on(80).key}
    assert _after(retries, again, _kill(_on(1, 7))) == again
    with pytest.raises(TaskFailedError, match=r"document a\.jsonl:7 \(web/b\.jsonl:8\) crashes filter\.length: SIGKILL"):
        retries.add(again, _kill(_on(1, 7)))


def test_kill_with_quarantine_goes_on_without_the_document(make):
    retries, task = make("quarantine"), TASK
    for failure in (_kill(_on(80)), _kill(_on(80)), _kill(_on(1, 7)), _kill(_on(1, 7)), _kill(_on(1, 9)), _kill(_on(1, 9))):
        task = _after(retries, task, failure)
    assert task.care.of("filter.length").crashing == {_on(1, 7).key: "SIGKILL", _on(1, 9).key: "SIGKILL"}


@pytest.mark.parametrize(
    "kills",
    [
        [_kill(_on(80, number)) for number in range(20)],  # a machine that is taken away strikes anywhere
        [_kill(_on(1, 7), "SIGKILL" if number % 2 else "SIGTERM") for number in range(20)],
        [_kill(_on(1, 7), "OOM") for number in range(20)],  # another machine may have more memory
        [_kill(Activity(work="read", place="a.jsonl"))] * 20,
    ],
    ids=["elsewhere", "by turns", "memory", "no document"],
)
def test_kill_that_blames_no_document_is_infrastructure(kills, make):
    retries, task = make(), TASK
    for failure in kills:
        task = _after(retries, task, failure)
    assert task == TASK
    with pytest.raises(TaskFailedError, match="failed 21 times"):
        retries.add(task, _kill(_on(80, 99)))


@pytest.mark.parametrize("cause", ["SIGKILL", "OOM"])
@pytest.mark.parametrize(("memory", "is_told"), [(3_100_000_000, True), (9_000_000_000, False)])
def test_killed_worker_is_infrastructure_and_the_same_memory_twice_is_told(make, memory, is_told, cause):
    retries = make()
    for used in (3_000_000_000, memory):
        activity = Activity(work="pack")
        text = retries.add(
            TASK, Failure(kind="infrastructure", message="killed", cause=cause, activity=activity, memory_bytes=used)
        )
        assert retries.due() == [TASK]
    assert ("with 3.0 GB: if that is all" in text) is is_told


def test_failure_of_the_user_is_not_retried(make):
    with pytest.raises(UserError, match="wrong"):
        make().add(TASK, Failure(kind="user", message="wrong"))


def test_failures_are_allowed_by_kind(make):
    retries = make(max_retries=1, max_infrastructure_retries=2)
    for kind, allowed in (("task", 1), ("memory", 1), ("infrastructure", 2)):
        for _ in range(allowed):
            _after(retries, TASK, Failure(kind=kind, message="no"))
        with pytest.raises(TaskFailedError, match=f"failed {allowed + 1} times"):
            retries.add(TASK, Failure(kind=kind, message="no"))


def test_document_whose_id_is_its_position_is_named_once(make):
    retries = make()
    activity = Activity(work="filter.length", place="web/b.jsonl:8", key=bytes([8]) * 16, num_docs=1)
    retries.add(TASK, _crash(activity))
    with pytest.raises(TaskFailedError, match=r"the document web/b\.jsonl:8 crashes"):
        retries.add(TASK, _crash(activity))


def _memory(activity: Activity) -> Failure:
    return Failure(kind="memory", message="took too much", cause="memory", activity=activity, memory_bytes=1 << 30)


def test_task_that_takes_too_much_memory_gets_half_as_much_in_hand_until_it_is_one_document(make):
    retries, task = make(max_retries=0), TASK
    for num_docs, most_docs in ((80, 40), (40, 20), (20, 10), (10, 5), (5, 2), (2, 1)):
        task = _after(retries, task, _memory(_on(num_docs)))
        assert (task.care.most_docs, task.care.of("filter.length").most_docs) == (most_docs, most_docs)
    with pytest.raises(TaskFailedError, match=r"took too much\. Raise execution\.memory, or take out the document"):
        retries.add(task, _memory(_on(1)))


def test_document_that_takes_too_much_memory_alone_goes_to_quarantine_where_crashes_do(make):
    retries = make("quarantine")
    again = _after(retries, TASK, _memory(_on(1, 7)))
    assert again.care.crashing == ()
    again = _after(retries, again, _memory(_on(1, 7)))
    assert again.care.crashing == (("filter.length", _on(1, 7).key, "memory"),)


def test_task_of_rows_that_takes_too_much_memory_gets_fewer_rows_at_once_and_fails_in_the_end(make):
    retries = make(max_retries=0)
    task = MergeTask(
        step="d/merge", fingerprint="c" * 64, seed=0, stage=None, table="rows", files=(), start=0, stop=1, limit_bytes=100 << 20
    )
    limits = []
    for _ in range(4):
        task = _after(retries, task, _memory(Activity(work="d: exchange")))
        limits.append(task.limit_bytes)
    assert limits == [50 << 20, 25 << 20, 25 << 19, LEAST_LIMIT_BYTES]
    with pytest.raises(TaskFailedError, match=r"Raise execution\.memory$"):
        retries.add(task, _memory(Activity(work="d: exchange")))


def test_kill_by_the_kernel_for_memory_halves_what_is_in_hand_too(make):
    killed = Failure(kind="infrastructure", message="killed", cause="OOM", activity=_on(80), memory_bytes=1 << 30)
    assert _after(make(), TASK, killed).care.most_docs == 40


def test_crash_after_too_much_memory_keeps_what_is_known(make):
    retries = make()
    task = _after(retries, TASK, _memory(_on(80)))
    task = _after(retries, _after(retries, task, _crash(_on(40))), _crash(_on(40)))
    assert task.care.most_docs == 40 and task.care.of("filter.length").suspects


def test_task_that_a_node_gives_back_runs_again_without_counting_or_words(make):
    retries = make(max_retries=0, max_infrastructure_retries=0)
    given_back = Failure(kind="node", message="given back")
    for _ in range(retries_module.MOST_RETURNS):
        assert retries.add(TASK, given_back) == ""
        assert retries.due() == [TASK]
    with pytest.raises(TaskFailedError, match="given back"):
        retries.add(TASK, given_back)
