"""The driver: submits ready tasks to an engine, commits their records, and compiles the plan again when a step ends.

    plan ─▶ pending tasks ─▶ engine ─▶ attempts ─▶ ledger ─▶ (step complete) ─▶ plan …

The driver holds tasks, never documents. It alone commits, so two attempts at one task may race without harm. Records are
committed in groups: when the first of them has waited for 0.1 s, and when they end a step.
"""

import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from shlex import quote

from datapipe.credentials import masked
from datapipe.document_name import document_name
from datapipe.engine.attempts import SILENCE_S, Attempts, Pending, largest_first
from datapipe.engine.events import Blocked, Observer, Planned, Progress, Retried, UserMessage
from datapipe.engine.freeing import Freeing, freed_inputs
from datapipe.engine.protocol import Attempt, Engine, Failure, Message
from datapipe.engine.retries import OutageWait, Retries, TaskFailedError
from datapipe.engine.workers.process import state_of
from datapipe.errors import CorruptionError, DatapipeError, StageError, UserError
from datapipe.exchange.tables import read_table
from datapipe.inputs.planned_input import changed_inputs
from datapipe.machine.memory import without_collection
from datapipe.machine.retries import retry_io
from datapipe.metrics import quarantine_reason, total_counts
from datapipe.quantities import counted
from datapipe.records.ledger import Ledger
from datapipe.records.names import FAILURE
from datapipe.records.outputs import Record, TableFile
from datapipe.steps import counts
from datapipe.steps.estimate import KeptText, step_costs
from datapipe.steps.kind import Plan, Step, Task
from datapipe.steps.kinds import compile_plan
from datapipe.steps.request import Request
from datapipe.steps.splits import names_of_keys
from datapipe.storage.lock import OutputLock
from datapipe.storage.outages import Outage, outage_of

_TICK_S = 0.25
_UPDATE_EVERY_S = 0.1


class Driver:
    """Runs one request to its end. `plan` is the latest one, also after a failure, so that a failed run can be reported. A run
    that has lost its `lock` of the output stops. `kept_before`: the share of text that each step kept in the run before, for
    estimates. `earlier`: the committed steps of the snapshot that the files of the request are added to. `freeing` deletes
    files that no task reads any more; None keeps all."""

    def __init__(
        self,
        request: Request,
        ledger: Ledger,
        emit: Observer,
        lock: OutputLock,
        kept_before: KeptText | None = None,
        earlier: Sequence[Step] = (),
        freeing: Freeing | None = None,
    ) -> None:
        self.request, self.ledger, self.emit, self.lock = request, ledger, emit, lock
        self._kept_before, self._earlier = kept_before or {}, earlier
        self.freeing = freeing or Freeing(ledger, lock)
        self._look_up = ledger.look_up_any_version if request.trusts_records else ledger.look_up
        self._pending = Pending()
        self._submitted: set[str] = set()  # tasks of this run
        self._next_update = 0.0
        self._reported_s: dict[str, float] = {}  # of silent attempts: the silence that the user knows of
        self.plan: Plan | None = None
        self._reading: dict[str, counts.FirstTasks] = {}
        self._outage_wait = OutageWait(1 + request.mixture.execution.max_infrastructure_retries)

    @without_collection()
    def compile(self) -> Plan:
        """Compiles the plan from the records there are, emits it, and checks the limits of the mixture."""
        self.plan = plan = self._compiled()
        self.emit(Planned(plan=plan.with_earlier(), costs=step_costs(self.request, plan, self._kept_before)))
        reading = [plan.of_kind("map", source)[0] for source in self.request.sources]
        self._reading = {step.id: counts.FirstTasks.of(step) for step in reading if not step.is_committed}
        for first in self._reading.values():
            self._check_first_tasks(first)
        read = [name for name in self.request.sources if plan.of_kind("map", name)[0].is_committed]
        read_counts = {name: counts.source_counts(plan, name) for name in read}
        self._check_unreadable(read_counts)
        self._check_quarantine(plan, read_counts)
        self._check_fields(plan)
        self._check_dropped(plan)
        self.freeing.plan(plan)
        retry_io(self.freeing.free, self._pause_after, time.sleep)
        return plan

    def _compiled(self) -> Plan:
        """The plan, in which the tasks run again whose freed files a task without a record reads."""
        while True:
            compiled = partial(compile_plan, self.request, self._look_up, self.plan, self._earlier)
            plan = retry_io(compiled, self._pause_after, time.sleep)
            freed = freed_inputs(self.ledger, plan)
            if not freed:
                return plan
            self.run_again(freed)

    def run_again(self, fingerprints: Collection[str]) -> None:
        """Lets committed tasks run again whose files were freed, and are needed."""
        self.ledger.restore(fingerprints)
        self._submitted.difference_update(fingerprints)
        self.plan = None  # its steps have the records of these tasks
        self.freeing.again()

    def run(self, engine: Engine) -> Plan:
        """Runs every task without a record. Raises UserError or DatapipeError; records stay."""
        try:
            return self._run(engine)
        finally:
            self.emit(Progress(is_last=True))
            with suppress(OSError):  # of a run that ends for another reason, and so waits for no disk
                self.ledger.commit(self._pending.records)
            if self.plan is not None and not self.plan.is_committed:  # the report has what was committed since
                self.plan = compile_plan(self.request, self._look_up, self.plan, self._earlier)

    def _run(self, engine: Engine) -> Plan:
        plan = self.plan or self.compile()
        ready = deque(largest_first(plan.pending()))
        self._submitted = {task.fingerprint for task in ready}
        missing = _missing(plan)
        attempts = Attempts(engine, self.emit)
        retries = Retries(self.request.mixture.execution, self._locate)
        while not plan.is_committed:
            self.lock.check()
            ready.extendleft(reversed(retries.due()))  # before fresh tasks, which may all fail in the same way
            while ready and len(attempts) < 2 * engine.slots and not self._outage_wait.is_waiting:
                attempts.submit(ready.popleft())
            wait_s = min(_TICK_S, self._pending.due_in_s)
            attempt = engine.next_attempt(wait_s) if attempts else time.sleep(wait_s)
            self._update(engine, attempts, ready)
            attempt = None if attempt is None else attempts.ended(attempt)
            if attempt is not None:
                if attempt.failure is not None:  # which may end the run
                    self._commit(missing)
                self._take(attempt, retries)
            is_end = attempt is not None and self._pending.by_step[attempt.task.step] >= missing[attempt.task.step]
            if not is_end and self._pending.due_in_s:
                continue
            self._commit(missing)
            if is_end:
                plan = self.compile()
                fresh = [task for task in plan.pending() if task.fingerprint not in self._submitted]
                self._submitted.update(task.fingerprint for task in fresh)
                ready.extend(largest_first(fresh))
                missing = _missing(plan)
        return plan

    def _update(self, engine: Engine, attempts: Attempts, ready: Sequence[Task]) -> None:
        """Emits the state of the engine, and starts second attempts where slots are free, a few times a second."""
        if (now := time.monotonic()) < self._next_update:
            return
        self._next_update = now + _UPDATE_EVERY_S
        messages = engine.messages()
        for line in engine.take_lines():
            self.emit(UserMessage(line))
        queued = max(0, len(ready) + len(attempts) - len(messages))
        self.emit(Progress(messages=messages, slots=engine.slots, queued=queued, waits_for=engine.waits_for()))
        self._reported_s = {each.attempt: self._report_silent(each) for each in messages if each.silent_s >= SILENCE_S}
        attempts.update(messages)
        engine.demand(ready)
        if len(attempts) < engine.slots and not self._outage_wait.is_waiting and (line := attempts.start_second()):
            self.emit(UserMessage(line))

    def _report_silent(self, message: Message) -> float:
        """Reports a silent attempt whenever its silence has doubled; the seconds reported last."""
        reported_s = self._reported_s.get(message.attempt, 0.0)
        if message.silent_s < 2 * reported_s:
            return reported_s
        computes = "" if message.idle_s >= SILENCE_S else "; it computes"
        self.emit(UserMessage(f"no report for {message.silent_s:.0f} s from {message.task}: {state_of(message)}{computes}"))
        return message.silent_s

    def _commit(self, missing: Counter[str]) -> None:
        """Commits the records that wait, and subtracts them from the tasks without a record."""
        if not self._pending.attempts:
            return
        began, tasks = time.monotonic(), [attempt.task for attempt in self._pending.attempts]
        records = retry_io(lambda: self.ledger.commit(self._pending.records), self._pause_after, time.sleep)
        missing.subtract(self._pending.by_step)
        self._outage_wait.change()
        self.emit(self._pending.take(records, time.monotonic() - began))
        for record in records:
            if record.step in self._reading:
                self._reading[record.step].add(record)
                self._check_first_tasks(self._reading[record.step])
        self.freeing.committed(tasks)
        if self.freeing.is_due:
            retry_io(self.freeing.free, self._pause_after, time.sleep)

    def _take(self, attempt: Attempt, retries: Retries) -> None:
        if attempt.record is not None:
            self._pending.add(attempt)
            return
        assert attempt.failure is not None
        self._check_inputs(attempt.task, attempt.failure)
        if attempt.failure.kind in ("stage", "damage"):
            kind = StageError if attempt.failure.kind == "stage" else CorruptionError
            raise kind(f"{attempt.failure.message} {self._kept_traceback(attempt.failure)}")
        try:
            if attempt.failure.outage is not None:
                text = self._wait(attempt.failure.outage)
                retries.wait(attempt.task, self._outage_wait.resumes_at)
            else:
                text = retries.add(attempt.task, attempt.failure)
        except TaskFailedError as error:
            raise DatapipeError(f"{error}. {self._kept_traceback(error.failure)}") from None
        if text:
            self.emit(Retried(attempt=attempt, text=text))

    def _kept_traceback(self, failure: Failure) -> str:
        """Writes a failure with its traceback; a sentence that names the file."""
        root, content = self.ledger.root, f"{failure.message}\n\n{failure.details}"
        try:
            root.write_atomic(FAILURE, masked(content).encode("utf-8", "backslashreplace"))
        except OSError as error:
            return f"Its traceback cannot be written to {root.child_url(FAILURE)}: {error}"
        return f"The traceback is in {root.child_url(FAILURE)}"

    def _pause_after(self, error: OSError, number: int) -> float:
        """Seconds until the ledger is read or written again, while the run waits for an outage."""
        outage = outage_of(error, self.ledger.root.url)
        if outage is None:
            raise error
        if line := self._wait(outage):
            self.emit(UserMessage(line))
        return max(0.0, self._outage_wait.resumes_at - time.monotonic())

    def _wait(self, outage: Outage) -> str:
        """Notes a failure that all tasks wait after; a line for the user, maybe empty."""
        line = self._outage_wait.wait(outage)
        self.emit(Blocked(by=outage.short))
        return line

    def _check_inputs(self, task: Task, failure: Failure) -> None:
        """Raises UserError where an input file of a failed task has changed since the plan. If the next plan could not see the
        change, the records of tasks that read the file are forgotten, so that documents of two contents are never mixed."""
        changed = changed_inputs(task.input_files.values())
        if not changed:
            return
        unseen = {error.file.url for error in changed if error.has_planned_state}
        maps = self.plan.of_kind("map") if self.plan is not None else ()
        tasks = [other for step in maps for other in step.tasks or () if not unseen.isdisjoint(other.input_files)]
        self.ledger.forget({other.fingerprint for other in tasks})
        raise UserError(f"{changed[0]} ({failure.message})" if failure.kind != "user" else failure.message)

    def _locate(self, task: Task, key: bytes) -> str:
        return names_of_keys({task.source: self.request.sources[task.source].files})(key)

    def _check_dropped(self, plan: Plan) -> None:
        for excess in counts.excess_drops(plan):
            if excess.on_excess == "fail":
                raise DatapipeError(
                    f"{excess.text}. List the duplicates it found with `datapipe inspect {quote(self.ledger.root.url)} "
                    f"{excess.inspect}`. Then make the stage stricter, raise its max_dropped or set on_excess: warn, and run "
                    f"the same command again."
                )

    def _check_unreadable(self, counts_of_read: Mapping[str, counts.SourceCounts]) -> None:
        allowed = self.request.mixture.max_unreadable_files
        for source, of_source in counts_of_read.items():
            if len(of_source.unreadable_files) > allowed:
                raise UserError(
                    f"{counts.unreadable_text(source, of_source.unreadable_files)}. max_unreadable_files allows {allowed}. "
                    f"List all with `datapipe inspect {quote(self.ledger.root.url)} --quarantined`. Then replace the files, "
                    f"`exclude` them from the source, or raise max_unreadable_files to keep what can be read of them, and run "
                    f"the same command again."
                )

    def _check_quarantine(self, plan: Plan, counts_of_read: Mapping[str, counts.SourceCounts]) -> None:
        share = self.request.mixture.max_quarantined
        source = counts.source_over_quarantine_limit(counts_of_read, share)
        if source is None:
            return
        total = counts_of_read[source].document_counts
        records = (record for step in counts.steps_of_documents(plan, source) for record in step.records)
        raise DatapipeError(
            f"source '{source}': {total.quarantined:,} of {counted(total.read, 'document')} quarantined "
            f"({total.quarantined / total.read:.2%}), and max_quarantined allows {share:.2%}. {self._quarantined(records)}, or "
            f"raise max_quarantined, and run the same command again."
        )

    def _check_first_tasks(self, first: counts.FirstTasks) -> None:
        """Raises DatapipeError where the first tasks of a source quarantined everything."""
        share = self.request.mixture.max_quarantined
        if first.num_left and first.is_hopeless(share):
            total = total_counts(record.metrics.document_counts for record in first.records)
            raise DatapipeError(
                f"source '{first.step.source}': all {total.read:,} records that its first tasks read are quarantined, so the "
                f"other tasks, {first.num_left:,}, do not run; max_quarantined allows {share:.2%}. "
                f"{self._quarantined(first.records)}, and run the same command again."
            )

    def _check_fields(self, plan: Plan) -> None:
        """Raises UserError where a kept field that a stage decides by is null in every document of a whole source."""
        for source in self.request.sources if self.request.limit is None else ():
            asked_by = self.request.deciding.get(source, {})
            for name in counts.fields_without_value(plan.of_kind("map", source)[0]):
                if name in asked_by:
                    where = self.request.mixture.where("sources", source, "keep")
                    raise UserError(
                        f"{where}: the field '{name}' is null in every document of the source. {asked_by[name]} decides by it. "
                        f"Correct the name, or leave that out."
                    )

    def _quarantined(self, records: Iterable[Record]) -> str:
        """The reasons of quarantine, an example of the most frequent one, and what to do, without the end of the sentence."""
        records = list(records)
        total = total_counts(record.metrics.document_counts for record in records)
        example = self._example(records, next((reason for reason, _ in total.quarantine_reasons.most_common(1)), ""))
        return (
            f"{counts.quarantine_text(total)}. {example} List them with `datapipe inspect {quote(self.ledger.root.url)} "
            f"--quarantined`. Then correct the input, the source's field names or the stage that the error names"
        )

    def _example(self, records: Iterable[Record], reason: str) -> str:
        """The first document in quarantine for a reason, and its error."""
        for record in records:
            for output in record.of("quarantine", TableFile):
                for batch in read_table(self.ledger.root, output, ["path", "place", "stage", "error"]):
                    for row in batch.to_pylist():
                        if quarantine_reason(row["stage"], row["error"]) == reason:
                            name = document_name(record.step.partition("/")[0], row["path"], row["place"])
                            about, _, error = row["error"].strip().rpartition("\n")
                            if reason != f"{row['stage']}: {error.rstrip('.')}":
                                return f"The first, by {row['stage']}: {name}: {error.rstrip('.')}."
                            detail = f": {about}" if about and "\n" not in about else ""
                            return f"The first: {name}{detail}."
        return ""


def _missing(plan: Plan) -> Counter[str]:
    return Counter({step.id: len(step.pending()) for step in plan.steps if step.tasks is not None})
