"""What follows from the end of an attempt: another attempt, maybe with hints, or the end of the run; and the wait for outages.

    user             the run fails
    task             up to `max_retries`, at once
    memory           with half the batch size, down to one document; then up to `max_retries`, after pauses
    node             elsewhere, without counting
    infrastructure   up to `max_infrastructure_retries`, after pauses; `OutageWait` waits for a full disk or a silent store
                     killed twice on the same documents ─▶ one by one ─▶ killed twice on one document, alone ─▶ as a crash
    crash            once more ─▶ its batch one by one ─▶ one document, named: the run fails, or goes on without it
    stall            its batch one by one ─▶ the run fails, and names the document

The same crash three times, or the same stall twice, ends the run unless something new was learned, which travels with the
task (`RetryHints`). A crash on no document (reading, rows) is named by its work. SIGKILL and SIGTERM usually come from
outside, so only a second one on the same document blames the stage; after one by the kernel for memory ("OOM") none is blamed.

All tasks wait for one outage together: a pause for all, and a line with what, where, free bytes, attempt n of N.
"""

import heapq
import time
from collections import Counter
from collections.abc import Callable

from datapipe.config.execution import ExecutionSpec
from datapipe.dataclass import dataclass, field, replace
from datapipe.document_name import with_own_id
from datapipe.engine.protocol import Failure
from datapipe.errors import DatapipeError, UserError
from datapipe.machine.activity import Activity
from datapipe.machine.retries import RetryPolicy
from datapipe.quantities import counted, size
from datapipe.steps.kind import Task
from datapipe.steps.map import MapTask
from datapipe.steps.merge import RangeTask
from datapipe.storage.outages import Outage, outage_of, refusal_of

POLICY = RetryPolicy(first_s=0.2, longest_s=30.0, most_s=60.0)
"""After failures of the infrastructure. A run stops after `most_s` without any change: a stop costs no committed task."""

MOST_UNNAMED_CRASHES = 5  # Crashes of a task in a row that blame no document
MOST_CRASHING_DOCUMENTS = 32  # of one task. Each costs one or two attempts.
MOST_RETURNS = 1000  # Times that nodes may give one task back
LEAST_LIMIT_BYTES = 8 << 20
"""Rows of a global stage are never cut below: fewer take longer and hardly less memory."""

_CHANGE_BYTES = 1 << 20  # Growth of free space that counts as a change: small files come and go
_RESUME = "Committed tasks are kept. Then run the same command again"


class TaskFailedError(DatapipeError):
    def __init__(self, text: str, failure: Failure) -> None:
        super().__init__(text)
        self.failure = failure


@dataclass(slots=True)
class Retries:
    """Tasks that wait for another attempt. `locate` names a document of a task by its key: "web/a.jsonl:120"."""

    execution: ExecutionSpec
    locate: Callable[[Task, bytes], str]
    _failures: Counter[tuple[str, ...]] = field(default_factory=Counter)
    _killed: dict[str, tuple[str, Activity]] = field(default_factory=dict)
    _waiting: list[tuple[float, str, Task]] = field(default_factory=list)

    def add(self, task: Task, failure: Failure) -> str:
        """Queues another attempt, and returns a line for the user. Raises UserError where only
        another input helps, and TaskFailedError for the last failure."""
        match failure.kind:
            case "user":
                raise UserError(failure.message)
            case "crash":
                return self._crashed(task, failure)
            case "stall":
                return self._stalled(task, failure)
            case "task":
                self._count(task, failure, self.execution.max_retries)
                return self._again(task, failure.message)
            case "memory":
                return self._out_of_memory(task, failure)
            case "node":  # the engine reports the node once, not each of its tasks
                self._count(task, failure, MOST_RETURNS)
                return self._again(task, "", POLICY.first_s)
            case _:
                if self._is_killed_again(task, failure):
                    identity = task.fingerprint, "crash", failure.cause
                    self._failures[identity] = max(1, self._failures[identity])  # the kill before counts as the first crash
                    return self._crashed(task, failure)
                less = _with_less(task, failure) if failure.cause == "OOM" else None
                return self._later(less or task, failure, self.execution.max_infrastructure_retries)

    def wait(self, task: Task, until: float) -> None:
        """Queues another attempt for a time of the monotonic clock, after an outage, which counts as no failure."""
        heapq.heappush(self._waiting, (until, task.fingerprint, task))

    def due(self) -> list[Task]:
        tasks = []
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            tasks.append(heapq.heappop(self._waiting)[2])
        return tasks

    def _again(self, task: Task, text: str, pause_s: float = 0.0) -> str:
        heapq.heappush(self._waiting, (time.monotonic() + pause_s, task.fingerprint, task))
        return text

    def _later(self, task: Task, failure: Failure, allowed: int) -> str:
        count = self._count(task, failure, allowed)
        pause_s = POLICY.pause_s(count)
        text = f"{failure.message} (attempt {count} of {allowed + 1}; the next is in {pause_s:.1f} s)"
        return self._again(task, text, pause_s)

    def _count(self, task: Task, failure: Failure, allowed: int) -> int:
        count = self._failures[task.fingerprint, failure.kind] = self._failures[task.fingerprint, failure.kind] + 1
        if count > allowed:
            raise TaskFailedError(f"{task.label} failed {count} times, the last time with: {failure.message}", failure)
        return count

    def _out_of_memory(self, task: Task, failure: Failure) -> str:
        less, activity = _with_less(task, failure), failure.activity or Activity()
        if less is not None:
            return self._again(less, f"{failure.message}. Retrying with half the batch size", POLICY.first_s)
        is_again = self._failures[task.fingerprint, "memory"] > 0
        if is_again and isinstance(task, MapTask) and activity.is_on_documents and self.execution.on_crash == "quarantine":
            self._failures[task.fingerprint, "memory"] = 0
            return self._without_document(task, failure, activity)
        advice = "Raise execution.memory, or take out the document" if activity.num_docs == 1 else "Raise execution.memory"
        if failure.cause == "memory":
            failure = replace(failure, message=f"{failure.message}. {advice}")
        return self._later(task, failure, self.execution.max_retries)

    def _crashed(self, task: Task, failure: Failure) -> str:
        identity = task.fingerprint, "crash", failure.cause
        count = self._failures[identity] = self._failures[identity] + 1
        activity = failure.activity or Activity()
        if count == 1:  # it may be the machine's fault
            return self._again(task, failure.message)
        if not isinstance(task, MapTask) or not activity.is_on_documents:
            raise TaskFailedError(f"{task.label}: {failure.message}, for the second time. {_advice(activity)}", failure)
        if count > MOST_UNNAMED_CRASHES:
            text = f"{task.label} crashed {count} times, and on no document alone. The last time: {failure.message}. "
            raise TaskFailedError(text + _advice(activity), failure)
        if activity.num_docs > 1:
            return self._again(
                _one_by_one(task, activity), f"{failure.message}, for the second time: now its documents go one by one"
            )
        self._failures[identity] = 1  # the next document of this task that crashes is narrowed down at once
        return self._without_document(task, failure, activity)

    def _is_killed_again(self, task: Task, failure: Failure) -> bool:
        """Whether a signal ended the task twice in a row on the same documents."""
        is_signal = failure.cause.startswith("SIG") and isinstance(task, MapTask)
        if not is_signal or failure.activity is None or not failure.activity.is_on_documents:
            return False
        killed = failure.cause, failure.activity
        before, self._killed[task.fingerprint] = self._killed.get(task.fingerprint), killed
        return before == killed

    def _without_document(self, task: MapTask, failure: Failure, activity: Activity) -> str:
        memory = f", with {size(failure.memory_bytes)} of memory" if failure.cause == "SIGKILL" and failure.memory_bytes else ""
        blamed = f"the document {self._located(task, activity)} crashes {activity.work}: {failure.cause}{memory}"
        if self.execution.on_crash == "fail":
            raise TaskFailedError(
                f"{task.label}: {blamed}. Take the document out of the input, leave the stage out or correct it, or set "
                f"execution.on_crash: quarantine to go on without such documents",
                failure,
            )
        before = task.hints.known_crashes
        if len(before) == MOST_CRASHING_DOCUMENTS:
            others = counted(len(before), "other document")
            raise TaskFailedError(f"{task.label}: {blamed}, after {others} of the task. {_advice(activity)}", failure)
        known_crashes = (*before, (activity.work, activity.key, failure.cause))
        again = replace(task, hints=replace(task.hints, known_crashes=known_crashes))
        return self._again(again, f"{blamed}. It goes to quarantine")

    def _located(self, task: Task, activity: Activity) -> str:
        return with_own_id(activity.place, self.locate(task, activity.key))

    def _stalled(self, task: Task, failure: Failure) -> str:
        self._count(task, failure, self.execution.max_infrastructure_retries)
        activity = failure.activity or Activity()
        identity = task.fingerprint, "stall", activity.work
        self._failures[identity] += 1
        if self._failures[identity] > 1:
            first = f" The document is {self._located(task, activity)}." if activity.num_docs == 1 else ""
            raise TaskFailedError(
                f"{task.label}: {failure.message}, for the second time.{first} If the work is only slow, raise "
                f"execution.stall_s, now {self.execution.stall_s:g}. Otherwise check the stage, the input or the disk it "
                f"waits for",
                failure,
            )
        if isinstance(task, MapTask) and activity.is_on_documents and activity.num_docs > 1:
            return self._again(_one_by_one(task, activity), f"{failure.message}; now its documents go one by one")
        return self._again(task, failure.message)


def _one_by_one(task: MapTask, activity: Activity) -> MapTask:
    one_by_one = (*task.hints.one_by_one, (activity.work, activity.key))
    return replace(task, hints=replace(task.hints, one_by_one=one_by_one))


def _with_less(task: Task, failure: Failure) -> Task | None:
    """The task with half the batch size; None where that is one document, or nothing that can be halved. Its input and output
    stay, and so do the tasks that follow: a stage gets the documents of a batch, or the rows of a bucket, in more calls."""
    activity = failure.activity or Activity()
    if isinstance(task, MapTask) and activity.is_on_documents and activity.num_docs > 1:
        return replace(task, hints=replace(task.hints, most_docs=activity.num_docs // 2))
    if isinstance(task, RangeTask) and task.limit_bytes > LEAST_LIMIT_BYTES:
        return replace(task, limit_bytes=max(LEAST_LIMIT_BYTES, task.limit_bytes // 2))
    return None


def _advice(activity: Activity) -> str:
    work = activity.work or "the libraries that it uses"
    return f"It is a defect of {work} or of a library below it, or of this machine: the traceback shows where"


@dataclass(slots=True)
class OutageWait:
    """The outage that a run waits for, at most `most_attempts` without any change."""

    most_attempts: int
    clock: Callable[[], float] = time.monotonic
    resumes_at: float = 0.0
    _since: float | None = None
    _attempts: int = 0
    _most_free: int = 0

    @property
    def is_waiting(self) -> bool:
        return self.clock() < self.resumes_at

    def change(self) -> None:
        """Notes a write: the outage is over, or only partial."""
        self._since, self._attempts = None, 0

    def wait(self, outage: Outage) -> str:
        """Notes a failure and sets `resumes_at`. Returns a line for the user, empty for the attempt that the run is waiting
        after. Raises DatapipeError after a minute or `most_attempts` without a change."""
        now = self.clock()
        free = outage.free_bytes or 0
        if self._since is None or free >= self._most_free + _CHANGE_BYTES:
            self._since, self._attempts, self._most_free = now, 0, free
        elif now < self.resumes_at:
            return ""
        self._attempts += 1
        left_s = self._since + POLICY.most_s - now
        if self._attempts >= self.most_attempts or left_s <= 0:
            attempts = f"{counted(self._attempts, 'attempt')} in {now - self._since:.0f} s, without a change"
            raise DatapipeError(f"{outage} ({attempts}). {_way_out(outage)}")
        pause_s = min(POLICY.pause_s(self._attempts), left_s)
        hope = "it answers again" if outage.free_bytes is None else "space is freed"
        self.resumes_at = now + pause_s
        return (
            f"{outage}. Attempt {self._attempts} of at most {self.most_attempts} failed; the next is in {pause_s:.1f} s. "
            f"The run stops in {left_s:.0f} s unless {hope}"
        )


def _way_out(outage: Outage) -> str:
    if outage.free_bytes is None:
        return f"Check that the disk, store or network is up. {_RESUME}."
    return f"Delete files on the disk of {outage.where}, or give a larger one. {_RESUME}."


def stopped_by(error: Exception, url: str) -> DatapipeError | None:
    """The error of a run that a disk, store or hub stopped outside of its tasks; None for any other
    exception. `url`: of the output."""
    outage, refusal = outage_of(error, url), refusal_of(error, url)
    if outage is not None:
        return DatapipeError(f"{outage}. {_way_out(outage)}")
    if refusal is not None:
        return UserError(f"{refusal}. {_RESUME}.")
    return None
