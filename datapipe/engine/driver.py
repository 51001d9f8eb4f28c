"""The driver: feeds ready tasks to an engine, commits what comes back, and compiles the plan again when a step ends.

    plan ─▶ pending tasks ─▶ engine ─▶ attempts ─▶ ledger ─▶ (step complete) ─▶ plan …

It holds tasks, never documents. It alone commits, so two attempts at one task may race and nothing bad happens.
"""

from __future__ import annotations

import heapq
import time
import uuid
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from datapipe.engine.protocol import Attempt, Engine, Failure
from datapipe.errors import DatapipeError, UserError
from datapipe.exchange.partitions import read_table
from datapipe.ledger.ledger import Ledger
from datapipe.plan.compile import Plan, compile_plan
from datapipe.plan.counts import excesses, over_quarantined, source_counts
from datapipe.plan.request import Request
from datapipe.plan.work import Record, Task

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
"""Before a task that the infrastructure failed is tried again: doubled each time, from the first to the longest."""

FAILURE = "work/failure.txt"
"""The traceback of the task that a run failed for."""

_TICK_S = 0.25


class Observer(Protocol):
    """Who watches a run: the progress display, or a test."""

    def planned(self, plan: Plan) -> None: ...
    def committed(self, record: Record) -> None: ...
    def retried(self, task: Task, failure: Failure) -> None: ...
    def tick(self) -> None: ...
    def say(self, line: str) -> None: ...


class _TaskFailedError(DatapipeError):
    """A task failed for good; the driver says where its traceback is kept."""

    def __init__(self, task: Task, count: int, failure: Failure) -> None:
        super().__init__(f"{task.label} failed {count} times, the last time with: {failure.message}")
        self.failure = failure


@dataclass(slots=True)
class _Retries:
    """Tasks that wait for another attempt, by the time at which it may start."""

    allowed: Mapping[str, int]
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    waiting: list[tuple[float, str, Task]] = field(default_factory=list)

    def add(self, task: Task, failure: Failure) -> None:
        """Raises where the failure is not to be retried, or was retried often enough."""
        if failure.kind == "user":
            raise UserError(failure.message)
        count = self.failures[task.fingerprint, failure.kind] = self.failures[task.fingerprint, failure.kind] + 1
        if count > self.allowed[failure.kind]:
            raise _TaskFailedError(task, count, failure)
        pause = 0.0 if failure.kind == "task" else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (count - 1))
        heapq.heappush(self.waiting, (time.monotonic() + pause, task.fingerprint, task))

    def due(self) -> list[Task]:
        found = []
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            found.append(heapq.heappop(self.waiting)[2])
        return found


class Driver:
    """Runs one request to its end. `plan` is always the newest, so that a failed run can be reported."""

    def __init__(self, request: Request, ledger: Ledger, observer: Observer) -> None:
        self.request, self.ledger, self.observer = request, ledger, observer
        self.plan = compile_plan(request, ledger.look_up)
        observer.planned(self.plan)
        self._warned: set[tuple[str, str]] = set()
        self._check()

    def run(self, engine: Engine) -> Plan:
        """Runs every task that has no record. Raises UserError or DatapipeError; what was committed stays."""
        ready = deque(self.plan.pending())
        submitted = {task.fingerprint for task in ready}
        missing = self._missing()
        in_flight: set[str] = set()
        execution = self.request.mixture.execution
        retries = _Retries({"task": execution.max_retries, "infrastructure": execution.max_infrastructure_retries})
        while not self.plan.is_committed:
            ready.extend(retries.due())
            while ready and len(in_flight) < 2 * engine.slots:
                task = ready.popleft()
                in_flight.add(task.fingerprint)
                engine.submit(task, uuid.uuid4().hex[:12])
            attempt = engine.next_attempt(_TICK_S)
            self.observer.tick()
            if attempt is None:
                continue
            in_flight.discard(attempt.task.fingerprint)
            if self._take(attempt, retries):
                missing[attempt.task.step] -= 1
            if missing[attempt.task.step] == 0 and attempt.record is not None:
                self._replan()
                fresh = [task for task in self.plan.pending() if task.fingerprint not in submitted]
                submitted.update(task.fingerprint for task in fresh)
                ready.extend(fresh)
                missing = self._missing()
        return self.plan

    def _take(self, attempt: Attempt, retries: _Retries) -> bool:
        """Commits a record, or puts the task among those to be tried again. Whether it was committed."""
        if attempt.record is not None:
            self.observer.committed(self.ledger.commit(attempt.record))
            return True
        assert attempt.failure is not None
        try:
            retries.add(attempt.task, attempt.failure)
        except _TaskFailedError as error:
            root = self.ledger.root
            root.write_atomic(FAILURE, error.failure.details.encode("utf-8", "backslashreplace"))
            raise DatapipeError(f"{error}. The traceback is in {root.child_url(FAILURE)}") from None
        self.observer.retried(attempt.task, attempt.failure)
        return False

    def _replan(self) -> None:
        self.plan = compile_plan(self.request, self.ledger.look_up)
        self.observer.planned(self.plan)
        self._check()

    def _missing(self) -> Counter[str]:
        return Counter({step.id: len(step.pending()) for step in self.plan.steps if step.tasks is not None})

    def _check(self) -> None:
        self._check_quarantine()
        self._check_dropped()

    def _check_dropped(self) -> None:
        """Raises DatapipeError, or warns, where a global stage dropped more of a source than it may."""
        for excess in excesses(self.plan):
            look = f"See what it took for alike with `datapipe inspect {self.ledger.root.url} {excess.inspect}`"
            if excess.on_excess == "fail":
                raise DatapipeError(
                    f"{excess.text}. {look}. Then make the stage stricter, raise its max_dropped or set on_excess: warn, and "
                    f"run the same command again."
                )
            if (excess.source, excess.stage) not in self._warned:
                self._warned.add((excess.source, excess.stage))
                self.observer.say(f"warning: {excess.text}. {look}.")

    def _check_quarantine(self) -> None:
        """Raises DatapipeError for a source with more in quarantine than the mixture allows, once all of it was read."""
        read = [name for name in self.request.sources if self.plan.of_kind("map", name)[0].is_committed]
        document_counts = {name: source_counts(self.plan, name) for name in read}
        share = self.request.mixture.max_quarantined
        source = over_quarantined(document_counts, share)
        if source is None:
            return
        total = document_counts[source].document_counts
        raise DatapipeError(
            f"source '{source}': {total.quarantined} of {total.read} documents are quarantined "
            f"({total.quarantined / total.read:.2%}), and max_quarantined allows {share:.2%}. {self._example(source)} "
            f"See more with `datapipe inspect {self.ledger.root.url} --quarantined`. Then mend the input, the source's field "
            f"names or the stage that it names, or raise max_quarantined, and run the same command again."
        )

    def _example(self, source: str) -> str:
        """The first document of a source in quarantine, and why it is there."""
        outputs = (output for step in self.plan.of_kind("map", source) for output in step.outputs("quarantine"))
        for output in outputs:
            for batch in read_table(self.ledger.root, output):
                row = batch.slice(0, 1).to_pylist()[0]
                reason = row["error"].strip().rpartition("\n")[2]
                return f"The first, by {row['stage']}: {row['path']} at {row['place']}: {reason}."
        return ""
