"""The driver: submits ready tasks to an engine, commits their records, and compiles the plan again when a step ends.

    plan ─▶ pending tasks ─▶ engine ─▶ attempts ─▶ ledger ─▶ (step complete) ─▶ plan …

The driver holds tasks, never documents. It alone commits, so two attempts at one task may race without harm.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from datapipe.credentials import masked
from datapipe.document_name import document_name
from datapipe.engine.patience import Patience
from datapipe.engine.protocol import Attempt, Engine, Failure, Message
from datapipe.engine.retries import Retries, TaskFailedError
from datapipe.engine.workers.process import state_of
from datapipe.errors import CorruptionError, DatapipeError, StageError, UserError
from datapipe.exchange.partitions import read_table
from datapipe.inputs.planned_input import changed_inputs, inputs_of
from datapipe.ledger.ledger import Ledger
from datapipe.ledger.names import FAILURE
from datapipe.metrics import counted, quarantine_reason, total_counts
from datapipe.outages import outage_of
from datapipe.plan.compile import Plan, Step, compile_plan
from datapipe.plan.counts import (
    SourceCounts,
    excess_drops,
    fields_without_value,
    is_hopeless,
    quarantine_text,
    source_counts,
    source_over_quarantine_limit,
    unreadable_text,
)
from datapipe.plan.outputs import TableFile
from datapipe.plan.request import Request
from datapipe.plan.splits import file_hash
from datapipe.plan.work import Record, Task

_TICK_S = 0.25

T = TypeVar("T")


class Observer(Protocol):
    """Watches a run: the progress display, or a test."""

    def planned(self, plan: Plan) -> None: ...
    def committed(self, record: Record) -> None: ...
    def retried(self, task: Task, failure: Failure) -> None: ...
    def tick(self, messages: Sequence[Message]) -> None: ...
    def say(self, line: str) -> None: ...


SILENCE_S = 45.0
"""Silence of an attempt that the user is told of; then each time that it has doubled."""


@dataclass(slots=True)
class _Silences:
    """Tells the user of attempts that tell nothing. Bounded by the attempts that run."""

    told_s: dict[str, float] = field(default_factory=dict)

    def tell(self, messages: Sequence[Message], say: Callable[[str], None]) -> None:
        self.told_s = {message.attempt: self._tell(message, say) for message in messages if message.silent_s >= SILENCE_S}

    def _tell(self, message: Message, say: Callable[[str], None]) -> float:
        told_s = self.told_s.get(message.attempt, 0.0)
        if message.silent_s < max(SILENCE_S, 2 * told_s):
            return told_s
        computes = "" if message.idle_s >= SILENCE_S else "; it computes"
        say(f"no word for {message.silent_s:.0f} s from {message.task}: {state_of(message)}{computes}")
        return message.silent_s


class Driver:
    """Runs one request to its end. `plan` is the latest one, also after a failure, so that a failed run can be reported."""

    def __init__(self, request: Request, ledger: Ledger, observer: Observer) -> None:
        self.request, self.ledger, self.observer = request, ledger, observer
        self.plan: Plan | None = None
        self._reading: dict[str, tuple[Step, list[Record]]] = {}
        self._patience = Patience(1 + request.mixture.execution.max_infrastructure_retries)

    def compile(self) -> Plan:
        """Compiles the plan from the records there are, shows it to the observer, and checks the limits of the mixture."""
        self.plan = plan = self._patiently(lambda: compile_plan(self.request, self.ledger.look_up))
        self.observer.planned(plan)
        reading = [plan.of_kind("map", source)[0] for source in self.request.sources]
        self._reading = {step.id: (step, list(step.records)) for step in reading if not step.is_committed}
        for step, records in self._reading.values():
            self._check_first_tasks(step, records)
        self._check_unreadable(plan)
        self._check_quarantine(plan)
        self._check_fields(plan)
        self._check_dropped(plan)
        return plan

    def run(self, engine: Engine) -> Plan:
        """Runs every task that has no record. Raises UserError or DatapipeError; committed records stay."""
        plan = self.plan or self.compile()
        ready = deque(plan.pending())
        submitted = {task.fingerprint for task in ready}
        missing = _missing(plan)
        in_flight: set[str] = set()
        execution = self.request.mixture.execution
        retries = Retries(
            max_retries=execution.max_retries,
            max_infrastructure_retries=execution.max_infrastructure_retries,
            on_crash=execution.on_crash,
            stall_s=execution.stall_s,
            locate=self._locate,
        )
        silences = _Silences()
        while not plan.is_committed:
            ready.extendleft(reversed(retries.due()))  # before fresh tasks, which may all fail in the same way
            while ready and len(in_flight) < 2 * engine.slots and not self._patience.is_waiting:
                task = ready.popleft()
                in_flight.add(task.fingerprint)
                engine.submit(task, uuid.uuid4().hex[:12])
            attempt = engine.next_attempt(_TICK_S) if in_flight else time.sleep(_TICK_S)
            messages = engine.messages()
            self.observer.tick(messages)
            silences.tell(messages, self.observer.say)
            if attempt is None:
                continue
            in_flight.discard(attempt.task.fingerprint)
            if self._take(attempt, retries):
                missing[attempt.task.step] -= 1
            if missing[attempt.task.step] == 0 and attempt.record is not None:
                plan = self.compile()
                fresh = [task for task in plan.pending() if task.fingerprint not in submitted]
                submitted.update(task.fingerprint for task in fresh)
                ready.extend(fresh)
                missing = _missing(plan)
        return plan

    def _take(self, attempt: Attempt, retries: Retries) -> bool:
        """Commits a record, or queues the task for another attempt. Returns whether it was committed."""
        if attempt.record is not None:
            record = attempt.record
            self.observer.committed(self._patiently(lambda: self.ledger.commit(record)))
            self._patience.change()
            if record.step in self._reading:
                step, records = self._reading[record.step]
                records.append(record)
                self._check_first_tasks(step, records)
            return True
        assert attempt.failure is not None
        self._check_inputs(attempt.task, attempt.failure)
        if attempt.failure.kind in ("stage", "damage"):
            kind = StageError if attempt.failure.kind == "stage" else CorruptionError
            raise kind(f"{attempt.failure.message} {self._kept_traceback(attempt.failure)}")
        try:
            if attempt.failure.outage is not None:
                text = self._patience.wait(attempt.failure.outage)
                retries.wait(attempt.task, self._patience.resumes_at)
            else:
                text = retries.add(attempt.task, attempt.failure)
        except TaskFailedError as error:
            raise DatapipeError(f"{error}. {self._kept_traceback(error.failure)}") from None
        if text:
            self.observer.retried(attempt.task, replace(attempt.failure, message=text))
        return False

    def _kept_traceback(self, failure: Failure) -> str:
        """Writes a failure with its traceback; a sentence that tells where they are."""
        root, content = self.ledger.root, f"{failure.message}\n\n{failure.details}"
        try:
            root.write_atomic(FAILURE, masked(content).encode("utf-8", "backslashreplace"))
        except OSError as error:
            return f"Its traceback cannot be written to {root.child_url(FAILURE)}: {error}"
        return f"The traceback is in {root.child_url(FAILURE)}"

    def _patiently(self, action: Callable[[], T]) -> T:
        """The result of reading or writing the ledger, which is tried again as long as the run waits for an outage."""
        while True:
            try:
                return action()
            except OSError as error:
                outage = outage_of(error, self.ledger.root.url)
                if outage is None:
                    raise
                if line := self._patience.wait(outage):
                    self.observer.say(line)
                time.sleep(max(0.0, self._patience.resumes_at - time.monotonic()))

    def _check_inputs(self, task: Task, failure: Failure) -> None:
        """Raises UserError where an input file of a failed task has changed since the plan.

        If the next plan could not see the change, what other tasks have read of the file is forgotten, so that documents of
        two contents are never mixed.
        """
        changed = changed_inputs(task)
        if not changed:
            return
        unseen = {error.file.url for error in changed if error.looks_planned}
        for step in self.plan.of_kind("map") if self.plan is not None else ():
            for other in step.tasks or ():
                if not unseen.isdisjoint(inputs_of(other)):
                    self.ledger.forget(other.fingerprint)
        raise UserError(f"{changed[0]} ({failure.message})" if failure.kind != "user" else failure.message)

    def _locate(self, task: Task, key: bytes) -> str:
        """The name of a document of a task, by its key: "web/a.jsonl:120"."""
        own_hash, position = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")
        paths = self.request.sources[task.source].files
        path = next((path for path in paths if file_hash(task.source, path) == own_hash), "")
        return document_name(task.source, path, position)

    def _check_dropped(self, plan: Plan) -> None:
        """Raises DatapipeError where a global stage with `on_excess: fail` dropped more of a source than it may."""
        for excess in excess_drops(plan):
            if excess.on_excess == "fail":
                raise DatapipeError(
                    f"{excess.text}. List the duplicates it found with `datapipe inspect {self.ledger.root.url} "
                    f"{excess.inspect}`. Then make the stage stricter, raise its max_dropped or set on_excess: warn, and run "
                    f"the same command again."
                )

    def _counts_of_read(self, plan: Plan) -> dict[str, SourceCounts]:
        """The counts of the sources of which everything is read."""
        read = [name for name in self.request.sources if plan.of_kind("map", name)[0].is_committed]
        return {name: source_counts(plan, name) for name in read}

    def _check_unreadable(self, plan: Plan) -> None:
        """Raises UserError for a source that is read and has more unreadable files than the mixture allows."""
        allowed = self.request.mixture.max_unreadable_files
        for source, counts in self._counts_of_read(plan).items():
            if len(counts.unreadable_files) > allowed:
                raise UserError(
                    f"{unreadable_text(source, counts.unreadable_files)}. max_unreadable_files allows {allowed}. List all with "
                    f"`datapipe inspect {self.ledger.root.url} --quarantined`. Then replace the files, `exclude` them from the "
                    f"source, or raise max_unreadable_files to keep what can be read of them, and run the same command again."
                )

    def _check_quarantine(self, plan: Plan) -> None:
        """Raises DatapipeError for a source that is read and has more documents in quarantine than the mixture allows."""
        document_counts = self._counts_of_read(plan)
        share = self.request.mixture.max_quarantined
        source = source_over_quarantine_limit(document_counts, share)
        if source is None:
            return
        total = document_counts[source].document_counts
        raise DatapipeError(
            f"source '{source}': {total.quarantined:,} of {counted(total.read, 'document')} quarantined "
            f"({total.quarantined / total.read:.2%}), and max_quarantined allows {share:.2%}. {quarantine_text(total)}. "
            f"{self._example(record for step in plan.of_kind('map', source) for record in step.records)} {self._remedy()}, or "
            f"raise max_quarantined, and run the same command again."
        )

    def _remedy(self) -> str:
        return (
            f"List them with `datapipe inspect {self.ledger.root.url} --quarantined`. Then correct the input, the source's "
            f"field names or the stage that the error names"
        )

    def _check_first_tasks(self, step: Step, records: Sequence[Record]) -> None:
        """Raises DatapipeError where the first tasks of a source have quarantined all that they read: the others would too."""
        share, num_left = self.request.mixture.max_quarantined, len(step.tasks or ()) - len(records)
        if num_left and is_hopeless(step, records, share):
            counts = total_counts(record.metrics.document_counts for record in records)
            raise DatapipeError(
                f"source '{step.source}': all {counts.read:,} records that its first tasks read are quarantined, so the other "
                f"tasks, {num_left:,}, do not run; max_quarantined allows {share:.2%}. {quarantine_text(counts)}. "
                f"{self._example(records)} {self._remedy()}, and run the same command again."
            )

    def _check_fields(self, plan: Plan) -> None:
        """Raises UserError where a kept field that a stage decides by is null in every document, and every document is read."""
        for source in self.request.sources if self.request.limit is None else ():
            for name in fields_without_value(plan.of_kind("map", source)[0]):
                place = self.request.mixture.where("sources", source, "keep")
                asked_by = self.request.deciding.get(source, {}).get(name)
                if asked_by is not None:
                    raise UserError(
                        f"{place}: the field '{name}' is null in every document of the source. {asked_by} decides by it. "
                        f"Correct the name, or leave that out."
                    )

    def _example(self, records: Iterable[Record]) -> str:
        """The first document that is in quarantine for the most frequent reason, and its error."""
        records = list(records)
        reasons = total_counts(record.metrics.document_counts for record in records).quarantine_reasons
        [reason, *_] = [reason for reason, _ in reasons.most_common(1)] or [""]
        quarantined = ((record, output) for record in records for output in record.of("quarantine", TableFile))
        for record, output in quarantined:
            for batch in read_table(self.ledger.root, output, ["path", "place", "stage", "error"]):
                for row in batch.to_pylist():
                    if quarantine_reason(row["stage"], row["error"]) == reason:
                        name = document_name(record.step.partition("/")[0], row["path"], row["place"])
                        error = row["error"].strip().rpartition("\n")[2]
                        return f"The first, by {row['stage']}: {name}: {error.rstrip('.')}."
        return ""


def _missing(plan: Plan) -> Counter[str]:
    """Tasks without a record, by step."""
    return Counter({step.id: len(step.pending()) for step in plan.steps if step.tasks is not None})
